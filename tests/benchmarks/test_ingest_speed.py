"""How fast files are ingested, and how much memory that takes.

Run with `pytest -m benchmark -s tests/benchmarks/test_ingest_speed.py`. `MB` scales the largest text: 500 are
staged after a quarter of an hour, and published after an hour or two.
"""

import asyncio
import os
import random
import re
import secrets
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from sqlalchemy import text
from tests.benchmarks.test_responsiveness import book
from tests.integration.processes import deployment

from sherlock.local_models import DEFAULT_ENCODER, encoder_dimension, find_encoder
from sherlock.rag.adapters.embedder import SentenceTransformersEmbedder
from sherlock.rag.adapters.local_files import LocalFileStore
from sherlock.rag.adapters.pgvector import PgvectorIndex
from sherlock.rag.adapters.postgres import Database
from sherlock.rag.adapters.postgres_catalog import PostgresCatalog
from sherlock.rag.adapters.postgres_loose_objects import PostgresLooseObjects
from sherlock.rag.adapters.postgres_queue import PostgresIngestQueue
from sherlock.rag.adapters.reading_process import ProcessReader
from sherlock.rag.application import spans
from sherlock.rag.application.files import Files
from sherlock.rag.application.ingest import Ingestor
from sherlock.rag.application.objects import Objects
from sherlock.rag.application.vector_stores import VectorStores
from sherlock.rag.domain.models import (
    ChunkingStrategy,
    IngestJob,
    Published,
    StoredFile,
    Vector,
    WorkspaceId,
)
from sherlock.worker import Worker

pytestmark = [pytest.mark.benchmark, pytest.mark.torch, pytest.mark.timeout(7200)]

REPO = Path(__file__).parents[2]
MB = int(os.environ.get("MB", "20"))
CHUNKS = int(os.environ.get("CHUNKS", "200"))
CHUNKING = ChunkingStrategy(512, 50)

INDEXED = text("""
    select c.chunk_index, c.content, c.char_start, c.char_end, c.heading, w.part, CAST(w.embedding as text)
    from knowledge_chunks c join chunk_windows w on w.chunk_id = c.id
    where c.vector_store_id = :store and c.file_id = :file order by c.chunk_index, w.part
""")


def prose(size: int, seed: int = 1) -> Iterator[str]:
    """Paragraphs of English words, some `size` characters, no two alike."""
    dice = random.Random(seed)
    words = re.findall(r"[A-Za-z]{2,12}", (REPO / "README.md").read_text())
    while size > 0:
        paragraph = f"Item {dice.randrange(10**9)}: " + " ".join(dice.choices(words, k=90)) + ".\n\n"
        size -= len(paragraph)
        yield paragraph


# ── memory, in real processes ───────────────────────────────────────────────


class Memory:
    """The most that a worker and its reading process held, in bytes."""

    def __init__(self, worker: int) -> None:
        self._worker = psutil.Process(worker)
        self.start = self._worker.memory_info().rss
        self.worker = self.reader = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def _watch(self) -> None:
        while not self._done.wait(0.2):
            try:
                self.worker = max(self.worker, self._worker.memory_info().rss)
                children = self._worker.children()
                held = [
                    child.memory_info().rss for child in children if "sherlock.rag.reading" in child.cmdline()
                ]
            except psutil.NoSuchProcess:
                continue
            self.reader = max([self.reader, *held])

    @contextmanager
    def watched(self) -> Iterator["Memory"]:
        self._thread.start()
        yield self
        self._done.set()
        self._thread.join()


