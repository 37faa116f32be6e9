"""Ingest jobs over in-memory ports: what is published, what is skipped, and how failures end."""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.fakes import InMemoryCatalog, InMemoryIngestQueue
from tests.fakes_files import InMemoryFileStore
from tests.fakes_index import InMemoryChunkIndex
from tests.fakes_reader import InThreadReader

from sherlock.rag import parsers
from sherlock.rag.adapters.hash_embedder import HashEmbedder
from sherlock.rag.application import spans as spans_module
from sherlock.rag.application.ingest import Ingestor, retry_delay_s
from sherlock.rag.application.vector_stores import VectorStores
from sherlock.rag.domain.errors import (
    EmbedderUnavailable,
    FileStoreUnavailable,
    IngestError,
    InvalidFile,
    LeaseLost,
    UnsupportedFile,
)
from sherlock.rag.domain.models import (
    ChunkingStrategy,
    IngestJob,
    Section,
    StoredFile,
    Vector,
    WorkspaceId,
)
from sherlock.rag.reading import BATCH_CHUNKS

HERE = WorkspaceId("here")
CHUNKING = ChunkingStrategy(100, 10)
DATA = Path(__file__).parents[1] / "data"


class CountingEmbedder(HashEmbedder):
    """Keeps what it was asked; goes down after `works_for` calls."""

    def __init__(self, works_for: int | None = None) -> None:
        super().__init__(8)
        self.asked: list[list[str]] = []
        self.works_for = works_for
        self.begun = asyncio.Event()

    async def embed_documents(self, texts: Sequence[str]) -> list[list[Vector]]:
        if self.works_for is not None and len(self.asked) >= self.works_for:
            raise EmbedderUnavailable("The encoder is not loaded.")
        self.asked.append([*texts])
        self.begun.set()
        return await super().embed_documents(texts)


@dataclass
class Bench:
    """Everything a job needs, in memory."""

    catalog: InMemoryCatalog = field(default_factory=InMemoryCatalog)
    files: InMemoryFileStore = field(default_factory=InMemoryFileStore)
    embedder: CountingEmbedder = field(default_factory=CountingEmbedder)
    reader: InThreadReader = field(default_factory=InThreadReader)

    def __post_init__(self) -> None:
        self.queue = InMemoryIngestQueue(self.catalog.state)
        self.index = InMemoryChunkIndex(self.catalog.state)
        self.stores = VectorStores(self.catalog, self.index, self.embedder, CHUNKING)
        self.ingestor = Ingestor(self.files, self.index, self.embedder, self.reader)

    async def job(self, filename: str, content: bytes) -> IngestJob:
        """A claimed job for a file with this content."""
        file = StoredFile("file-1", HERE, filename, "assistants", len(content), "0" * 64, 1_700_000_000)
        await self.catalog.add_file(file)
        self.files.blobs[file.blob_key] = content
        await self.stores.create(HERE, file_ids=[file.id])
        return await self.claim()

    async def claim(self) -> IngestJob:
        job = await self.queue.claim("me", 30)
        assert job is not None
        return job

    async def text(self, job: IngestJob) -> str:
        return await self.stores.file_text(HERE, job.vector_store_id, job.file_id)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def long_text(lines: int = 4000) -> str:
    return "".join(f"Line {number} says that pump {number} works.\n" for number in range(lines))


async def test_a_document_becomes_chunks(bench: Bench):
    job = await bench.job("handbook.pdf", (DATA / "handbook.pdf").read_bytes())
    published = await bench.ingestor.run(job)
    await bench.queue.complete(job.lease, published)
    assert published.chunk_count >= 1
    assert "spare parts: gasket 7714" in await bench.text(job)
    member = await bench.stores.get_file(HERE, job.vector_store_id, job.file_id)
    assert (member.status, member.chunk_count) == ("completed", published.chunk_count)


@pytest.mark.parametrize("same_reader", [True, False])
async def test_a_second_store_takes_the_chunks_of_the_first(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, same_reader: bool
):
    job = await bench.job("handbook.pdf", (DATA / "handbook.pdf").read_bytes())
    first = await bench.ingestor.run(job)
    await bench.queue.complete(job.lease, first)
    if not same_reader:
        monkeypatch.setattr(bench.reader, "read_by", "a later version")
    bench.files.blobs.clear()  # reading it again would fail
    await bench.stores.create(HERE, file_ids=[job.file_id])
    again = await bench.claim()
    if same_reader:
        second = await bench.ingestor.run(again)
        await bench.queue.complete(again.lease, second)
        assert second == first
        assert await bench.text(again) == await bench.text(job)
    else:
        with pytest.raises(IngestError):
            await bench.ingestor.run(again)


