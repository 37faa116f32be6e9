"""What every `Catalog` does, in memory and in PostgreSQL."""

import asyncio
import contextlib
import secrets
import time
from collections.abc import Awaitable
from dataclasses import replace
from typing import Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.fakes import InMemoryCatalog, InMemoryIngestQueue

from sherlock.rag.adapters.postgres import Database
from sherlock.rag.adapters.postgres_catalog import PostgresCatalog
from sherlock.rag.adapters.postgres_queue import PostgresIngestQueue
from sherlock.rag.domain.errors import Conflict, InvalidRequest, NotFound
from sherlock.rag.domain.models import (
    ChunkingStrategy,
    Encoder,
    FileCounts,
    LastError,
    PageRequest,
    Published,
    StoredFile,
    VectorStore,
    VectorStoreChanges,
    VectorStoreFile,
    WorkspaceId,
)
from sherlock.rag.domain.ports import Catalog, IngestQueue

CHUNKING = ChunkingStrategy(512, 50)
OTHER_CHUNKING = ChunkingStrategy(800, 400)
ENCODER = Encoder("hash", 384)
NOW = 1_700_000_000

UNSTORABLE = ["nul\0", "half \ud800 pair"]


@pytest.fixture(params=["memory", "postgres"])
def catalog(request: pytest.FixtureRequest, database: Database) -> Catalog:
    return InMemoryCatalog() if request.param == "memory" else PostgresCatalog(database)


@pytest.fixture
def queue(catalog: Catalog, database: Database) -> IngestQueue:
    if isinstance(catalog, InMemoryCatalog):
        return InMemoryIngestQueue(catalog.state)
    return PostgresIngestQueue(database)


def a_file(workspace: WorkspaceId, id: str = "", **changes: object) -> StoredFile:
    file = StoredFile(
        id=id or f"file-{secrets.token_hex(6)}",
        workspace_id=workspace,
        filename="Grüße 🙂.txt",
        purpose="assistants",
        bytes=12,
        sha256="ab" * 32,
        created_at=NOW,
    )
    return replace(file, **changes)  # type: ignore[arg-type]


def a_store(workspace: WorkspaceId, id: str = "", **changes: object) -> VectorStore:
    store = VectorStore(
        id=id or f"vs_{secrets.token_hex(6)}",
        workspace_id=workspace,
        name="Handbooks",
        description=None,
        metadata=None,
        encoder=ENCODER,
        created_at=NOW,
        last_active_at=NOW,
    )
    return replace(store, **changes)  # type: ignore[arg-type]


async def attach(
    catalog: Catalog,
    workspace: WorkspaceId,
    store: VectorStore,
    file: StoredFile,
    *,
    attributes: dict[str, str | float | bool] | None = None,
    chunking: ChunkingStrategy = CHUNKING,
    chunking_given: bool = False,
) -> VectorStoreFile:
    return await catalog.attach_file(
        workspace, store.id, file.id, attributes=attributes, chunking=chunking, chunking_given=chunking_given
    )


@pytest.fixture
async def file(catalog: Catalog, workspace: WorkspaceId) -> StoredFile:
    file = a_file(workspace)
    await catalog.add_file(file)
    return file


@pytest.fixture
async def store(catalog: Catalog, workspace: WorkspaceId) -> VectorStore:
    return await catalog.add_vector_store(a_store(workspace), [], CHUNKING)


# ── files ──


async def test_a_file_comes_back_as_it_was_added(catalog: Catalog, workspace: WorkspaceId) -> None:
    file = a_file(workspace, expires_at=NOW + 3600)
    await catalog.add_file(file)
    assert await catalog.get_file(workspace, file.id) == file


async def test_a_deleted_file_is_gone_and_is_returned(
    catalog: Catalog, queue: IngestQueue, workspace: WorkspaceId, file: StoredFile
) -> None:
    stores = [await catalog.add_vector_store(a_store(workspace), [file.id], CHUNKING) for _ in range(3)]
    assert await queue.depth() == 3

    assert await catalog.delete_file(workspace, file.id) == file

    with pytest.raises(NotFound):
        await catalog.get_file(workspace, file.id)
    with pytest.raises(NotFound):
        await catalog.delete_file(workspace, file.id)
    assert await queue.depth() == 0
    for store in stores:
        assert (await catalog.get_vector_store(workspace, store.id)).file_counts == FileCounts()


