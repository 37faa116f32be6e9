"""How files and vector stores expire, in every `Catalog`."""

import asyncio
import time
from dataclasses import replace

import pytest
from sqlalchemy import text
from tests.fakes import InMemoryCatalog
from tests.ports.test_catalog import CHUNKING, a_file, a_store, attach

from sherlock.rag.adapters.postgres import Database
from sherlock.rag.adapters.postgres_catalog import PostgresCatalog
from sherlock.rag.domain.errors import NotFound, VectorStoreExpired
from sherlock.rag.domain.models import PageRequest, StoredFile, VectorStore, VectorStoreChanges, WorkspaceId
from sherlock.rag.domain.ports import Catalog

DAY_S = 86_400
MANY = 10_000


@pytest.fixture(params=["memory", "postgres"])
def catalog(request: pytest.FixtureRequest, database: Database) -> Catalog:
    return InMemoryCatalog() if request.param == "memory" else PostgresCatalog(database)


async def expire(catalog: Catalog, file: StoredFile, database: Database) -> None:
    """Let the file's time pass."""
    if isinstance(catalog, InMemoryCatalog):
        catalog.state.files[file.workspace_id, file.id] = replace(file, expires_at=1)
        return
    statement = text("update knowledge_files set expires_at = now() where workspace_id = :w and id = :id")
    async with database.transaction() as connection:
        await connection.execute(statement, {"w": file.workspace_id, "id": file.id})


async def expired_files_of(catalog: Catalog, workspace: WorkspaceId) -> list[str]:
    return [file.id for file in await catalog.expired_files(MANY) if file.workspace_id == workspace]


async def expired_memberships_of(catalog: Catalog, workspace: WorkspaceId) -> set[tuple[str, str]]:
    return {(store, file) for ws, store, file in await catalog.expired_memberships(MANY) if ws == workspace}


async def aged_store(
    catalog: Catalog, workspace: WorkspaceId, id: str = "", **changes: object
) -> VectorStore:
    """Not used for two days; it expires after three."""
    idle_since = int(time.time()) - 2 * DAY_S
    store = a_store(workspace, id, last_active_at=idle_since, expires_after_days=3, **changes)
    return await catalog.add_vector_store(store, [], CHUNKING)


async def overdue_store(catalog: Catalog, workspace: WorkspaceId, *file_ids: str) -> VectorStore:
    idle_since = int(time.time()) - 2 * DAY_S
    store = a_store(workspace, last_active_at=idle_since, expires_after_days=2)
    return await catalog.add_vector_store(store, file_ids, CHUNKING)


# ── files ──


async def test_an_expired_file_is_as_good_as_deleted(
    catalog: Catalog, workspace: WorkspaceId, database: Database
) -> None:
    soon = int(time.time()) + 3600
    kept, gone = (a_file(workspace, f"file-{name}", expires_at=soon) for name in ("kept", "gone"))
    for file in (kept, gone):
        await catalog.add_file(file)
    store = await catalog.add_vector_store(a_store(workspace), [kept.id, gone.id], CHUNKING)
    other = await catalog.add_vector_store(a_store(workspace), [], CHUNKING)
    assert set((await catalog.list_files(workspace, PageRequest())).items) == {kept, gone}
    await expire(catalog, gone, database)

    for call in (
        catalog.get_file(workspace, gone.id),
        catalog.delete_file(workspace, gone.id),
        catalog.get_membership(workspace, store.id, gone.id),
        catalog.update_attributes(workspace, store.id, gone.id, {"a": 1.0}),
        attach(catalog, workspace, store, gone),
        attach(catalog, workspace, other, gone),
        catalog.add_vector_store(a_store(workspace), [gone.id], CHUNKING),
    ):
        with pytest.raises(NotFound):
            await call
    assert (await catalog.list_files(workspace, PageRequest())).items == (kept,)
    listed = await catalog.list_memberships(workspace, store.id, PageRequest())
    assert [member.file_id for member in listed.items] == [kept.id]
    # A client that is in the middle of a list goes on.
    after = PageRequest(order="asc", after=gone.id)
    assert (await catalog.list_files(workspace, after)).items == ()


async def test_expired_files_are_removed_when_they_are_in_no_store(
    catalog: Catalog, workspace: WorkspaceId
) -> None:
    now = int(time.time())
    for id, expires_at in (
        ("file-b", now - 60),
        ("file-a", now - 120),
        ("file-c", now + 60),
        ("file-d", None),
    ):
        await catalog.add_file(a_file(workspace, id, expires_at=expires_at))
    assert await expired_files_of(catalog, workspace) == ["file-a", "file-b"]
    for id in ("file-a", "file-c", "file-d", "file-unknown"):
        await catalog.remove_expired_file(workspace, id)
    assert await expired_files_of(catalog, workspace) == ["file-b"]
    assert await catalog.recorded(workspace, ["file-a", "file-b", "file-c", "file-d", "nul\0"]) == {
        "file-b",
        "file-c",
        "file-d",
    }
    assert len(await catalog.expired_files(1)) == 1


async def test_memberships_of_expired_files_go_first(
    catalog: Catalog, workspace: WorkspaceId, database: Database
) -> None:
    file = a_file(workspace, expires_at=int(time.time()) + 3600)
    await catalog.add_file(file)
    store = await catalog.add_vector_store(a_store(workspace), [file.id], CHUNKING)
    assert await expired_memberships_of(catalog, workspace) == set()
    await expire(catalog, file, database)
    assert await expired_memberships_of(catalog, workspace) == {(store.id, file.id)}
    assert await expired_files_of(catalog, workspace) == []
    await catalog.detach_file(workspace, store.id, file.id)
    assert await expired_memberships_of(catalog, workspace) == set()
    assert await expired_files_of(catalog, workspace) == [file.id]


