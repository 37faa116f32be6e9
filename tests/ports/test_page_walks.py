"""Walks through the lists of the real catalog, page by page, while others add to them and take from them.

Whoever follows a cursor sees once, in order, what was there all the time, whatever the size of the pages.
"""

import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from sherlock.rag.adapters.postgres import Database
from sherlock.rag.adapters.postgres_catalog import PostgresCatalog
from sherlock.rag.domain.models import (
    ChunkingStrategy,
    Encoder,
    Page,
    PageRequest,
    StoredFile,
    VectorStore,
    VectorStoreFile,
    WorkspaceId,
)

NOW = int(time.time()) - 3600
CHUNKING = ChunkingStrategy(512, 50)


@dataclass
class Walked:
    """A list in the catalog that grows and shrinks: every entry has an id and the second it was made in."""

    catalog: PostgresCatalog
    database: Database
    workspace: WorkspaceId
    kind: Literal["files", "stores", "members"]
    store: str = ""
    made: dict[str, int] = field(default_factory=dict)
    """Id -> second, of what is in the list, in the order it came."""

    async def add(self, second: int) -> str:
        if self.kind == "stores":
            id = await self._store(second)
        else:
            id = f"file-{secrets.token_hex(8)}"
            file = StoredFile(id, self.workspace, "a.txt", "assistants", 1, "0" * 64, NOW + second)
            await self.catalog.add_file(file)
        if self.kind == "members":
            await self._attach(id, second)
        self.made[id] = second
        return id

    async def remove(self, id: str) -> None:
        del self.made[id]
        if self.kind == "stores":
            await self.catalog.delete_vector_store(self.workspace, id)
        elif self.kind == "files":
            await self.catalog.delete_file(self.workspace, id)
        else:
            await self.catalog.detach_file(self.workspace, self.store, id)

    async def page(self, request: PageRequest) -> tuple[list[str], bool]:
        found: Page[StoredFile] | Page[VectorStore] | Page[VectorStoreFile]
        if self.kind == "stores":
            found = await self.catalog.list_vector_stores(self.workspace, request)
        elif self.kind == "files":
            found = await self.catalog.list_files(self.workspace, request)
        else:
            found = await self.catalog.list_memberships(self.workspace, self.store, request)
            return [member.file_id for member in found.items], found.has_more
        return [item.id for item in found.items], found.has_more

    def ordered(self, order: str) -> list[str]:
        """By second, and within one as they came; `sorted` keeps that order."""
        ids = sorted(self.made, key=self.made.__getitem__)
        return ids if order == "asc" else ids[::-1]

    async def emptied(self, kind: Literal["files", "stores", "members"]) -> "Walked":
        """Everything of the workspace gone, and a list of this kind to begin with."""
        async with self.database.transaction() as connection:
            for table in ("vector_stores", "knowledge_files"):
                of_workspace = text(f"delete from {table} where workspace_id = :id")
                await connection.execute(of_workspace, {"id": self.workspace})
        walked = Walked(self.catalog, self.database, self.workspace, kind)
        if kind == "members":
            walked.store = await walked._store(0)
        return walked

    async def _store(self, second: int) -> str:
        id = f"vs_{secrets.token_hex(8)}"
        made = NOW + second
        store = VectorStore(id, self.workspace, "", None, None, Encoder("hash", 384), made, made)
        return (await self.catalog.add_vector_store(store, [], CHUNKING)).id

    async def _attach(self, file_id: str, second: int) -> None:
        await self.catalog.attach_file(
            self.workspace, self.store, file_id, attributes=None, chunking=CHUNKING, chunking_given=False
        )
        # The database's clock says when; here the test does.
        async with self.database.transaction() as connection:
            await connection.execute(
                text("""
                    update vector_store_files set created_at = to_timestamp(:at)
                    where workspace_id = :workspace_id and vector_store_id = :store and file_id = :file
                """),
                {"at": NOW + second, "workspace_id": self.workspace, "store": self.store, "file": file_id},
            )


@pytest.fixture
def walked(database: Database, workspace: WorkspaceId) -> Walked:
    return Walked(PostgresCatalog(database), database, workspace, "files")