async def test_an_id_is_given_once(catalog: Catalog, workspace: WorkspaceId, file: StoredFile) -> None:
    with pytest.raises(Conflict):
        await catalog.add_file(a_file(workspace, file.id, filename="other.txt"))
    assert await catalog.get_file(workspace, file.id) == file


async def test_files_are_listed_by_purpose(catalog: Catalog, workspace: WorkspaceId) -> None:
    for number, purpose in enumerate(["assistants", "batch", "assistants"]):
        await catalog.add_file(a_file(workspace, f"file-{number}", purpose=purpose))
    page = await catalog.list_files(workspace, PageRequest(order="asc"), "assistants")
    assert [file.id for file in page.items] == ["file-0", "file-2"]
    # The cursor may be a file that the filter leaves out.
    page = await catalog.list_files(workspace, PageRequest(order="asc", after="file-1"), "assistants")
    assert [file.id for file in page.items] == ["file-2"]


@pytest.mark.parametrize("text", UNSTORABLE)
async def test_text_that_cannot_be_stored_is_refused(
    catalog: Catalog, workspace: WorkspaceId, store: VectorStore, file: StoredFile, text: str
) -> None:
    with pytest.raises(InvalidRequest):
        await catalog.add_file(a_file(workspace, filename=text))
    for changes in (
        {"name": text},
        {"description": text},
        {"metadata": {text: "x"}},
        {"metadata": {"x": text}},
    ):
        with pytest.raises(InvalidRequest):
            await catalog.add_vector_store(a_store(workspace, **changes), [], CHUNKING)
    with pytest.raises(InvalidRequest):
        await catalog.update_vector_store(workspace, store.id, VectorStoreChanges(name=text))
    with pytest.raises(InvalidRequest):
        await attach(catalog, workspace, store, file, attributes={"x": text})
    with pytest.raises(InvalidRequest):
        await attach(catalog, workspace, store, file, attributes={text: 1.0})
    with pytest.raises(InvalidRequest):
        await attach(catalog, workspace, store, file, attributes={"x": float("nan")})


@pytest.mark.parametrize("id", ["", "nonsense", "../etc", "x" * 5000, "';--", *UNSTORABLE])
async def test_an_id_of_any_shape_is_just_not_found(
    catalog: Catalog, workspace: WorkspaceId, store: VectorStore, file: StoredFile, id: str
) -> None:
    calls = [
        catalog.get_file(workspace, id),
        catalog.delete_file(workspace, id),
        catalog.list_files(workspace, PageRequest(after=id)),
        catalog.add_vector_store(a_store(workspace), [file.id, id], CHUNKING),
        catalog.get_vector_store(workspace, id),
        catalog.list_vector_stores(workspace, PageRequest(before=id)),
        catalog.update_vector_store(workspace, id, VectorStoreChanges(name="x")),
        catalog.delete_vector_store(workspace, id),
        attach(catalog, workspace, replace(store, id=id), file),
        attach(catalog, workspace, store, replace(file, id=id)),
        catalog.get_membership(workspace, id, file.id),
        catalog.get_membership(workspace, store.id, id),
        catalog.list_memberships(workspace, id, PageRequest()),
        catalog.list_memberships(workspace, store.id, PageRequest(after=id)),
        catalog.update_attributes(workspace, store.id, id, None),
        catalog.detach_file(workspace, store.id, id),
    ]
    for call in calls:
        with pytest.raises(NotFound):
            await call
    assert await catalog.find_vector_stores(workspace, [id, store.id]) == [store]
    await catalog.touch_vector_stores(workspace, [id])


# ── vector stores ──


async def test_a_store_comes_back_as_it_was_added(catalog: Catalog, workspace: WorkspaceId) -> None:
    store = a_store(workspace, description="all of them", metadata={"team": "käse"}, expires_after_days=7)
    added = await catalog.add_vector_store(store, [], CHUNKING)
    assert added == replace(store, expires_at=NOW + 7 * 86_400)
    assert await catalog.get_vector_store(workspace, store.id) == added


async def test_a_store_begins_with_its_files_once_each(
    catalog: Catalog, queue: IngestQueue, workspace: WorkspaceId, file: StoredFile
) -> None:
    other = a_file(workspace)
    await catalog.add_file(other)
    store = await catalog.add_vector_store(a_store(workspace), [file.id, other.id, file.id], OTHER_CHUNKING)
    assert store.file_counts == FileCounts(in_progress=2)
    assert store.status == "in_progress"
    assert await queue.depth() == 2
    assert (await catalog.get_membership(workspace, store.id, other.id)).chunking == OTHER_CHUNKING


