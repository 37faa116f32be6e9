"""What every `UploadRecords` does, in memory and in PostgreSQL."""

import asyncio
import secrets
import time
from dataclasses import replace

import pytest
from sqlalchemy import text
from tests.fakes import InMemoryCatalog, MemoryState
from tests.fakes_objects import InMemoryLooseObjects
from tests.fakes_uploads import InMemoryUploadRecords
from tests.ports.test_catalog import a_file

from sherlock.rag.adapters.postgres import Database
from sherlock.rag.adapters.postgres_catalog import PostgresCatalog
from sherlock.rag.adapters.postgres_loose_objects import PostgresLooseObjects
from sherlock.rag.adapters.postgres_uploads import PostgresUploadRecords
from sherlock.rag.domain.errors import (
    Conflict,
    InvalidRequest,
    NotFound,
    ReservationLost,
    UploadNotPending,
)
from sherlock.rag.domain.models import StoredFile, Upload, WorkspaceId
from sherlock.rag.domain.ports import Catalog, LooseObjects, UploadRecords

MANY = 10_000
HELD_S = 60.0


@pytest.fixture(params=["memory", "postgres"])
def records(request: pytest.FixtureRequest, database: Database) -> UploadRecords:
    if request.param == "memory":
        return InMemoryUploadRecords(MemoryState(), max_parts=5)
    return PostgresUploadRecords(database, max_parts=5)


@pytest.fixture
def catalog(records: UploadRecords, database: Database) -> Catalog:
    if isinstance(records, InMemoryUploadRecords):
        return InMemoryCatalog(records.state)
    return PostgresCatalog(database)


def an_upload(workspace: WorkspaceId, **changes: object) -> Upload:
    now = int(time.time())
    upload = Upload(
        id=f"upload_{secrets.token_hex(6)}",
        workspace_id=workspace,
        filename="Grüße 🙂.txt",
        purpose="assistants",
        bytes=12,
        created_at=now,
        expires_at=now + 3600,
    )
    return replace(upload, **changes)  # type: ignore[arg-type]


@pytest.fixture
async def upload(records: UploadRecords, workspace: WorkspaceId) -> Upload:
    upload = an_upload(workspace)
    await records.add(upload)
    return upload


async def add_part(records: UploadRecords, upload: Upload, id: str, size: int = 4) -> None:
    await records.reserve(upload.workspace_id, upload.id, id, HELD_S)
    await records.add_part(upload.workspace_id, upload.id, id, size)


async def expire(records: UploadRecords, upload: Upload, database: Database) -> None:
    """Let the upload's hour pass."""
    if isinstance(records, InMemoryUploadRecords):
        records.state.uploads[upload.workspace_id, upload.id] = replace(
            await records.get(upload.workspace_id, upload.id), expires_at=int(time.time())
        )
        return
    statement = text("update uploads set expires_at = now() where workspace_id = :w and id = :id")
    async with database.transaction() as connection:
        await connection.execute(statement, {"w": upload.workspace_id, "id": upload.id})


async def left_over_of(records: UploadRecords, workspace: WorkspaceId) -> list[str]:
    found = await records.left_over(MANY)
    return [part_id for workspace_id, part_id in found if workspace_id == workspace]


@pytest.fixture
def loose(records: UploadRecords, database: Database) -> LooseObjects:
    if isinstance(records, InMemoryUploadRecords):
        return InMemoryLooseObjects(records.state)
    return PostgresLooseObjects(database)


async def a_reserved_file(loose: LooseObjects, workspace: WorkspaceId) -> StoredFile:
    file = a_file(workspace)
    await loose.reserve(workspace, file.id, HELD_S)
    return file


async def test_an_upload_comes_back_as_it_was_added(records: UploadRecords, workspace: WorkspaceId) -> None:
    upload = an_upload(workspace, purpose="batch", file_expires_after_s=7200)
    await records.add(upload)
    assert await records.get(workspace, upload.id) == upload
    with pytest.raises(Conflict):
        await records.add(upload)


async def test_a_filename_that_cannot_be_stored_is_refused(
    records: UploadRecords, workspace: WorkspaceId
) -> None:
    for name in ("nul\0", "half \ud800 pair"):
        with pytest.raises(InvalidRequest):
            await records.add(an_upload(workspace, filename=name))


@pytest.mark.parametrize("id", ["", "upload_unknown", "x" * 5000, "nul\0", "half \ud800 pair"])
async def test_an_id_of_any_shape_is_just_not_found(
    records: UploadRecords, workspace: WorkspaceId, upload: Upload, id: str
) -> None:
    for call in (
        records.get(workspace, id),
        records.reserve(workspace, id, "part_1", HELD_S),
        records.add_part(workspace, id, "part_1", 1),
        records.complete(workspace, id, [], a_file(workspace)),
        records.cancel(workspace, id),
    ):
        with pytest.raises(NotFound):
            await call
    assert await records.parts(workspace, id, ["part_1"]) == {}
    assert await records.parts(workspace, upload.id, [id]) == {}
    assert await records.objects(workspace, id, MANY) == []
    await records.forget(workspace, [id])