@pytest.mark.parametrize(
    ("encoder", "name", "make"),
    [
        pytest.param("hash", "text.txt", lambda: "".join(prose(MB << 20)).encode(), id="text-hash"),
        pytest.param("", "text.txt", lambda: "".join(prose(10 << 20)).encode(), id="text"),
        pytest.param("hash", "book.pdf", lambda: book(3_000, seed=1), id="pdf-hash"),
    ],
)
def test_memory(folder: Path, encoder: str, name: str, make: Callable[[], bytes]) -> None:
    content = make()
    chosen = {"encoder_model": encoder} if encoder else {}
    running = deployment(
        folder, ready_path="/health", max_file_bytes=str(1 << 30), reranker_model="none", **chosen
    )
    with running.running("serve", "worker") as [_, worker]:
        client = running.client()
        store = client.vector_stores.create()
        warm = client.files.create(file=("warm.txt", b"warm"), purpose="assistants")
        client.vector_stores.files.create_and_poll(warm.id, vector_store_id=store.id)
        stored = client.files.create(file=(name, content), purpose="assistants", timeout=600)
        with Memory(worker.popen.pid).watched() as memory:
            began = time.monotonic()
            member = client.vector_stores.files.create_and_poll(
                stored.id, vector_store_id=store.id, poll_interval_ms=500
            )
            seconds = time.monotonic() - began
    print(
        f"\n{name}, {len(content) / 1e6:.1f} MB, {encoder or 'real encoder'}: {member.status} in "
        f"{seconds:.0f} s; worker {memory.start >> 20} MiB before, {memory.worker >> 20} at most; "
        f"reader {memory.reader >> 20}"
    )
    assert member.status == "completed"
    assert memory.reader < 1 << 30
    assert memory.worker - memory.start < 1 << 30


# ── speed, with the real encoder ────────────────────────────────────────────


@pytest.fixture
async def embedder(tmp_path: Path) -> AsyncIterator[SentenceTransformersEmbedder]:
    found = find_encoder(DEFAULT_ENCODER, tmp_path)
    assert found is not None
    made = SentenceTransformersEmbedder(
        found.name, lambda: found.folder, dimension=encoder_dimension(found.folder)
    )
    await made.embed_query("load")
    yield made
    await made.close()


class Watched:
    """The encoder, and how long somebody waited for it: the rest of the time it had nothing to do."""

    def __init__(self, embedder: SentenceTransformersEmbedder) -> None:
        self.encoder = embedder.encoder
        self.embed_query, self.embed_texts = embedder.embed_query, embedder.embed_texts
        self.status = embedder.status
        self.busy_s = 0.0
        self._embedder = embedder
        self._waiting = 0
        self._since = 0.0

    async def embed_documents(self, texts: Sequence[str]) -> list[list[Vector]]:
        if not self._waiting:
            self._since = time.perf_counter()
        self._waiting += 1
        try:
            return await self._embedder.embed_documents(texts)
        finally:
            self._waiting -= 1
            if not self._waiting:
                self.busy_s += time.perf_counter() - self._since


class Bench:
    """A worker's parts over the real database."""

    def __init__(
        self, database: Database, workspace: WorkspaceId, embedder: SentenceTransformersEmbedder, folder: Path
    ) -> None:
        self.workspace, self.embedder, self.folder = workspace, embedder, folder
        self.watched = Watched(embedder)
        self.catalog = PostgresCatalog(database)
        self.index = PgvectorIndex(database)
        self.queue = PostgresIngestQueue(database)
        self.store = LocalFileStore(folder / "files")
        objects = Objects(PostgresLooseObjects(database), self.store)
        self.files = Files(self.catalog, self.store, objects, 1 << 30)
        self.stores = VectorStores(self.catalog, self.index, embedder, CHUNKING)
        self.reader = ProcessReader(memory_bytes=1 << 30, timeout_s=900)
        self.ingestor = Ingestor(self.store, self.index, self.watched, self.reader)

    async def upload(self, name: str, content: bytes) -> StoredFile:
        async def once() -> AsyncIterator[bytes]:
            yield content

        file = StoredFile(
            f"file-{secrets.token_hex(8)}", self.workspace, name, "assistants", len(content), "0" * 64, 1
        )
        await self.store.put(file.blob_key, once())
        await self.catalog.add_file(file)
        return file

    async def close(self) -> None:
        await self.reader.close()
        await self.queue.close()
        await self.store.close()


@pytest.fixture
async def bench(
    database: Database, workspace: WorkspaceId, embedder: SentenceTransformersEmbedder, tmp_path: Path
) -> AsyncIterator[Bench]:
    made = Bench(database, workspace, embedder, tmp_path)
    yield made
    await made.close()