async def test_a_store_with_an_unknown_file_is_not_created(
    catalog: Catalog, queue: IngestQueue, workspace: WorkspaceId, file: StoredFile
) -> None:
    store = a_store(workspace)
    with pytest.raises(NotFound) as raised:
        await catalog.add_vector_store(store, [file.id, "file-unknown"], CHUNKING)
    assert "file-unknown" in raised.value.message
    with pytest.raises(NotFound):
        await catalog.get_vector_store(workspace, store.id)
    assert await queue.depth() == 0


async def test_stores_are_found_in_the_order_asked_each_once(
    catalog: Catalog, workspace: WorkspaceId
) -> None:
    for id in ("vs_a", "vs_b"):
        await catalog.add_vector_store(a_store(workspace, id), [], CHUNKING)
    found = await catalog.find_vector_stores(workspace, ["vs_b", "vs_x", "vs_a", "vs_b"])
    assert [store.id for store in found] == ["vs_b", "vs_a"]
    assert await catalog.find_vector_stores(workspace, []) == []


async def test_an_update_keeps_what_is_unset_and_clears_what_is_none(
    catalog: Catalog, workspace: WorkspaceId
) -> None:
    store = a_store(workspace, metadata={"a": "b"}, expires_after_days=3)
    await catalog.add_vector_store(store, [], CHUNKING)

    renamed = await catalog.update_vector_store(workspace, store.id, VectorStoreChanges(name="new"))
    assert (renamed.name, renamed.metadata, renamed.expires_after_days) == ("new", {"a": "b"}, 3)
    assert renamed.last_active_at > store.last_active_at
    assert renamed.expires_at == renamed.last_active_at + 3 * 86_400

    cleared = await catalog.update_vector_store(
        workspace, store.id, VectorStoreChanges(name=None, metadata=None, expires_after_days=None)
    )
    assert (cleared.name, cleared.metadata, cleared.expires_after_days) == ("", None, None)
    assert cleared.expires_at is None
    assert await catalog.get_vector_store(workspace, store.id) == cleared


async def test_a_touch_notes_activity(catalog: Catalog, workspace: WorkspaceId, store: VectorStore) -> None:
    before = int(time.time())
    await catalog.touch_vector_stores(workspace, [store.id, "vs_unknown", store.id])
    await catalog.touch_vector_stores(workspace, [])
    assert (await catalog.get_vector_store(workspace, store.id)).last_active_at >= before


async def test_a_deleted_store_leaves_the_files(
    catalog: Catalog, queue: IngestQueue, workspace: WorkspaceId, store: VectorStore, file: StoredFile
) -> None:
    await attach(catalog, workspace, store, file)
    await catalog.delete_vector_store(workspace, store.id)
    with pytest.raises(NotFound):
        await catalog.get_vector_store(workspace, store.id)
    with pytest.raises(NotFound):
        await catalog.get_membership(workspace, store.id, file.id)
    assert await queue.depth() == 0
    assert await catalog.get_file(workspace, file.id) == file


# ── attaching ──


async def test_attaching_makes_a_membership_and_a_job(
    catalog: Catalog, queue: IngestQueue, workspace: WorkspaceId, store: VectorStore, file: StoredFile
) -> None:
    before = int(time.time())
    attributes: dict[str, str | float | bool] = {"author": "ü", "year": 2024.0, "draft": True, "pages": 0.0}
    member = await attach(catalog, workspace, store, file, attributes=attributes)
    assert member == VectorStoreFile(
        file_id=file.id,
        vector_store_id=store.id,
        filename=file.filename,
        status="in_progress",
        chunking=CHUNKING,
        created_at=member.created_at,
        attributes=attributes,
    )
    assert before <= member.created_at <= time.time() + 1
    assert await catalog.get_membership(workspace, store.id, file.id) == member
    assert member.attributes is not None
    assert {name: type(value) for name, value in member.attributes.items()} == {
        "author": str,
        "year": float,
        "draft": bool,
        "pages": float,
    }
    job = await queue.claim("worker", 30)
    assert job is not None
    assert (job.workspace_id, job.vector_store_id, job.file_id) == (workspace, store.id, file.id)
    assert (job.filename, job.bytes, job.chunking) == (file.filename, file.bytes, CHUNKING)
    assert job.encoder == ENCODER
    assert await queue.claim("worker", 30) is None