async def test_what_is_recorded_is_told_of_one_workspace(
    catalog: Catalog, workspace: WorkspaceId, other_workspace: WorkspaceId
) -> None:
    await catalog.add_file(a_file(workspace, "file-1"))
    assert await catalog.recorded(other_workspace, ["file-1"]) == set()
    await catalog.remove_expired_file(other_workspace, "file-1")
    assert await catalog.recorded(workspace, ["file-1"]) == {"file-1"}


# ── vector stores ──


async def test_a_store_expires_so_many_days_after_it_was_last_active(
    catalog: Catalog, workspace: WorkspaceId
) -> None:
    active, overdue = await aged_store(catalog, workspace), await overdue_store(catalog, workspace)
    endless = await catalog.add_vector_store(a_store(workspace, last_active_at=1), [], CHUNKING)
    assert [store.status for store in (active, overdue, endless)] == ["completed", "expired", "completed"]
    assert overdue.expires_at == overdue.last_active_at + 2 * DAY_S
    assert (await catalog.get_vector_store(workspace, overdue.id)).status == "expired"
    [found] = await catalog.find_vector_stores(workspace, [overdue.id])
    assert found.status == "expired"
    listed = {s.id: s.status for s in (await catalog.list_vector_stores(workspace, PageRequest())).items}
    assert listed == {active.id: "completed", overdue.id: "expired", endless.id: "completed"}


async def test_an_expired_store_takes_no_files(catalog: Catalog, workspace: WorkspaceId) -> None:
    attached, fresh = a_file(workspace), a_file(workspace)
    for file in (attached, fresh):
        await catalog.add_file(file)
    store = await overdue_store(catalog, workspace, attached.id)
    for file in (attached, fresh):
        with pytest.raises(VectorStoreExpired) as refused:
            await attach(catalog, workspace, store, file)
        assert refused.value.code == "vector_store_expired"
    with pytest.raises(NotFound):
        await catalog.get_membership(workspace, store.id, fresh.id)


@pytest.mark.parametrize("noted", [False, True])
async def test_nothing_revives_an_expired_store(
    catalog: Catalog, workspace: WorkspaceId, *, noted: bool
) -> None:
    store = await overdue_store(catalog, workspace)
    if noted:
        assert await catalog.expire_vector_stores(MANY) >= 1
    await catalog.touch_vector_stores(workspace, [store.id])
    for days in (365, None):
        with pytest.raises(VectorStoreExpired) as refused:
            await catalog.update_vector_store(
                workspace, store.id, VectorStoreChanges(name="no", expires_after_days=days)
            )
        assert refused.value.param == "expires_after"
    changes = VectorStoreChanges(name="in memory of", metadata={"a": "b"})
    renamed = await catalog.update_vector_store(workspace, store.id, changes)
    assert (renamed.name, renamed.metadata, renamed.status) == ("in memory of", {"a": "b"}, "expired")
    assert renamed.last_active_at == store.last_active_at
    await catalog.delete_vector_store(workspace, store.id)
    with pytest.raises(NotFound):
        await catalog.get_vector_store(workspace, store.id)


async def test_activity_puts_expiry_off(catalog: Catalog, workspace: WorkspaceId) -> None:
    file = a_file(workspace)
    await catalog.add_file(file)
    searched, filled, refilled, renamed = [await aged_store(catalog, workspace) for _ in range(4)]
    await attach(catalog, workspace, refilled, file)
    now = int(time.time())
    await catalog.touch_vector_stores(workspace, [searched.id])
    await attach(catalog, workspace, filled, file)
    await attach(catalog, workspace, refilled, file)
    await catalog.update_vector_store(workspace, renamed.id, VectorStoreChanges(name="new"))
    for store in (searched, filled, refilled, renamed):
        assert (await catalog.get_vector_store(workspace, store.id)).last_active_at >= now - 1


async def test_what_is_in_an_expired_store_is_found_to_be_removed(
    catalog: Catalog, workspace: WorkspaceId
) -> None:
    files = [a_file(workspace, f"file-{number}") for number in range(3)]
    for file in files:
        await catalog.add_file(file)
    ids = [file.id for file in files]
    store = await overdue_store(catalog, workspace, *ids)
    await catalog.add_vector_store(a_store(workspace), ids, CHUNKING)
    assert await expired_memberships_of(catalog, workspace) == set(), "not before it has been noted"
    assert await catalog.expire_vector_stores(MANY) >= 1
    assert await catalog.expire_vector_stores(MANY) == 0
    assert await expired_memberships_of(catalog, workspace) == {(store.id, id) for id in ids}
    assert len(await catalog.expired_memberships(2)) == 2
    for id in ids:
        await catalog.detach_file(workspace, store.id, id)
    assert await expired_memberships_of(catalog, workspace) == set()
    assert (await catalog.get_vector_store(workspace, store.id)).file_counts.total == 0
    assert len((await catalog.list_files(workspace, PageRequest())).items) == 3, "the files stay"


async def test_a_store_that_is_in_use_is_not_found_overdue(
    database: Database, workspace: WorkspaceId
) -> None:
    """Attaching holds the store until it commits, and then it is active."""
    catalog = PostgresCatalog(database)
    store = await overdue_store(catalog, workspace)
    active = text("update vector_stores set last_active_at = now() where workspace_id = :w and id = :id")
    async with database.transaction() as connection:
        await connection.execute(active, {"w": workspace, "id": store.id})
        assert await asyncio.wait_for(catalog.expire_vector_stores(MANY), 5) == 0
    assert await catalog.expire_vector_stores(MANY) == 0
    assert (await catalog.get_vector_store(workspace, store.id)).status == "completed"
