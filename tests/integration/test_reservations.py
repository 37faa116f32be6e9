"""Uploads and deletions among several housekeepers: what has a record stays, all else goes."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import pytest
from sqlalchemy import text
from tests.fakes_files import InMemoryFileStore
from tests.ports.test_catalog import a_file

from sherlock.rag.adapters.pgvector import PgvectorIndex
from sherlock.rag.adapters.postgres import Database
from sherlock.rag.adapters.postgres_catalog import PostgresCatalog
from sherlock.rag.adapters.postgres_ingest_requests import PostgresIngestRequests
from sherlock.rag.adapters.postgres_loose_objects import PostgresLooseObjects
from sherlock.rag.adapters.postgres_responses import PostgresResponses
from sherlock.rag.adapters.postgres_uploads import PostgresUploadRecords
from sherlock.rag.application.files import Files, UploadDetails
from sherlock.rag.application.housekeeping import Housekeeper
from sherlock.rag.application.objects import Objects
from sherlock.rag.application.uploads import Uploads
from sherlock.rag.domain.errors import ReservationLost
from sherlock.rag.domain.models import StoredFile, WorkspaceId

HELD_S = 2.0

_RUN_OUT = text("update loose_objects set due_at = now() where workspace_id = :workspace")


@dataclass
class Bench:
    database: Database
    workspace: WorkspaceId

    def __post_init__(self) -> None:
        self.catalog, self.blobs = PostgresCatalog(self.database), InMemoryFileStore()
        self.loose = PostgresLooseObjects(self.database)
        self.objects = Objects(self.loose, self.blobs, held_s=HELD_S)
        self.files = Files(self.catalog, self.blobs, self.objects, 1000)
        self.uploads = Uploads(PostgresUploadRecords(self.database), self.files, self.blobs)
        self.housekeeper = Housekeeper(
            self.catalog,
            self.blobs,
            self.uploads,
            PostgresResponses(self.database),
            PostgresIngestRequests(self.database),
            PgvectorIndex(self.database),
            self.objects,
        )

    async def upload(self, data: AsyncIterator[bytes]) -> StoredFile:
        async def details() -> UploadDetails:
            return UploadDetails("assistants")

        return await self.files.upload(self.workspace, "a.txt", data, details)

    async def kill_an_upload(self) -> str:
        """Bytes are stored, and nobody is left who would record them; the id of their object."""
        killed = a_file(self.workspace).id
        await self.loose.reserve(self.workspace, killed, 0)
        self.blobs.blobs[f"{self.workspace}/{killed}"] = b"text"
        return killed

    async def left(self) -> list[str]:
        """Ids of loose objects."""
        statement = text("select id from loose_objects where workspace_id = :workspace")
        async with self.database.transaction() as connection:
            return list(await connection.scalars(statement, {"workspace": self.workspace}))

    async def clear(self) -> None:
        """Let every reservation run out, also where it is still being renewed, and a housekeeper come by."""
        while await self.left():
            await self.database.execute(_RUN_OUT, {"workspace": self.workspace})
            await self.housekeeper.run_once()

    @asynccontextmanager
    async def housekeepers(self, count: int) -> AsyncIterator[None]:
        """So many at work, without a pause."""

        async def keep_house() -> None:
            while True:
                await self.housekeeper.run_once()

        keeping = [asyncio.ensure_future(keep_house()) for _ in range(count)]
        try:
            yield
        finally:
            for one in keeping:
                one.cancel()
            await asyncio.wait(keeping)


@pytest.fixture
def bench(database: Database, workspace: WorkspaceId) -> Bench:
    return Bench(database, workspace)


async def some_text() -> AsyncIterator[bytes]:
    yield b"text"


async def test_an_upload_may_take_longer_than_a_reservation_lasts(bench: Bench) -> None:
    begun = time.monotonic()

    async def slow_line() -> AsyncIterator[bytes]:
        while time.monotonic() < begun + 2 * HELD_S:
            yield b"x"
            await asyncio.sleep(HELD_S / 10)

    async with bench.housekeepers(2):
        file = await bench.upload(slow_line())
        upload = await bench.uploads.create(bench.workspace, filename="a", purpose="batch", size=100)
        begun = time.monotonic()
        part = await bench.uploads.add_part(bench.workspace, upload.id, slow_line())
    assert await bench.catalog.get_file(bench.workspace, file.id) == file
    assert {*bench.blobs.blobs} == {file.blob_key, f"{bench.workspace}/{part.id}"}
    assert await bench.left() == []


async def test_an_upload_that_slept_through_its_reservation_is_refused_and_leaves_nothing(
    bench: Bench,
) -> None:
    """As in a process that was frozen, and wakes up after a housekeeper has come by."""

    async def frozen() -> AsyncIterator[bytes]:
        yield b"text"
        await bench.clear()
        yield b"more"

    with pytest.raises(ReservationLost, match="send it again"):
        await bench.upload(frozen())
    upload = await bench.uploads.create(bench.workspace, filename="a", purpose="batch", size=8)
    with pytest.raises(ReservationLost):
        await bench.uploads.add_part(bench.workspace, upload.id, frozen())
    assert (bench.blobs.blobs, await bench.left()) == ({}, [])

    part = await bench.uploads.add_part(bench.workspace, upload.id, some_text())
    rest = await bench.uploads.add_part(bench.workspace, upload.id, some_text())
    sleepy = replace(bench.uploads, store=Sleepy(bench))
    with pytest.raises(ReservationLost):
        await sleepy.complete(bench.workspace, upload.id, [part.id, rest.id])
    assert len(bench.blobs.blobs) == 2, "the parts"
    completed = await bench.uploads.complete(bench.workspace, upload.id, [part.id, rest.id])
    assert completed.file is not None
    assert {*bench.blobs.blobs} == {completed.file.blob_key}
    assert await bench.left() == []


class Sleepy(InMemoryFileStore):
    """Reading a part of an upload takes so long that the file's reservation runs out."""

    def __init__(self, bench: Bench) -> None:
        super().__init__()
        self.blobs, self._bench = bench.blobs.blobs, bench

    async def read(self, key: str, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        await self._bench.clear()
        async for piece in super().read(key, start, end):
            yield piece


async def test_what_has_a_record_stays_and_all_else_goes(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    killed = [await bench.kill_an_upload() for _ in range(30)]

    async def use() -> Sequence[StoredFile]:
        kept, gone = [await bench.upload(some_text()) for _ in range(2)]
        await bench.files.delete(bench.workspace, gone.id)
        return [kept]

    async def kill_halfway() -> None:
        uploading = asyncio.ensure_future(bench.upload(some_text()))
        await asyncio.sleep(0.005)
        uploading.cancel()
        await asyncio.wait([uploading])

    with caplog.at_level(logging.WARNING):
        async with bench.housekeepers(3):
            used = await asyncio.gather(*(use() for _ in range(10)), *(kill_halfway() for _ in range(10)))
            async with asyncio.timeout(60):
                while {*await bench.left()} & {*killed}:
                    await bench.housekeeper.run_once()
    await bench.clear()
    assert [record.message for record in caplog.records] == []
    answered = {file.id for files in used if files for file in files}
    stored = {key.partition("/")[2] for key in bench.blobs.blobs}
    assert answered <= stored, "nothing of theirs is lost"
    for id in stored:
        assert (await bench.catalog.get_file(bench.workspace, id)).id == id, "nothing is stored for nobody"