async def test_chunks_are_encoded_below_their_heading(bench: Bench):
    job = await bench.job("pump.md", b"# Pump\nIt moves water.\n## Valve\n" + b"It opens. " * 600)
    await bench.ingestor.run(job)
    first, *_, last = (text for batch in bench.embedder.asked for text in batch)
    assert first.startswith("Pump\n# Pump\nIt moves water.")
    assert last.startswith("Pump > Valve\nIt opens.")
    assert "Pump > Valve" not in await bench.text(job)


async def test_long_documents_go_in_batches(bench: Bench):
    job = await bench.job("long.txt", long_text().encode())
    published = await bench.ingestor.run(job)
    assert [len(batch) for batch in bench.embedder.asked[:-1]] == [BATCH_CHUNKS] * (
        len(bench.embedder.asked) - 1
    )
    assert published.chunk_count == sum(map(len, bench.embedder.asked)) > 3 * BATCH_CHUNKS
    assert (await bench.text(job)).split() == long_text().split()


async def test_the_next_attempt_goes_on_where_the_last_one_ended():
    bench = Bench(embedder=CountingEmbedder(works_for=2))
    job = await bench.job("long.txt", long_text().encode())
    with pytest.raises(EmbedderUnavailable):
        await bench.ingestor.run(job)
    assert await bench.text(job) == ""
    await bench.queue.release(job.lease)
    bench.embedder.works_for = None
    done = {text for batch in bench.embedder.asked for text in batch}
    bench.embedder.asked.clear()
    published = await bench.ingestor.run(await bench.claim())
    again = {text for batch in bench.embedder.asked for text in batch}
    assert len(done) == 2 * BATCH_CHUNKS
    assert not done & again
    assert published.chunk_count == len(done) + len(again)


async def test_a_second_store_costs_no_encoding(bench: Bench):
    first = await bench.job("long.txt", long_text().encode())
    published = await bench.ingestor.run(first)
    await bench.queue.complete(first.lease, published)
    bench.embedder.asked.clear()
    await bench.stores.create(HERE, file_ids=[first.file_id])
    second = await bench.claim()
    assert await bench.ingestor.run(second) == published
    assert bench.embedder.asked == []
    assert await bench.text(second) == await bench.text(first)


async def test_only_what_is_new_is_encoded(bench: Bench):
    first = await bench.job("long.txt", long_text().encode())
    await bench.queue.complete(first.lease, await bench.ingestor.run(first))
    known = {text for batch in bench.embedder.asked for text in batch}
    bench.embedder.asked.clear()
    longer = long_text().encode() + b"A new last line.\n"
    file = StoredFile("file-2", HERE, "longer.txt", "assistants", len(longer), "0" * 64, 1_700_000_000)
    await bench.catalog.add_file(file)
    bench.files.blobs[file.blob_key] = longer
    await bench.stores.create(HERE, file_ids=[file.id])
    job = await bench.claim()
    await bench.ingestor.run(job)
    [[last]] = bench.embedder.asked
    assert last.endswith("A new last line.")
    assert last not in known
    assert (await bench.text(job)).split() == longer.decode().split()


async def test_a_text_that_repeats_is_encoded_once(bench: Bench):
    job = await bench.job("same.txt", b"The same.\n\n" * 2000)
    published = await bench.ingestor.run(job)
    [asked] = bench.embedder.asked[:1]
    assert len(asked) == len(set(asked)) < published.chunk_count


async def test_a_job_can_be_repeated(bench: Bench):
    job = await bench.job("a.txt", b"One short text.")
    assert await bench.ingestor.run(job) == await bench.ingestor.run(job)
    assert await bench.text(job) == "One short text."


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("empty.txt", b"", InvalidFile),
        ("scan.pdf", (DATA / "scan.pdf").read_bytes(), InvalidFile),
        ("locked.pdf", (DATA / "locked.pdf").read_bytes(), InvalidFile),
        ("a.bin", bytes(range(256)), UnsupportedFile),
    ],
)
async def test_files_that_cannot_be_read_fail_for_good(
    bench: Bench, name: str, content: bytes, error: type[IngestError]
):
    job = await bench.job(name, content)
    with pytest.raises(error):
        await bench.ingestor.run(job)
    assert await bench.text(job) == ""


