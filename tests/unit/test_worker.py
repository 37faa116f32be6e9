"""The worker over in-memory ports: how a job is settled, whatever becomes of it."""

import asyncio
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
from tests.fakes import InMemoryCatalog, InMemoryIngestQueue, MemoryState
from tests.fakes_files import InMemoryFileStore
from tests.fakes_index import InMemoryChunkIndex
from tests.fakes_reader import InThreadReader

from sherlock import worker
from sherlock.rag.adapters.hash_embedder import HashEmbedder
from sherlock.rag.application.ingest import Ingestor
from sherlock.rag.application.vector_stores import VectorStores
from sherlock.rag.domain.errors import Unavailable
from sherlock.rag.domain.models import (
    ChunkingStrategy,
    IngestJob,
    LastError,
    Lease,
    Published,
    StoredFile,
    Vector,
    VectorStoreFile,
    WorkspaceId,
)
from sherlock.rag.threads import run_in_thread
from sherlock.worker import Worker, owner_name

HERE = WorkspaceId("here")
LEASE_S = 0.3


class SlowEmbedder(HashEmbedder):
    """Begins and does not end until it is let go; `broken` makes it fail as a fault of ours would."""

    def __init__(self) -> None:
        super().__init__(8)
        self.begun = asyncio.Event()
        self.let_go = asyncio.Event()
        self.broken = False

    async def embed_documents(self, texts: Sequence[str]) -> list[list[Vector]]:
        self.begun.set()
        await self.let_go.wait()
        if self.broken:
            raise ZeroDivisionError("a secret out of the document")
        return await super().embed_documents(texts)


class StuckEmbedder(HashEmbedder):
    """Works in a thread that nobody can stop, as a parser does; `let_go` ends it."""

    def __init__(self) -> None:
        super().__init__(8)
        self.begun = asyncio.Event()
        self.let_go = threading.Event()

    async def embed_documents(self, texts: Sequence[str]) -> list[list[Vector]]:
        if not self.begun.is_set():
            self.begun.set()
            await run_in_thread(None, self.let_go.wait)
        return await super().embed_documents(texts)


class WatchedQueue(InMemoryIngestQueue):
    """Fails once, as a fault of ours would, in the methods named in `broken`; keeps what was given back.

    In those named in `cut` the connection breaks once: a claim is done and its answer lost.
    """

    def __init__(self, state: MemoryState, *, max_attempts: int) -> None:
        super().__init__(state, max_attempts=max_attempts)
        self.broken: set[str] = set()
        self.cut: set[str] = set()
        self.counted: list[bool] = []
        self.given_back = asyncio.Event()
        self.renewed = asyncio.Semaphore(0)
        self.vouched = asyncio.Event()

    async def claim(self, owner: str, lease_s: float) -> IngestJob | None:
        self._break("claim")
        job = await super().claim(owner, lease_s)
        if job is not None:
            self._cut("claim")
        return job

    async def renew(self, lease: Lease, lease_s: float) -> None:
        self._break("renew")
        await super().renew(lease, lease_s)
        self.renewed.release()

    async def vouch(self, owner: str) -> None:
        await super().vouch(owner)
        self.vouched.set()

    async def complete(self, lease: Lease, published: Published) -> None:
        self._break("complete")
        self._cut("complete")
        await super().complete(lease, published)

    async def retry(self, lease: Lease, delay_s: float, error: LastError, *, counted: bool) -> None:
        await super().retry(lease, delay_s, error, counted=counted)
        self.counted.append(counted)
        self.given_back.set()

    def _break(self, method: str) -> None:
        if method in self.broken:
            self.broken.remove(method)
            raise ZeroDivisionError("a secret")

    def _cut(self, method: str) -> None:
        if method in self.cut:
            self.cut.remove(method)
            raise Unavailable("The database is down.")


@dataclass
class Bench:
    catalog: InMemoryCatalog = field(default_factory=InMemoryCatalog)
    files: InMemoryFileStore = field(default_factory=InMemoryFileStore)
    embedder: SlowEmbedder = field(default_factory=SlowEmbedder)
    stop: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.embedder.let_go.set()
        self.queue = WatchedQueue(self.catalog.state, max_attempts=2)
        self.index = InMemoryChunkIndex(self.catalog.state)
        self.stores = VectorStores(self.catalog, self.index, self.embedder, ChunkingStrategy(100, 10))
        ingestor = Ingestor(self.files, self.index, self.embedder, InThreadReader())
        self.worker = Worker(self.queue, ingestor, slots=2, lease_s=LEASE_S)

    async def attach(
        self, filename: str = "note.txt", content: bytes = b"It opens at nine.", id: str = "file-1"
    ) -> str:
        """The id of a store with one queued file."""
        file = StoredFile(id, HERE, filename, "assistants", len(content), "0" * 64, 1_700_000_000)
        await self.catalog.add_file(file)
        self.files.blobs[file.blob_key] = content
        return (await self.stores.create(HERE, file_ids=[file.id])).id

    async def settled(self, store_id: str, file_id: str = "file-1") -> VectorStoreFile:
        return await self.stores.wait(HERE, store_id, file_id, 10)


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def running(bench: Bench) -> "asyncio.Task[None]":
    return asyncio.create_task(bench.worker.run(bench.stop))