async def test_a_reserved_object_is_a_part_when_its_bytes_are_there(
    records: UploadRecords, catalog: Catalog, workspace: WorkspaceId, upload: Upload
) -> None:
    assert await records.reserve(workspace, upload.id, "part_1", HELD_S) == upload.bytes
    assert await records.parts(workspace, upload.id, ["part_1"]) == {}
    assert await records.objects(workspace, upload.id, MANY) == []
    assert await catalog.recorded(workspace, ["part_1", "part_2"]) == {"part_1"}
    part = await records.add_part(workspace, upload.id, "part_1", 7)
    assert (part.id, part.upload_id, part.workspace_id, part.bytes) == ("part_1", upload.id, workspace, 7)
    assert await records.parts(workspace, upload.id, ["part_1", "part_2"]) == {"part_1": part}
    assert await records.objects(workspace, upload.id, MANY) == ["part_1"]


async def test_a_part_belongs_to_one_upload(
    records: UploadRecords, workspace: WorkspaceId, upload: Upload
) -> None:
    other = an_upload(workspace)
    await records.add(other)
    await add_part(records, other, "part_1")
    assert await records.parts(workspace, upload.id, ["part_1"]) == {}
    with pytest.raises(ReservationLost):
        await records.add_part(workspace, upload.id, "part_1", 4)


async def test_a_part_whose_reservation_was_claimed_is_none(
    records: UploadRecords, catalog: Catalog, loose: LooseObjects, workspace: WorkspaceId, upload: Upload
) -> None:
    await records.reserve(workspace, upload.id, "part_1", 0)
    assert (workspace, "part_1") in await loose.claim_due(MANY, HELD_S)
    for _ in range(2):
        with pytest.raises(ReservationLost):
            await records.add_part(workspace, upload.id, "part_1", 4)
        assert await records.parts(workspace, upload.id, ["part_1"]) == {}
        await loose.forget(workspace, "part_1")
    assert await catalog.recorded(workspace, ["part_1"]) == set()


async def test_parts_of_an_upload_are_bounded(
    records: UploadRecords, workspace: WorkspaceId, upload: Upload
) -> None:
    for number in range(5):
        await add_part(records, upload, f"part_{number}")
    with pytest.raises(InvalidRequest, match="parts"):
        await records.reserve(workspace, upload.id, "part_5", HELD_S)
    await records.forget(workspace, ["part_0", "part_1"])
    await records.reserve(workspace, upload.id, "part_5", HELD_S)


async def test_completing_makes_the_file(
    records: UploadRecords, catalog: Catalog, loose: LooseObjects, workspace: WorkspaceId, upload: Upload
) -> None:
    for id in ("part_b", "part_a"):
        await add_part(records, upload, id)
    file = await a_reserved_file(loose, workspace)
    completed = await records.complete(workspace, upload.id, ["part_b", "part_a"], file)
    assert completed == replace(upload, status="completed", part_ids=("part_b", "part_a"), file=file)
    assert await records.get(workspace, upload.id) == completed
    assert await catalog.get_file(workspace, file.id) == file
    assert await left_over_of(records, workspace) == ["part_b", "part_a"]
    assert await records.objects(workspace, upload.id, 1) == ["part_b"]
    await loose.renew(workspace, file.id, 0)
    assert (workspace, file.id) not in await loose.claim_due(MANY, HELD_S), "the reservation is over"

    await catalog.delete_file(workspace, file.id)
    assert await records.get(workspace, upload.id) == replace(completed, file=None)


async def test_a_file_that_cannot_be_added_leaves_the_upload_pending(
    records: UploadRecords, catalog: Catalog, loose: LooseObjects, workspace: WorkspaceId, upload: Upload
) -> None:
    taken = a_file(workspace)
    await catalog.add_file(taken)
    await loose.reserve(workspace, taken.id, HELD_S)
    with pytest.raises(Conflict):
        await records.complete(workspace, upload.id, [], taken)
    lost = await a_reserved_file(loose, workspace)
    assert await loose.claim(workspace, lost.id)
    with pytest.raises(ReservationLost):
        await records.complete(workspace, upload.id, [], lost)
    assert await records.get(workspace, upload.id) == upload
    with pytest.raises(NotFound):
        await catalog.get_file(workspace, lost.id)