async def test_bytes_that_are_gone_fail_for_good(bench: Bench):
    job = await bench.job("a.txt", b"text")
    bench.files.blobs.clear()
    with pytest.raises(IngestError, match="no longer stored"):
        await bench.ingestor.run(job)


async def test_a_store_that_is_down_or_cuts_short_is_for_later(bench: Bench):
    job = await bench.job("a.txt", b"text")
    bench.files.blobs[f"{HERE}/file-1"] = b"te"
    with pytest.raises(FileStoreUnavailable):
        await bench.ingestor.run(job)
    bench.files.down = True
    with pytest.raises(FileStoreUnavailable):
        await bench.ingestor.run(job)


async def test_a_file_deleted_meanwhile_ends_the_job(bench: Bench):
    job = await bench.job("long.txt", long_text().encode())
    running = asyncio.ensure_future(bench.ingestor.run(job))
    await bench.embedder.begun.wait()
    await bench.catalog.delete_file(HERE, job.file_id)
    with pytest.raises(LeaseLost):
        await running


async def test_a_cancelled_job_leaves_no_parser_behind(bench: Bench):
    begun, go_on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()
    found: list[bool] = []

    def slow(path: Path, filename: str) -> Iterator[Section]:
        loop.call_soon_threadsafe(begun.set)
        go_on.wait()
        found.append(path.exists())
        yield Section("text")

    bench.reader.parse = slow
    running = asyncio.ensure_future(bench.ingestor.run(await bench.job("a.txt", b"text")))
    await begun.wait()
    running.cancel()
    await asyncio.sleep(0)
    loop.call_soon(go_on.set)
    with pytest.raises(asyncio.CancelledError):
        await running
    assert found == [True], "the file stays until the parser has let go of it"


async def test_another_encoder_is_refused_before_any_work(bench: Bench):
    job = await bench.job("a.txt", b"text")
    other = Ingestor(bench.files, bench.index, HashEmbedder(16), bench.reader)
    with pytest.raises(IngestError, match="encoder"):
        await other.run(job)


async def test_the_reader_is_kept_behind_the_embedder(bench: Bench):
    sections = 0

    def watched(path: Path, filename: str) -> Iterator[Section]:
        nonlocal sections
        for section in parsers.parse(path, filename):
            sections += section.text != ""
            yield section
            # A section makes more than three batches; the next is not read before those are embedded.
            assert len(bench.embedder.asked) >= 3 * sections

    bench.reader.parse = watched
    await bench.ingestor.run(await bench.job("long.txt", long_text(6000).encode()))
    assert sections > 2


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(spans_module, "_tracer", provider.get_tracer("test"))
    return exporter


async def test_spans_name_stages_and_carry_counts_only(bench: Bench, spans: InMemorySpanExporter):
    await bench.ingestor.run(await bench.job("secret-name.txt", b"secret words"))
    finished = spans.get_finished_spans()
    # Staging goes on beside the wait for the next batch: which of the two ends first is open.
    assert sorted(span.name for span in finished) == [
        "ingest.copy", "ingest.embed", "ingest.fetch", "ingest.parse", "ingest.parse", "ingest.publish",
        "ingest.stage",
    ]  # fmt: skip
    assert all(isinstance(value, int) for span in finished for value in (span.attributes or {}).values())


async def test_spans_of_failures_carry_no_text(bench: Bench, spans: InMemorySpanExporter):
    with pytest.raises(InvalidFile):
        await bench.ingestor.run(await bench.job("a.txt", b"  "))
    failed = spans.get_finished_spans()[-1]
    assert failed.status.status_code == trace.StatusCode.ERROR
    assert failed.status.description == "InvalidFile"
    assert failed.events == ()


# ── retries ─────────────────────────────────────────────────────────────────


class Edge(Random):
    """Always the lowest, or always the highest."""

    def __init__(self, share: float) -> None:
        super().__init__(0)
        self.share = share

    def uniform(self, a: float, b: float) -> float:
        return a + (b - a) * self.share


def test_retries_back_off_up_to_a_bound():
    assert [retry_delay_s(attempt, Edge(1)) for attempt in range(1, 5)] == [2, 4, 8, 16]
    assert [retry_delay_s(attempt, Edge(0)) for attempt in range(1, 5)] == [1, 2, 4, 8]
    assert retry_delay_s(10_000, Edge(1)) == 60
    delays = {retry_delay_s(3, Random(seed)) for seed in range(20)}
    assert len(delays) == 20
    assert all(4 <= delay <= 8 for delay in delays)