async def ended(bench: Bench, work: "asyncio.Task[None]") -> None:
    bench.stop.set()
    await asyncio.wait_for(work, 5)


async def test_a_file_is_completed(bench: Bench) -> None:
    store_id = await bench.attach()
    work = await running(bench)
    member = await bench.settled(store_id)
    assert (member.status, member.chunk_count) == ("completed", 1)
    await ended(bench, work)


async def test_a_bad_document_fails_for_good_with_its_reason(bench: Bench) -> None:
    store_id = await bench.attach("note.txt", b"  \n ")
    work = await running(bench)
    member = await bench.settled(store_id)
    assert member.status == "failed"
    assert member.last_error is not None
    assert member.last_error.code == "invalid_file"
    assert await bench.queue.depth() == 0
    await ended(bench, work)


async def test_an_outage_gives_the_job_back_with_a_delay(bench: Bench) -> None:
    store_id = await bench.attach()
    bench.files.down = True
    work = await running(bench)
    await asyncio.wait_for(bench.queue.given_back.wait(), 5)
    member = await bench.stores.get_file(HERE, store_id, "file-1")
    assert member.status == "in_progress"
    assert await bench.queue.claim("another", 1) is None, "it is not due yet"
    assert bench.queue.counted == [False], "the file is not at fault"
    await ended(bench, work)