Change = tuple[Literal["add", "remove"], int]
"""Add an entry of that second, or remove the one at that place (counted round)."""

kinds = st.sampled_from(["files", "stores", "members"])
orders = st.sampled_from(["asc", "desc"])
# Few seconds, so that many entries share one.
seconds = st.lists(st.integers(0, 2), max_size=9)
changes: st.SearchStrategy[list[Change]] = st.lists(
    st.tuples(st.sampled_from(["add", "remove"]), st.integers(0, 8)), max_size=3
)
walks = settings(
    max_examples=30,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


async def pages(
    walked: Walked,
    order: Literal["asc", "desc"],
    limits: Sequence[int],
    between: Callable[[str], Awaitable[None]],
    *,
    backwards_from: str | None = None,
) -> list[str]:
    """All pages joined; `between` two it is told the cursor that comes next."""
    cursor, seen, number, more = backwards_from, [], 0, True
    while more:
        limit = limits[number % len(limits)]
        if backwards_from is None:
            items, more = await walked.page(PageRequest(limit, order, after=cursor))
            seen += items
            cursor = items[-1] if items else cursor
        else:
            items, more = await walked.page(PageRequest(limit, order, before=cursor))
            seen = items + seen
            cursor = items[0] if items else cursor
        assert len(items) <= limit
        assert not more or len(items) == limit, "a page that is not full says that more follow"
        number += 1
        if more and cursor is not None:
            await between(cursor)
    return seen


@given(
    kind=kinds,
    order=orders,
    seconds=seconds,
    limits=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    steps=st.lists(changes, max_size=4),
    backwards=st.booleans(),
)
@walks
async def test_a_walk_sees_once_what_was_there_all_the_time(
    walked: Walked,
    kind: Literal["files", "stores", "members"],
    order: Literal["asc", "desc"],
    seconds: list[int],
    limits: list[int],
    steps: list[list[Change]],
    backwards: bool,
) -> None:
    walked = await walked.emptied(kind)
    for second in seconds:
        await walked.add(second)
    edge = await walked.add(2 if order == "asc" else 0) if backwards else None
    stayed, known, coming = set(walked.made), dict(walked.made), iter(steps)

    async def between(cursor: str) -> None:
        for what, number in next(coming, []):
            others = [id for id in walked.made if id != cursor]
            if what == "add":
                known[await walked.add(number % 3)] = number % 3
            elif others:
                await walked.remove(others[number % len(others)])
        stayed.intersection_update(walked.made)

    if edge is not None:
        # The last of the list, so that all else lies before it.
        edge = walked.ordered(order)[-1]
    seen = await pages(walked, order, limits, between, backwards_from=edge)
    assert len(seen) == len(set(seen)), "an entry came twice"
    assert stayed - {edge} <= set(seen), "an entry is missing that was there all the time"
    arrival = {id: (second, place) for place, (id, second) in enumerate(known.items())}
    assert seen == sorted(seen, key=arrival.__getitem__, reverse=order == "desc")
    if not any(steps):
        assert seen == [id for id in walked.ordered(order) if id != edge]


@given(kind=kinds, order=orders, seconds=seconds, limit=st.integers(1, 10), data=st.data())
@walks
async def test_a_page_is_a_slice_of_the_list(
    walked: Walked,
    kind: Literal["files", "stores", "members"],
    order: Literal["asc", "desc"],
    seconds: list[int],
    limit: int,
    data: st.DataObject,
) -> None:
    """Whatever the cursors, also those that cross or name one entry twice."""
    walked = await walked.emptied(kind)
    for second in seconds:
        await walked.add(second)
    whole = walked.ordered(order)
    cursors = st.none() | st.sampled_from(whole) if whole else st.none()
    after, before = data.draw(cursors, "after"), data.draw(cursors, "before")
    start = whole.index(after) + 1 if after else 0
    end = whole.index(before) if before else len(whole)
    between = whole[start:end]
    expected = between[-limit:] if before and not after else between[:limit]
    assert await walked.page(PageRequest(limit, order, after, before)) == (expected, len(between) > limit)