@given(
    attributes=st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8),
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.booleans(),
        max_size=5,
    )
)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_attributes_come_back_as_they_were_given(
    catalog: Catalog,
    workspace: WorkspaceId,
    store: VectorStore,
    file: StoredFile,
    attributes: dict[str, str | float | bool],
) -> None:
    await attach(catalog, workspace, store, file)
    member = await catalog.update_attributes(workspace, store.id, file.id, attributes)
    assert member.attributes == attributes
    assert {n: type(v) for n, v in member.attributes.items()} == {n: type(v) for n, v in attributes.items()}


async def test_attaching_again_changes_nothing(
    catalog: Catalog, queue: IngestQueue, workspace: WorkspaceId, store: VectorStore, file: StoredFile
) -> None:
    first = await attach(catalog, workspace, store, file, attributes={"a": "b"})
    again = await attach(catalog, workspace, store, file, chunking=OTHER_CHUNKING)
    assert again == first
    assert await attach(catalog, workspace, store, file, chunking_given=True) == first
    assert await queue.depth() == 1


async def test_attaching_again_replaces_given_attributes(
    catalog: Catalog, workspace: WorkspaceId, store: VectorStore, file: StoredFile
) -> None:
    await attach(catalog, workspace, store, file, attributes={"a": "b", "c": 1.0})
    assert (await attach(catalog, workspace, store, file, attributes={"c": 2.0})).attributes == {"c": 2.0}
    assert (await attach(catalog, workspace, store, file)).attributes == {"c": 2.0}
    assert (await attach(catalog, workspace, store, file, attributes={})).attributes == {}


async def test_attaching_again_with_other_chunking_is_a_conflict(
    catalog: Catalog, workspace: WorkspaceId, store: VectorStore, file: StoredFile
) -> None:
    first = await attach(catalog, workspace, store, file, attributes={"a": "b"})
    with pytest.raises(Conflict):
        await attach(
            catalog, workspace, store, file, attributes={}, chunking=OTHER_CHUNKING, chunking_given=True
        )
    assert await catalog.get_membership(workspace, store.id, file.id) == first


async def test_attaching_a_failed_file_tries_again(
    catalog: Catalog, queue: IngestQueue, workspace: WorkspaceId, store: VectorStore, file: StoredFile
) -> None:
    await attach(catalog, workspace, store, file)
    job = await queue.claim("worker", 30)
    assert job is not None
    await queue.fail(job.lease, LastError("invalid_file", "There is no text in it."))
    failed = await catalog.get_membership(workspace, store.id, file.id)
    assert (failed.status, failed.last_error) == (
        "failed",
        LastError("invalid_file", "There is no text in it."),
    )

    again = await attach(catalog, workspace, store, file, chunking=OTHER_CHUNKING, chunking_given=True)

    assert (again.status, again.last_error, again.chunking) == ("in_progress", None, OTHER_CHUNKING)
    job = await queue.claim("worker", 30)
    assert job is not None
    assert job.chunking == OTHER_CHUNKING
    assert await queue.depth() == 1


async def test_a_completed_file_is_not_ingested_again(
    catalog: Catalog, queue: IngestQueue, workspace: WorkspaceId, store: VectorStore, file: StoredFile
) -> None:
    await attach(catalog, workspace, store, file)
    job = await queue.claim("worker", 30)
    assert job is not None
    await queue.complete(job.lease, Published(chunk_count=3, window_count=4, usage_bytes=500))

    again = await attach(catalog, workspace, store, file)

    assert (again.status, again.chunk_count, again.usage_bytes) == ("completed", 3, 500)
    assert await queue.depth() == 0
    counted = await catalog.get_vector_store(workspace, store.id)
    assert (counted.file_counts, counted.usage_bytes) == (FileCounts(completed=1), 500)
    assert (counted.file_counts.total, counted.status) == (1, "completed")


async def test_of_concurrent_attaches_one_makes_the_job(
    catalog: Catalog, queue: IngestQueue, workspace: WorkspaceId, store: VectorStore, file: StoredFile
) -> None:
    members = await asyncio.gather(*(attach(catalog, workspace, store, file) for _ in range(6)))
    assert len(set(map(str, members))) == 1
    assert await queue.depth() == 1