async def test_the_encoder_is_kept_busy(bench: Bench, tmp_path: Path) -> None:
    """Ingesting a long file takes little more than encoding its chunks.

    The share of the time in which the encoder has work comes from one run. How fast it works meanwhile is
    compared with runs before and after, which say little on a machine that has other things to do.
    """
    path = tmp_path / "text"
    path.write_text("".join(prose(400_000)))
    file = await bench.upload("text.txt", path.read_bytes())
    batches = [batch async for batch in bench.reader.chunks(path, "text.txt", CHUNKING)]

    async def encode() -> float:
        began = time.perf_counter()
        for batch in batches:
            await bench.embedder.embed_documents([made.text for made in batch])
        return time.perf_counter() - began

    before = await encode()
    await bench.stores.create(bench.workspace, file_ids=[file.id])
    job = await bench.queue.claim("bench", 600)
    assert job is not None
    began = time.perf_counter()
    published = await bench.ingestor.run(job)
    ingesting = time.perf_counter() - began
    encoding = (before + await encode()) / 2  # before and after: other processes come and go
    busy = bench.watched.busy_s / ingesting
    print(
        f"\n{published.chunk_count} chunks, {published.window_count} windows: encoded in {encoding:.1f} s, "
        f"ingested in {ingesting:.1f} s: {encoding / ingesting:.0%} of the speed of encoding alone; "
        f"the encoder had work for {busy:.0%} of the time"
    )
    assert busy > 0.85


@pytest.mark.parametrize("slots", [1, 2, 4, 8])
async def test_many_small_files(bench: Bench, slots: int) -> None:
    count = 200
    notes = prose(1 << 20, seed=slots)
    files = [await bench.upload("note.txt", next(notes)[:100].encode()) for _ in range(count)]
    store = await bench.stores.create(bench.workspace, file_ids=[file.id for file in files])
    worker = Worker(bench.queue, bench.ingestor, slots=slots, lease_s=60)
    stop = asyncio.Event()
    began = time.perf_counter()
    working = asyncio.create_task(worker.run(stop))
    while (await bench.stores.get(bench.workspace, store.id)).file_counts.in_progress:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    seconds = time.perf_counter() - began
    stop.set()
    await working
    print(
        f"\n{count} files of 100 characters, {slots} slots: {count / seconds:.0f} files/s; "
        f"the encoder had work for {bench.watched.busy_s / seconds:.0%} of the time"
    )
    assert (await bench.stores.get(bench.workspace, store.id)).file_counts.completed == count


@pytest.mark.parametrize("tokens", [160, 512])
async def test_a_second_store_costs_no_encoding(bench: Bench, database: Database, tokens: int) -> None:
    """The same file in another store: no text is encoded, chunks and vectors are the same.

    Chunks of 160 tokens fit into one window of the encoder, those of 512 take three.
    """
    chunking = ChunkingStrategy(tokens, tokens // 10)
    stores = VectorStores(bench.catalog, bench.index, bench.embedder, chunking)
    file = await bench.upload("text.txt", "".join(prose(CHUNKS * tokens * 43 // 10)).encode())

    async def ingest() -> tuple[float, IngestJob, Published]:
        await stores.create(bench.workspace, file_ids=[file.id])
        job = await bench.queue.claim("bench", 3600)
        assert job is not None
        with measured_stages() as stages:
            began = time.perf_counter()
            published = await bench.ingestor.run(job)
            seconds = time.perf_counter() - began
        await bench.queue.complete(job.lease, published)
        parts = ", ".join(f"{name} {took:.2f}" for name, took in stages.items())
        print(
            f"\n{published.chunk_count} chunks, {published.window_count} windows: {seconds:.2f} s ({parts})"
        )
        return seconds, job, published

    first_s, first, published = await ingest()
    again_s, again, published_again = await ingest()
    await ingest()
    assert published_again == published
    assert await indexed(database, again) == await indexed(database, first)
    assert again_s < first_s / 10


@contextmanager
def measured_stages() -> Iterator[dict[str, float]]:
    """Seconds by stage, filled in at the end."""
    exporter, provider, stages = InMemorySpanExporter(), TracerProvider(), dict[str, float]()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spans, "_tracer", provider.get_tracer("bench"))
        yield stages
    for span in exporter.get_finished_spans():
        took = ((span.end_time or 0) - (span.start_time or 0)) / 1e9
        stages[span.name] = stages.get(span.name, 0) + took


async def indexed(database: Database, job: IngestJob) -> list[tuple[object, ...]]:
    async with database.transaction() as connection:
        rows = await connection.execute(INDEXED, {"store": job.vector_store_id, "file": job.file_id})
        return [tuple(row) for row in rows]