async def test_a_bug_in_the_queue_does_not_end_the_worker(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(worker, "OUTAGE_PAUSE_S", 0)
    bench.queue.broken = {"claim"}
    store_id = await bench.attach()
    work = await running(bench)
    assert (await bench.settled(store_id)).status == "completed"
    assert "the worker failed and goes on" in caplog.text
    assert "secret" not in caplog.text
    await ended(bench, work)


async def test_a_heartbeat_that_dies_of_a_bug_is_a_fault_of_ours(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.queue.broken = {"renew"}
    bench.embedder.let_go.clear()
    await bench.attach()
    work = await running(bench)
    await asyncio.wait_for(bench.queue.given_back.wait(), 5)
    assert bench.queue.counted == [True]
    assert "job lost" not in caplog.text
    await ended(bench, work)


async def test_an_error_while_completing_is_not_the_files(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job keeps its lease until that runs out, and is done again."""
    monkeypatch.setattr(worker, "OUTAGE_PAUSE_S", 0)
    monkeypatch.setattr(worker, "POLL_S", LEASE_S)
    bench.queue.broken = {"complete"}
    store_id = await bench.attach()
    work = await running(bench)
    assert (await bench.settled(store_id)).status == "completed"
    assert bench.queue.counted == []
    await ended(bench, work)


@pytest.mark.parametrize("method", ["claim", "complete"])
async def test_a_job_whose_claim_or_end_an_outage_swallowed_goes_on_at_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.setattr(worker, "OUTAGE_PAUSE_S", 0)
    bench.worker = replace(bench.worker, slots=1, lease_s=600)
    bench.queue.cut = {method}
    store_id = await bench.attach()
    work = await running(bench)
    assert (await bench.settled(store_id)).status == "completed"
    [job] = bench.catalog.state.all_jobs.values()
    assert (job.attempt, job.failures) == (2, 0)
    await ended(bench, work)


async def test_a_worker_that_finds_its_job_taken_says_that_it_lives(bench: Bench) -> None:
    bench.embedder.let_go.clear()
    await bench.attach()
    work = await running(bench)
    await bench.embedder.begun.wait()
    [job] = bench.catalog.state.jobs.values()
    job.lease_until -= 600  # it stood still for so long
    taken = await bench.queue.claim("another", 30)
    assert taken is not None
    assert job.failures == 1
    async with asyncio.timeout(5):
        await bench.queue.vouched.wait()
    assert job.failures == 0
    await bench.queue.renew(taken.lease, 30)
    await ended(bench, work)


async def test_a_fault_of_ours_never_shows_its_text(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.queue = WatchedQueue(bench.catalog.state, max_attempts=1)
    bench.worker = Worker(bench.queue, bench.worker.ingestor, slots=1, lease_s=LEASE_S)
    bench.embedder.broken = True
    store_id = await bench.attach()
    work = await running(bench)
    member = await bench.settled(store_id)
    assert member.status == "failed"
    assert member.last_error is not None
    assert member.last_error.code == "server_error"
    assert "secret" not in member.last_error.message + caplog.text
    await ended(bench, work)


async def test_a_long_job_keeps_its_lease(bench: Bench) -> None:
    bench.embedder.let_go.clear()
    store_id = await bench.attach()
    work = await running(bench)
    await bench.embedder.begun.wait()
    for _ in range(4):  # one at every third of the lease
        await asyncio.wait_for(bench.queue.renewed.acquire(), 5)
    assert await bench.queue.claim("another", 1) is None, "the heartbeat holds it"
    bench.embedder.let_go.set()
    assert (await bench.settled(store_id)).status == "completed"
    await ended(bench, work)


async def test_stopping_gives_a_running_job_back_unharmed(bench: Bench) -> None:
    bench.embedder.let_go.clear()
    await bench.attach()
    work = await running(bench)
    await bench.embedder.begun.wait()
    await ended(bench, work)
    job = await bench.queue.claim("another", 30)
    assert job is not None, "it is due at once"
    assert job.lease.attempt == 2


async def test_a_job_whose_file_is_deleted_ends_quietly(bench: Bench) -> None:
    bench.embedder.let_go.clear()
    store_id = await bench.attach()
    work = await running(bench)
    await bench.embedder.begun.wait()
    await bench.catalog.delete_file(HERE, "file-1")
    bench.embedder.let_go.set()
    member = await bench.settled(store_id)
    assert (member.status, member.last_error and member.last_error.message) == (
        "failed",
        "file deleted during ingestion",
    )
    await ended(bench, work)
    assert await bench.queue.depth() == 0


async def test_a_cancelled_job_leaves_its_slot_to_the_next_one(bench: Bench) -> None:
    bench.embedder.let_go.clear()
    bench.worker = Worker(bench.queue, bench.worker.ingestor, slots=1, lease_s=600)
    store_id = await bench.attach()
    work = await running(bench)
    await bench.embedder.begun.wait()
    await bench.catalog.cancel_file(HERE, store_id, "file-1")
    bench.embedder.begun.clear()
    await bench.attach(id="file-2")
    await asyncio.wait_for(bench.embedder.begun.wait(), 2)
    assert (await bench.settled(store_id)).status == "cancelled"
    bench.embedder.let_go.set()
    await ended(bench, work)


async def test_what_runs_in_a_thread_runs_out_beside_the_next_job(bench: Bench) -> None:
    stuck = StuckEmbedder()
    bench.worker = Worker(bench.queue, replace(bench.worker.ingestor, embedder=stuck), slots=1, lease_s=600)
    store_id = await bench.attach()
    work = await running(bench)
    await stuck.begun.wait()
    began = time.monotonic()
    await bench.catalog.cancel_file(HERE, store_id, "file-1")
    other_store = await bench.attach(id="file-2")
    assert (await bench.settled(other_store, "file-2")).status == "completed"
    assert time.monotonic() - began < 2
    bench.stop.set()
    await asyncio.sleep(0.05)
    assert not work.done(), "it ends after what it began"
    stuck.let_go.set()
    await ended(bench, work)
    assert (await bench.settled(store_id)).status == "cancelled"
    assert (await bench.stores.file_text(HERE, store_id, "file-1")) == ""


async def test_remnants_take_at_most_as_many_places_as_there_are_slots(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "RUN_OUT_S", 0.01)
    remnants = [StuckEmbedder() for _ in range(3)]
    ingestor = bench.worker.ingestor

    class OneAfterTheOther(HashEmbedder):
        async def embed_documents(self, texts: Sequence[str]) -> list[list[Vector]]:
            stuck = next(one for one in remnants if not one.begun.is_set())
            return await stuck.embed_documents(texts)

    bench.worker = Worker(bench.queue, replace(ingestor, embedder=OneAfterTheOther(8)), slots=1, lease_s=600)
    work = await running(bench)
    for number, stuck in enumerate(remnants[:2]):
        store_id = await bench.attach(id=f"file-{number}")
        await asyncio.wait_for(stuck.begun.wait(), 2)
        await bench.catalog.cancel_file(HERE, store_id, f"file-{number}")
    await bench.attach(id="file-2")
    await asyncio.sleep(0.2)
    assert not remnants[2].begun.is_set(), "a second remnant keeps the slot"
    remnants[0].let_go.set()
    await asyncio.wait_for(remnants[2].begun.wait(), 2)
    for stuck in remnants:
        stuck.let_go.set()
    await ended(bench, work)


def test_owners_differ() -> None:
    assert owner_name() != owner_name()
