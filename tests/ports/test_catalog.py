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
from sqlalchemy import text
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
NOW = int(time.time()) - 3600

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
    file = a_file(workspace, expires_at=NOW + 7200)
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


@pytest.mark.parametrize("unstorable", UNSTORABLE)
async def test_text_that_cannot_be_stored_is_refused(
    catalog: Catalog, workspace: WorkspaceId, store: VectorStore, file: StoredFile, unstorable: str
) -> None:
    with pytest.raises(InvalidRequest):
        await catalog.add_file(a_file(workspace, filename=unstorable))
    for changes in (
        {"name": unstorable},
        {"description": unstorable},
        {"metadata": {unstorable: "x"}},
        {"metadata": {"x": unstorable}},
    ):
        with pytest.raises(InvalidRequest):
            await catalog.add_vector_store(a_store(workspace, **changes), [], CHUNKING)
    with pytest.raises(InvalidRequest):
        await catalog.update_vector_store(workspace, store.id, VectorStoreChanges(name=unstorable))
    with pytest.raises(InvalidRequest):
        await attach(catalog, workspace, store, file, attributes={"x": unstorable})
    with pytest.raises(InvalidRequest):
        await attach(catalog, workspace, store, file, attributes={unstorable: 1.0})
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
    catalog: Catalog, workspace: WorkspaceId, file: StoredFile
) -> None:
    for id in ("vs_a", "vs_b"):
        await catalog.add_vector_store(a_store(workspace, id), [file.id], CHUNKING)
    found = await catalog.find_vector_stores(workspace, ["vs_b", "vs_x", "vs_a", "vs_b"])
    assert [store.id for store in found] == ["vs_b", "vs_a"]
    assert all(store.file_counts == FileCounts() for store in found)
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
    # Ids are random, as they are in life: files of one second stand in the order they came.
    files = [a_file(workspace, created_at=NOW + age) for age in ages]
    for file in files:
        await catalog.add_file(file)
    order: Literal["asc", "desc"] = "asc" if ascending else "desc"
    expected = sorted(files, key=lambda file: file.created_at)
    if not ascending:
        expected.reverse()

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
    files = [a_file(workspace).id for _ in range(5)]
    for file_id in files:
        await catalog.add_file(a_file(workspace, file_id))
    stores = [a_store(workspace, created_at=NOW + n // 3).id for n in range(5)]
    for n, store_id in enumerate(stores):
        store = a_store(workspace, store_id, created_at=NOW + n // 3)
        await catalog.add_vector_store(store, files[::-1], CHUNKING)
    first = stores[0]
    if order == "desc":
        files.reverse()
        stores.reverse()

    page = await catalog.list_vector_stores(workspace, PageRequest(3, order))
    assert [s.id for s in page.items] == stores[:3]
    assert page.has_more
    assert all(s.file_counts.in_progress == 5 for s in page.items)
    page = await catalog.list_vector_stores(workspace, PageRequest(3, order, before=stores[4]))
    assert [s.id for s in page.items] == stores[1:4]
    assert page.has_more

    members = await catalog.list_memberships(workspace, first, PageRequest(3, order, after=files[1]))
    assert [m.file_id for m in members.items] == files[2:]
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
    before = await catalog.get_vector_store(workspace, store.id)
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

    assert await catalog.get_vector_store(workspace, store.id) == before
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


# ── PostgreSQL alone ──

FILE_COUNTS = text("""
    select s.id, s.file_count, count(m.file_id) as files
    from vector_stores s left join vector_store_files m using (store_no)
    where s.workspace_id = :workspace
    group by s.id, s.file_count
""")


async def file_counts(database: Database, workspace: WorkspaceId) -> dict[str, int]:
    """The column people query, by store; checked against the memberships."""
    async with database.transaction() as connection:
        rows = (await connection.execute(FILE_COUNTS, {"workspace": workspace})).all()
    assert all(row.file_count == row.files for row in rows), rows
    return {row.id: row.file_count for row in rows}


@pytest.fixture
def postgres(database: Database) -> PostgresCatalog:
    return PostgresCatalog(database)


async def test_file_count_follows_the_memberships(
    postgres: PostgresCatalog, database: Database, workspace: WorkspaceId
) -> None:
    files = [a_file(workspace) for _ in range(3)]
    for file in files:
        await postgres.add_file(file)
    one, other = a_store(workspace), a_store(workspace)
    await postgres.add_vector_store(one, [file.id for file in files], CHUNKING)
    await postgres.add_vector_store(other, [], CHUNKING)
    assert await file_counts(database, workspace) == {one.id: 3, other.id: 0}
    for _ in range(2):
        await attach(postgres, workspace, other, files[0])
    assert await file_counts(database, workspace) == {one.id: 3, other.id: 1}
    await postgres.detach_file(workspace, one.id, files[1].id)
    assert await file_counts(database, workspace) == {one.id: 2, other.id: 1}
    await postgres.delete_file(workspace, files[0].id)
    assert await file_counts(database, workspace) == {one.id: 1, other.id: 0}
    await postgres.delete_vector_store(workspace, one.id)
    assert await file_counts(database, workspace) == {other.id: 0}


@pytest.mark.parametrize(
    ("by_hand", "left"),
    [
        ("delete from knowledge_files where workspace_id = :workspace and id <> 'file-0'", 1),
        ("delete from vector_store_files where workspace_id = :workspace", 0),
        ("update vector_store_files set status = 'cancelled' where workspace_id = :workspace", 4),
    ],
)
async def test_file_count_follows_what_is_done_by_hand(
    postgres: PostgresCatalog, database: Database, workspace: WorkspaceId, by_hand: str, left: int
) -> None:
    files = [f"file-{n}" for n in range(4)]
    for file_id in files:
        await postgres.add_file(a_file(workspace, file_id))
    for store_id in ("vs_a", "vs_b"):
        await postgres.add_vector_store(a_store(workspace, store_id), files, CHUNKING)
    async with database.transaction() as connection:
        await connection.execute(text(by_hand), {"workspace": workspace})
    assert await file_counts(database, workspace) == {"vs_a": left, "vs_b": left}


async def test_file_count_stands_whatever_happens_at_once(
    postgres: PostgresCatalog, database: Database, workspace: WorkspaceId
) -> None:
    """Attaching, detaching, searching and deleting side by side: nothing deadlocks, nothing is miscounted."""

    async def quietly(call: Awaitable[object]) -> None:
        with contextlib.suppress(NotFound):
            await call

    for _ in range(12):
        files = [a_file(workspace) for _ in range(4)]
        stores = [a_store(workspace) for _ in range(3)]
        for file in files:
            await postgres.add_file(file)
        for store in stores:
            await postgres.add_vector_store(store, [file.id for file in files[:3]], CHUNKING)
        ids = [store.id for store in stores]
        await asyncio.gather(
            *(quietly(attach(postgres, workspace, store, file)) for store in stores for file in files),
            *(quietly(postgres.detach_file(workspace, store.id, files[0].id)) for store in stores),
            *(postgres.touch_vector_stores(workspace, order) for order in (ids, ids[::-1])),
            *(quietly(postgres.delete_file(workspace, file.id)) for file in files[1:3]),
            quietly(postgres.delete_vector_store(workspace, stores[1].id)),
            *(quietly(attach(postgres, workspace, store, file)) for store in stores for file in files),
        )
        assert stores[1].id not in await file_counts(database, workspace)


_WAITING = text("select count(*) from pg_locks where not granted and locktype = 'transactionid'")


async def test_a_file_deleted_while_a_store_is_created_is_not_found(
    postgres: PostgresCatalog, database: Database, workspace: WorkspaceId
) -> None:
    file, store = a_file(workspace), a_store(workspace)
    await postgres.add_file(file)
    async with database.transaction() as connection:
        delete = text("delete from knowledge_files where workspace_id = :workspace and id = :id")
        await connection.execute(delete, {"workspace": workspace, "id": file.id})
        creating = asyncio.ensure_future(postgres.add_vector_store(store, [file.id], CHUNKING))
        async with asyncio.timeout(60):
            while not await connection.scalar(_WAITING):  # noqa: ASYNC110 - the server tells nobody
                await asyncio.sleep(0.01)
    with pytest.raises(NotFound) as raised:
        await creating
    assert raised.value.param == "file_ids"
    with pytest.raises(NotFound):
        await postgres.get_vector_store(workspace, store.id)


async def test_a_touch_waits_for_nobody(
    postgres: PostgresCatalog, database: Database, workspace: WorkspaceId
) -> None:
    store, other = a_store(workspace), a_store(workspace)
    for new in (store, other):
        await postgres.add_vector_store(new, [], CHUNKING)
    async with database.transaction() as connection:
        lock = text(
            "select from vector_stores where workspace_id = :workspace and id = :id for no key update"
        )
        await connection.execute(lock, {"workspace": workspace, "id": store.id})
        async with asyncio.timeout(60):
            await postgres.touch_vector_stores(workspace, [store.id, other.id])
    found = await postgres.find_vector_stores(workspace, [store.id, other.id])
    assert [one.last_active_at > NOW for one in found] == [False, True]