@pytest.mark.parametrize("end", ["completed", "cancelled", "expired"])
async def test_an_ended_upload_takes_nothing_more(
    records: UploadRecords,
    catalog: Catalog,
    loose: LooseObjects,
    database: Database,
    workspace: WorkspaceId,
    upload: Upload,
    end: str,
) -> None:
    await records.reserve(workspace, upload.id, "part_late", HELD_S)
    if end == "completed":
        await records.complete(workspace, upload.id, [], await a_reserved_file(loose, workspace))
    elif end == "cancelled":
        assert (await records.cancel(workspace, upload.id)).status == "cancelled"
        assert (await records.cancel(workspace, upload.id)).status == "cancelled"
    else:
        await expire(records, upload, database)
    assert (await records.get(workspace, upload.id)).status == end
    file = await a_reserved_file(loose, workspace)
    for call in (
        records.reserve(workspace, upload.id, "part_new", HELD_S),
        records.add_part(workspace, upload.id, "part_late", 4),
        records.complete(workspace, upload.id, ["part_late"], file),
        *([] if end == "cancelled" else [records.cancel(workspace, upload.id)]),
    ):
        with pytest.raises(UploadNotPending) as refused:
            await call
        assert refused.value.code == f"upload_{end}"
    assert await records.parts(workspace, upload.id, ["part_late", "part_new"]) == {}
    still_reserved = {"part_late", file.id}
    assert await catalog.recorded(workspace, ["part_late", "part_new", file.id]) == still_reserved
    with pytest.raises(NotFound):
        await catalog.get_file(workspace, file.id)


async def test_what_is_left_over_is_found_until_it_is_forgotten(
    records: UploadRecords, workspace: WorkspaceId, upload: Upload
) -> None:
    for id in ("part_1", "part_2"):
        await add_part(records, upload, id)
    assert await left_over_of(records, workspace) == [], "the upload still goes on"
    await records.cancel(workspace, upload.id)
    assert await left_over_of(records, workspace) == ["part_1", "part_2"]
    assert len(await records.left_over(1)) == 1
    await records.forget(workspace, ["part_1", "part_unknown"])
    assert await left_over_of(records, workspace) == ["part_2"]


async def test_what_an_earlier_version_reserved_goes_after_a_day(
    database: Database, workspace: WorkspaceId
) -> None:
    records = PostgresUploadRecords(database)
    upload = an_upload(workspace)
    await records.add(upload)
    statement = text("""
        insert into upload_objects (workspace_id, upload_id, id, created_at)
        values (:workspace, :upload, 'part_old', now() - interval '25 hours'),
               (:workspace, :upload, 'part_new', now())
    """)
    async with database.transaction() as connection:
        await connection.execute(statement, {"workspace": workspace, "upload": upload.id})
    assert await left_over_of(records, workspace) == []
    await records.cancel(workspace, upload.id)
    assert await left_over_of(records, workspace) == ["part_old"]


async def test_old_uploads_are_forgotten_when_nothing_is_left_of_them(
    records: UploadRecords,
    catalog: Catalog,
    loose: LooseObjects,
    database: Database,
    workspace: WorkspaceId,
) -> None:
    old, littered, recent = (an_upload(workspace) for _ in range(3))
    for upload in (old, littered, recent):
        await records.add(upload)
    await add_part(records, littered, "part_1")
    file = await a_reserved_file(loose, workspace)
    await records.complete(workspace, old.id, [], file)
    await records.complete(workspace, recent.id, [], await a_reserved_file(loose, workspace))
    for upload in (old, littered):
        await expire(records, upload, database)
    assert await records.forget_uploads(MANY, older_than_s=3600) == 0
    await records.forget_uploads(MANY, older_than_s=0)
    with pytest.raises(NotFound):
        await records.get(workspace, old.id)
    assert (await records.get(workspace, littered.id)).status == "expired"
    assert (await records.get(workspace, recent.id)).status == "completed"
    assert await catalog.get_file(workspace, file.id) == file


async def test_another_workspace_sees_and_changes_nothing(
    records: UploadRecords, workspace: WorkspaceId, other_workspace: WorkspaceId, upload: Upload
) -> None:
    await add_part(records, upload, "part_1")
    for call in (
        records.get(other_workspace, upload.id),
        records.reserve(other_workspace, upload.id, "part_2", HELD_S),
        records.add_part(other_workspace, upload.id, "part_1", 9),
        records.complete(other_workspace, upload.id, ["part_1"], a_file(other_workspace)),
        records.cancel(other_workspace, upload.id),
    ):
        with pytest.raises(NotFound):
            await call
    assert await records.parts(other_workspace, upload.id, ["part_1"]) == {}
    assert await records.objects(other_workspace, upload.id, MANY) == []
    await records.forget(other_workspace, ["part_1"])
    assert await records.objects(workspace, upload.id, MANY) == ["part_1"]
    assert await records.get(workspace, upload.id) == upload


async def test_of_many_that_complete_at_once_one_succeeds(
    records: UploadRecords, catalog: Catalog, loose: LooseObjects, workspace: WorkspaceId, upload: Upload
) -> None:
    files = [await a_reserved_file(loose, workspace) for _ in range(8)]
    ended = await asyncio.gather(
        *(records.complete(workspace, upload.id, [], file) for file in files), return_exceptions=True
    )
    [completed] = [outcome for outcome in ended if isinstance(outcome, Upload)]
    assert sum(isinstance(outcome, UploadNotPending) for outcome in ended) == 7
    assert completed.file is not None
    for file in files:
        assert await loose.claim(workspace, file.id) == (file.id != completed.file.id)
