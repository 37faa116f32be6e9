"""Housekeeping: what expires is removed, and one duty that fails does not stop the others."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace

import pytest
from tests.fakes import InMemoryCatalog, MemoryState
from tests.fakes_files import InMemoryFileStore
from tests.fakes_index import InMemoryChunkIndex
from tests.fakes_objects import InMemoryLooseObjects
from tests.fakes_requests import InMemoryIngestRequests
from tests.fakes_responses import InMemoryResponses
from tests.fakes_uploads import InMemoryUploadRecords

from sherlock.rag.adapters.hash_embedder import HashEmbedder
from sherlock.rag.application import housekeeping
from sherlock.rag.application.files import Files, UploadDetails
from sherlock.rag.application.housekeeping import Duty, Housekeeper
from sherlock.rag.application.objects import Objects
from sherlock.rag.application.uploads import Uploads
from sherlock.rag.domain.errors import FileStoreUnavailable
from sherlock.rag.domain.messages import IngestRequest
from sherlock.rag.domain.models import (
    RESPONSE_LIFE_S,
    ChunkingStrategy,
    PageRequest,
    StoredFile,
    StoredResponse,
    VectorStore,
    WorkspaceId,
)
from sherlock.worker import keep_house

HERE, ELSEWHERE = WorkspaceId("here"), WorkspaceId("elsewhere")
CHUNKING = ChunkingStrategy(512, 50)


class Bench:
    def __init__(self) -> None:
        self.state = MemoryState()
        self.catalog, self.store = InMemoryCatalog(self.state), InMemoryFileStore()
        self.objects = Objects(InMemoryLooseObjects(self.state), self.store)
        self.files = Files(self.catalog, self.store, self.objects, max_file_bytes=1000)
        self.uploads = Uploads(InMemoryUploadRecords(self.state), self.files, self.store)
        self.responses = InMemoryResponses()
        self.requests = InMemoryIngestRequests(self.state)
        self.index = InMemoryChunkIndex(self.state)
        self.housekeeper = Housekeeper(
            self.catalog, self.store, self.uploads, self.responses, self.requests, self.index, self.objects
        )

    async def add_file(self, workspace: WorkspaceId = HERE, *, expired: bool = True) -> StoredFile:
        async def data() -> AsyncIterator[bytes]:
            yield b"text"

        async def details() -> UploadDetails:
            return UploadDetails("assistants", 3600)

        file = await self.files.upload(workspace, "a.txt", data(), details)
        return replace(file, expires_at=1) if expired else file

    def let_pass(self, *files: StoredFile) -> None:
        for file in files:
            self.state.files[file.workspace_id, file.id] = file

    async def add_store(self, *files: StoredFile, idle_since: int | None = None) -> VectorStore:
        now = int(time.time())
        store = VectorStore(
            id=f"vs_{len(self.state.stores)}",
            workspace_id=HERE,
            name="",
            description=None,
            metadata=None,
            encoder=HashEmbedder().encoder,
            created_at=now,
            last_active_at=now if idle_since is None else idle_since,
            expires_after_days=1,
        )
        return await self.catalog.add_vector_store(store, [file.id for file in files], CHUNKING)


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_expired_files_go_with_all_that_came_of_them(bench: Bench) -> None:
    gone, theirs = await bench.add_file(), await bench.add_file(ELSEWHERE)
    kept = await bench.add_file(expired=False)
    store = await bench.add_store(gone, kept)
    bench.let_pass(gone, theirs)
    await bench.housekeeper.run_once()
    assert set(bench.state.files) == {(HERE, kept.id)}
    assert {*bench.store.blobs} == {kept.blob_key}
    assert set(bench.state.memberships) == {(HERE, store.id, kept.id)}


async def test_expired_stores_are_emptied_and_stay(bench: Bench) -> None:
    file = await bench.add_file(expired=False)
    expired = await bench.add_store(file, idle_since=1)
    active = await bench.add_store(file)
    await bench.housekeeper.run_once()
    assert set(bench.state.memberships) == {(HERE, active.id, file.id)}
    shown = await bench.catalog.list_vector_stores(HERE, PageRequest())
    assert {store.id: store.status for store in shown.items} == {
        expired.id: "expired",
        active.id: "in_progress",
    }
    assert await bench.catalog.get_file(HERE, file.id) == file


async def test_bytes_go_before_their_record(bench: Bench) -> None:
    file = await bench.add_file()
    bench.let_pass(file)
    bench.store.down = True
    await bench.housekeeper.run_once()
    assert set(bench.state.files) == {(HERE, file.id)}
    bench.store.down = False
    await bench.housekeeper.run_once()
    assert (bench.state.files, bench.store.blobs) == ({}, {})


async def test_left_over_parts_and_old_uploads_go(bench: Bench) -> None:
    async def data() -> AsyncIterator[bytes]:
        yield b"part"

    upload = await bench.uploads.create(HERE, filename="a", purpose="batch", size=4)
    await bench.uploads.add_part(HERE, upload.id, data())
    await bench.housekeeper.run_once()
    assert len(bench.store.blobs) == 1
    bench.state.uploads[HERE, upload.id] = replace(upload, expires_at=int(time.time()))
    await bench.housekeeper.run_once()
    assert bench.store.blobs == {}
    assert set(bench.state.uploads) == {(HERE, upload.id)}
    bench.state.uploads[HERE, upload.id] = replace(upload, expires_at=1)
    await bench.housekeeper.run_once()
    assert bench.state.uploads == {}


async def test_deleted_files_go_when_the_file_store_is_back(bench: Bench) -> None:
    stuck, kept = [await bench.add_file(expired=False) for _ in range(2)]
    bench.store.down = True
    await bench.files.delete(HERE, stuck.id)
    await bench.housekeeper.run_once()
    assert {*bench.store.blobs} == {stuck.blob_key, kept.blob_key}
    bench.store.down = False
    await bench.housekeeper.run_once()
    assert len(bench.store.blobs) == 2, "not every round tries again"
    bench.state.loose_objects[HERE, stuck.id].due_at = 0  # a minute passes
    await bench.housekeeper.run_once()
    assert ({*bench.store.blobs}, bench.state.loose_objects) == ({kept.blob_key}, {})


async def test_what_a_killed_upload_stored_goes_when_its_time_is_up(bench: Bench) -> None:
    for id, for_s in (("file-killed", 0.0), ("file-alive", 60.0)):
        await bench.objects.loose.reserve(HERE, id, for_s)
        bench.store.blobs[f"{HERE}/{id}"] = b"text"
    await bench.housekeeper.run_once()
    assert {*bench.store.blobs} == {f"{HERE}/file-alive"}
    assert {*bench.state.loose_objects} == {(HERE, "file-alive")}


async def test_much_is_done_in_small_rounds(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(housekeeping, "BATCH", 3)
    bench.let_pass(*[await bench.add_file() for _ in range(7)])
    assert await bench.housekeeper.run_once()
    assert len(bench.state.files) == 4
    assert await bench.housekeeper.run_once()
    assert not await bench.housekeeper.run_once()
    assert bench.state.files == {}


async def test_any_number_may_be_at_work(bench: Bench) -> None:
    files = [await bench.add_file() for _ in range(20)]
    await bench.add_store(*files)
    bench.let_pass(*files)
    await asyncio.gather(*(bench.housekeeper.run_once() for _ in range(4)))
    assert (bench.state.files, bench.state.memberships, bench.store.blobs) == ({}, {}, {})


async def test_responses_are_forgotten_after_their_time(bench: Bench) -> None:
    now = int(time.time())
    for response_id, created_at in (("resp_old", now - RESPONSE_LIFE_S - 1), ("resp_new", now)):
        await bench.responses.add(StoredResponse(response_id, HERE, created_at, None, {}, (), ()))
    await bench.housekeeper.run_once()
    assert [key[1] for key in bench.responses.responses] == ["resp_new"]


async def test_requests_are_forgotten_a_day_after_their_results(bench: Bench) -> None:
    old, new = (IngestRequest(HERE, message, "req_1", "vs_1", "file-1") for message in ("old", "new"))
    for request in (old, new):
        await bench.requests.add(request)
        await bench.requests.settle([request])
    bench.requests.requests[HERE, "old"].settled_at = time.time() - 86_500
    await bench.housekeeper.run_once()
    assert [key[1] for key in bench.requests.requests] == ["new"]


async def test_bytes_that_cannot_be_removed_hold_up_no_other_file(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck, gone = await bench.add_file(), await bench.add_file()
    bench.let_pass(stuck, gone)
    remove = bench.store.delete

    async def delete(key: str) -> None:
        if key == stuck.blob_key:
            raise FileStoreUnavailable
        await remove(key)

    monkeypatch.setattr(bench.store, "delete", delete)
    await bench.housekeeper.run_once()
    assert [file.id for file in bench.state.files.values()] == [stuck.id]


class Littered(InMemoryChunkIndex):
    """Publishing left three parts behind."""

    parts = 3

    async def clear_unpublished(self) -> bool:
        self.parts -= 1
        return self.parts >= 0


async def test_what_publishing_left_behind_goes_part_by_part(bench: Bench) -> None:
    index = Littered(bench.state)
    housekeeper = replace(bench.housekeeper, index=index)
    assert [await housekeeper.run_once() for _ in range(4)] == [True, True, True, False]
    assert index.parts < 0


class Faulty(Housekeeper):
    @property
    def duties(self) -> Mapping[str, Duty]:
        async def fail() -> int:
            raise ZeroDivisionError("a secret out of a document")

        return {"broken": fail, **super().duties}


async def test_a_duty_that_fails_stops_no_other(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.let_pass(await bench.add_file())
    with caplog.at_level(logging.WARNING):
        assert not await Faulty(
            bench.catalog,
            bench.store,
            bench.uploads,
            bench.responses,
            bench.requests,
            bench.index,
            bench.objects,
        ).run_once()
    assert bench.state.files == {}
    [record] = caplog.records
    assert (record.duty, record.error) == ("broken", "ZeroDivisionError")  # type: ignore[attr-defined]
    assert "secret" not in caplog.text


async def test_a_worker_keeps_house_until_it_is_stopped(bench: Bench) -> None:
    stop = asyncio.Event()
    keeping = asyncio.ensure_future(keep_house(bench.housekeeper, stop, every_s=0.01))
    bench.let_pass(await bench.add_file())
    async with asyncio.timeout(5):
        while bench.state.files:  # noqa: ASYNC110 - the worker tells nobody
            await asyncio.sleep(0.01)
    stop.set()
    async with asyncio.timeout(5):
        await keeping