async def test_attach_detach_and_delete_at_once_leave_nothing_broken(
    catalog: Catalog, queue: IngestQueue, workspace: WorkspaceId, store: VectorStore
) -> None:
    async def quietly(call: Awaitable[object]) -> None:
        with contextlib.suppress(NotFound):
            await call

    for _ in range(5):
        file = a_file(workspace)
        await catalog.add_file(file)
        await asyncio.gather(
            quietly(attach(catalog, workspace, store, file)),
            quietly(catalog.detach_file(workspace, store.id, file.id)),
            quietly(attach(catalog, workspace, store, file)),
            quietly(catalog.delete_file(workspace, file.id)),
            quietly(attach(catalog, workspace, store, file)),
        )
        with pytest.raises(NotFound):
            await catalog.get_membership(workspace, store.id, file.id)
        assert await queue.depth() == 0


async def test_detaching_leaves_the_file_and_drops_the_job(
    catalog: Catalog, queue: IngestQueue, workspace: WorkspaceId, store: VectorStore, file: StoredFile
) -> None:
    await attach(catalog, workspace, store, file)
    await catalog.detach_file(workspace, store.id, file.id)
    with pytest.raises(NotFound):
        await catalog.get_membership(workspace, store.id, file.id)
    with pytest.raises(NotFound):
        await catalog.detach_file(workspace, store.id, file.id)
    assert await catalog.get_file(workspace, file.id) == file
    assert await queue.depth() == 0


async def test_attributes_are_replaced_as_a_whole(
    catalog: Catalog, workspace: WorkspaceId, store: VectorStore, file: StoredFile
) -> None:
    await attach(catalog, workspace, store, file, attributes={"a": "b", "c": True})
    changed = await catalog.update_attributes(workspace, store.id, file.id, {"d": 0.5})
    assert changed.attributes == {"d": 0.5}
    assert (await catalog.update_attributes(workspace, store.id, file.id, None)).attributes is None


async def test_memberships_are_listed_by_status(
    catalog: Catalog, queue: IngestQueue, workspace: WorkspaceId, store: VectorStore
) -> None:
    files = [a_file(workspace) for _ in range(3)]
    for file in files:
        await catalog.add_file(file)
        await attach(catalog, workspace, store, file)
    job = await queue.claim("worker", 30)
    assert job is not None
    await queue.complete(job.lease, Published(1, 1, 10))
    page = await catalog.list_memberships(workspace, store.id, PageRequest(), "completed")
    assert [member.file_id for member in page.items] == [job.file_id]
    page = await catalog.list_memberships(workspace, store.id, PageRequest(order="asc"), "in_progress")
    assert [m.file_id for m in page.items] == [file.id for file in files if file.id != job.file_id]


# ── pages ──


@given(
    ages=st.lists(st.integers(0, 3), max_size=8),
    limit=st.integers(1, 4),
    ascending=st.booleans(),
)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_pages_join_to_the_whole_list_both_ways(
    catalog: Catalog, ages: list[int], limit: int, ascending: bool
) -> None:
    """Times tie on purpose."""
    workspace = WorkspaceId(f"pages-{secrets.token_hex(6)}")
    files = [a_file(workspace, f"file-{n}", created_at=NOW + age) for n, age in enumerate(ages)]
    for file in files:
        await catalog.add_file(file)
    order: Literal["asc", "desc"] = "asc" if ascending else "desc"
    expected = sorted(files, key=lambda file: (file.created_at, file.id), reverse=not ascending)

    async def page(**cursor: str) -> tuple[list[StoredFile], bool]:
        found = await catalog.list_files(workspace, PageRequest(limit=limit, order=order, **cursor))
        assert len(found.items) <= limit
        return list(found.items), found.has_more

    forwards, more = await page()
    while more:
        items, more = await page(after=forwards[-1].id)
        assert items
        forwards += items
    assert forwards == expected

    if expected:
        backwards: list[StoredFile] = [expected[-1]]
        more = True
        while more:
            items, more = await page(before=backwards[0].id)
            backwards = items + backwards
        assert backwards == expected
        between, more = await page(after=expected[0].id, before=expected[-1].id)
        assert between == expected[1:-1][:limit]
        assert more == (len(expected[1:-1]) > limit)
    for file in files:
        await catalog.delete_file(workspace, file.id)


@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_stores_and_memberships_page_alike(
    catalog: Catalog, workspace: WorkspaceId, order: Literal["asc", "desc"]
) -> None:
    files = [a_file(workspace, f"file-{n}") for n in range(5)]
    for file in files:
        await catalog.add_file(file)
    stores = [a_store(workspace, f"vs_{n}", created_at=NOW + n // 2) for n in range(5)]
    for store in stores:
        await catalog.add_vector_store(store, [file.id for file in files], CHUNKING)
    numbers = list(range(5)) if order == "asc" else list(range(4, -1, -1))

    page = await catalog.list_vector_stores(workspace, PageRequest(3, order))
    assert [s.id for s in page.items] == [f"vs_{n}" for n in numbers[:3]]
    assert page.has_more
    assert all(s.file_counts.in_progress == 5 for s in page.items)
    request = PageRequest(3, order, before=f"vs_{numbers[4]}")
    page = await catalog.list_vector_stores(workspace, request)
    assert [s.id for s in page.items] == [f"vs_{n}" for n in numbers[1:4]]
    assert page.has_more

    request = PageRequest(3, order, after=f"file-{numbers[1]}")
    members = await catalog.list_memberships(workspace, "vs_0", request)
    assert [m.file_id for m in members.items] == [f"file-{n}" for n in numbers[2:]]
    assert not members.has_more


# ── tenants ──


async def test_another_workspace_sees_and_changes_nothing(
    catalog: Catalog,
    workspace: WorkspaceId,
    other_workspace: WorkspaceId,
    store: VectorStore,
    file: StoredFile,
) -> None:
    member = await attach(catalog, workspace, store, file, attributes={"a": "b"})
    their_file, their_store = a_file(other_workspace), a_store(other_workspace)
    await catalog.add_file(their_file)
    await catalog.add_vector_store(their_store, [], CHUNKING)
    calls = [
        catalog.get_file(other_workspace, file.id),
        catalog.delete_file(other_workspace, file.id),
        catalog.list_files(other_workspace, PageRequest(after=file.id)),
        catalog.add_vector_store(a_store(other_workspace), [file.id], CHUNKING),
        catalog.get_vector_store(other_workspace, store.id),
        catalog.list_vector_stores(other_workspace, PageRequest(after=store.id)),
        catalog.update_vector_store(other_workspace, store.id, VectorStoreChanges(name="mine")),
        catalog.delete_vector_store(other_workspace, store.id),
        attach(catalog, other_workspace, store, file),
        attach(catalog, other_workspace, their_store, file),
        attach(catalog, other_workspace, store, their_file),
        attach(catalog, workspace, store, their_file),
        catalog.get_membership(other_workspace, store.id, file.id),
        catalog.list_memberships(other_workspace, store.id, PageRequest()),
        catalog.update_attributes(other_workspace, store.id, file.id, {}),
        catalog.detach_file(other_workspace, store.id, file.id),
    ]
    for call in calls:
        with pytest.raises(NotFound):
            await call
    await catalog.touch_vector_stores(other_workspace, [store.id])
    assert await catalog.find_vector_stores(other_workspace, [store.id]) == []
    assert [f.id for f in (await catalog.list_files(other_workspace, PageRequest())).items] == [their_file.id]

    unchanged = await catalog.get_vector_store(workspace, store.id)
    assert unchanged == replace(store, file_counts=FileCounts(in_progress=1))
    assert await catalog.get_membership(workspace, store.id, file.id) == member


async def test_workspaces_may_use_the_same_ids(
    catalog: Catalog, workspace: WorkspaceId, other_workspace: WorkspaceId
) -> None:
    for owner in (workspace, other_workspace):
        await catalog.add_file(a_file(owner, "file-same", filename=f"{owner}.txt"))
        await catalog.add_vector_store(a_store(owner, "vs_same"), ["file-same"], CHUNKING)
    await catalog.delete_file(workspace, "file-same")
    assert (await catalog.get_file(other_workspace, "file-same")).filename == f"{other_workspace}.txt"
    counts = (await catalog.get_vector_store(other_workspace, "vs_same")).file_counts
    assert counts == FileCounts(in_progress=1)


async def test_it_says_that_it_answers(catalog: Catalog) -> None:
    await catalog.check()
