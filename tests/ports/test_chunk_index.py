"""What every `ChunkIndex` does: the in-memory one and PostgreSQL's behave alike.

A `Bench` holds the index with the catalog and queue it lives beside. The last part is about PostgreSQL alone.
"""

import asyncio
import contextlib
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import event, text
from tests.fakes import InMemoryCatalog, InMemoryIngestQueue, MemoryState
from tests.fakes_index import InMemoryChunkIndex, qualifies

from sherlock.rag.adapters import pgvector
from sherlock.rag.adapters.hash_embedder import HashEmbedder
from sherlock.rag.adapters.pgvector import PgvectorIndex
from sherlock.rag.adapters.pgvector import search as search_module
from sherlock.rag.adapters.postgres import Database
from sherlock.rag.adapters.postgres_catalog import PostgresCatalog
from sherlock.rag.adapters.postgres_queue import PostgresIngestQueue
from sherlock.rag.domain.errors import InvalidFile, InvalidRequest, LeaseLost, Unavailable
from sherlock.rag.domain.models import (
    MAX_FILTER_DEPTH,
    Attributes,
    AttributeValue,
    Candidate,
    Chunk,
    ChunkingStrategy,
    Comparison,
    Compound,
    EmbeddedChunk,
    Encoder,
    Filter,
    IndexQuery,
    IngestJob,
    LastError,
    Published,
    ReadingNotes,
    Staged,
    StoredFile,
    Vector,
    VectorStore,
    WorkspaceId,
)
from sherlock.rag.domain.ports import Catalog, ChunkIndex, IngestQueue

CHUNKING = ChunkingStrategy(512, 50)
EMBEDDER = HashEmbedder(384)
MANUAL = [
    "The feed pump stops when the oil valve closes.",
    "Error code KX-4471 means that the rotor is stuck.",
    "Bananas ripen faster beside an apple.",
]


def axis(number: int) -> Vector:
    """A unit vector; different axes are unrelated."""
    return Vector("f", [float(place == number) for place in range(384)])


@dataclass
class Bench:
    workspace: WorkspaceId
    catalog: Catalog
    queue: IngestQueue
    index: ChunkIndex

    async def add_store(self, workspace: WorkspaceId | None = None) -> str:
        now = int(time.time())
        store = VectorStore(
            id=f"vs_{secrets.token_hex(8)}",
            workspace_id=workspace or self.workspace,
            name="",
            description=None,
            metadata=None,
            encoder=EMBEDDER.encoder,
            created_at=now,
            last_active_at=now,
        )
        return (await self.catalog.add_vector_store(store, [], CHUNKING)).id

    async def add_file(self, workspace: WorkspaceId | None = None) -> str:
        file = StoredFile(
            id=f"file-{secrets.token_hex(8)}",
            workspace_id=workspace or self.workspace,
            filename="manual.txt",
            purpose="assistants",
            bytes=1,
            sha256="0" * 64,
            created_at=int(time.time()),
        )
        await self.catalog.add_file(file)
        return file.id

    async def attach(
        self,
        store: str,
        file: str,
        attributes: Attributes | None = None,
        workspace: WorkspaceId | None = None,
    ) -> IngestJob:
        """The job that attaching the file queued, claimed."""
        await self.catalog.attach_file(
            workspace or self.workspace,
            store,
            file,
            attributes=attributes,
            chunking=CHUNKING,
            chunking_given=False,
        )
        return await self.claim()

    async def claim(self) -> IngestJob:
        job = await self.queue.claim("worker", lease_s=60)
        assert job is not None
        return job

    async def finish(self, job: IngestJob, chunks: Sequence[EmbeddedChunk]) -> Published:
        await self.index.stage(job.lease, chunks)
        published = await self.index.publish(job.lease, len(chunks))
        await self.queue.complete(job.lease, published)
        return published

    async def ingest(
        self,
        store: str,
        texts: Sequence[str],
        attributes: Attributes | None = None,
        *,
        file: str | None = None,
        workspace: WorkspaceId | None = None,
    ) -> str:
        file = file or await self.add_file(workspace)
        await self.finish(await self.attach(store, file, attributes, workspace), await embedded(texts))
        return file

    async def search(
        self,
        question: str,
        *stores: str,
        alpha: float = 0.7,
        candidates: int = 50,
        where: Filter | None = None,
        vector: Vector | None = None,
        workspace: WorkspaceId | None = None,
    ) -> list[Candidate]:
        if vector is None and alpha > 0:
            vector = await EMBEDDER.embed_query(question)
        query = IndexQuery(question, vector, stores, alpha, candidates, where)
        return await self.index.search(workspace or self.workspace, query)


async def embedded(texts: Sequence[str]) -> list[EmbeddedChunk]:
    windows = await EMBEDDER.embed_documents(list(texts))
    starts = [sum(map(len, texts[:number])) for number in range(len(texts))]
    return [
        EmbeddedChunk(
            Chunk(
                number,
                text,
                start,
                start + len(text),
                page=number + 1,
                heading="Part",
                gap="\n" * number,
                page_breaks=((start + 2, number + 2), (start + 5, None)),
            ),
            vectors,
        )
        for number, (text, start, vectors) in enumerate(zip(texts, starts, windows, strict=True))
    ]


def texts_of(candidates: Sequence[Candidate]) -> set[str]:
    return {candidate.text for candidate in candidates}


@pytest.fixture(params=["fake", "pgvector"])
def bench(request: pytest.FixtureRequest) -> Bench:
    if request.param == "fake":
        state = MemoryState()
        return Bench(
            WorkspaceId("ws-1"), InMemoryCatalog(state), InMemoryIngestQueue(state), InMemoryChunkIndex(state)
        )
    return request.getfixturevalue("postgres_bench")


@pytest.fixture
def postgres_bench(workspace: WorkspaceId, database: Database) -> Bench:
    return Bench(workspace, PostgresCatalog(database), PostgresIngestQueue(database), PgvectorIndex(database))


@pytest.fixture
def stranger(bench: Bench, request: pytest.FixtureRequest) -> WorkspaceId:
    if isinstance(bench.index, InMemoryChunkIndex):
        return WorkspaceId("ws-2")
    return request.getfixturevalue("other_workspace")


# ── staging and publishing ──────────────────────────────────────────────────


async def test_staged_chunks_are_kept_but_not_found(bench: Bench) -> None:
    store, file = await bench.add_store(), await bench.add_file()
    job = await bench.attach(store, file)
    assert await bench.index.staged(job.lease) == {}
    kept = (await embedded(MANUAL))[:2]
    await bench.index.stage(job.lease, kept)
    assert await bench.index.staged(job.lease) == {one.chunk.index: one.chunk.digest for one in kept}
    assert await bench.search("pump", store) == []
    assert await bench.index.chunks(bench.workspace, store, file) == []


async def test_staging_an_index_again_replaces_it(bench: Bench) -> None:
    store, file = await bench.add_store(), await bench.add_file()
    job = await bench.attach(store, file)
    await bench.index.stage(job.lease, await embedded(MANUAL))
    [other] = await embedded(["Something else."])
    await bench.index.stage(job.lease, [other])
    staged = await bench.index.staged(job.lease)
    assert staged[0] == other.chunk.digest
    assert sorted(staged) == [0, 1, 2]


async def test_publishing_counts_what_it_leaves(bench: Bench) -> None:
    store, file = await bench.add_store(), await bench.add_file()
    job = await bench.attach(store, file)
    texts = ["Übergröße", "two windows"]
    chunks = await embedded(texts)
    chunks[1] = EmbeddedChunk(chunks[1].chunk, [axis(0), axis(1)])
    published = await bench.finish(job, chunks)
    content_bytes = sum(len(text.encode()) for text in texts)
    assert published == Published(2, 3, content_bytes + 3 * 384 * 2)
    membership = await bench.catalog.get_membership(bench.workspace, store, file)
    assert (membership.status, membership.chunk_count) == ("completed", 2)
    assert membership.usage_bytes == published.usage_bytes
    assert await bench.index.chunks(bench.workspace, store, file) == [one.chunk for one in chunks]


async def test_publishing_may_be_repeated(bench: Bench) -> None:
    store, file = await bench.add_store(), await bench.add_file()
    job = await bench.attach(store, file)
    await bench.index.stage(job.lease, await embedded(MANUAL))
    first = await bench.index.publish(job.lease, 3)
    assert await bench.index.publish(job.lease, 3) == first
    assert texts_of(await bench.search("pump", store)) == set(MANUAL)


async def test_publishing_replaces_what_was_there(bench: Bench) -> None:
    store, file = await bench.add_store(), await bench.add_file()
    job = await bench.attach(store, file)
    await bench.index.stage(job.lease, await embedded(MANUAL))
    await bench.index.publish(job.lease, 3)
    await bench.index.stage(job.lease, await embedded(["Only this is left.", "And this."]))
    published = await bench.index.publish(job.lease, 2)
    assert published.chunk_count == 2
    assert texts_of(await bench.search("pump", store)) == {"Only this is left.", "And this."}
    assert await bench.search("KX-4471", store, alpha=0) == []


async def test_what_is_encoded_is_found_by_its_digest(bench: Bench) -> None:
    chunks = await embedded([*MANUAL, "two windows"])
    chunks[3] = EmbeddedChunk(chunks[3].chunk, [axis(0), axis(1)])
    digests = [one.chunk.digest for one in chunks]
    store, file = await bench.add_store(), await bench.add_file()
    job = await bench.attach(store, file)
    await bench.index.stage(job.lease, chunks)
    assert await bench.index.encoded(bench.workspace, EMBEDDER.encoder, digests) == {}, "only staged"
    await bench.queue.complete(job.lease, await bench.index.publish(job.lease, len(chunks)))
    for _ in range(2):  # the second time two chunks have each digest
        found = await bench.index.encoded(bench.workspace, EMBEDDER.encoder, [*digests, b"?" * 32])
        assert {*found} == {*digests}
        for one in chunks:
            assert found[one.chunk.digest] == [pytest.approx(window, abs=1e-3) for window in one.windows]
        again = [EmbeddedChunk(one.chunk, found[one.chunk.digest]) for one in chunks]
        await bench.finish(await bench.attach(await bench.add_store(), file), again)
    assert await bench.index.encoded(bench.workspace, EMBEDDER.encoder, digests) == found, "exactly"


async def test_what_another_workspace_or_encoder_made_is_not_found(
    bench: Bench, stranger: WorkspaceId
) -> None:
    await bench.ingest(await bench.add_store(), MANUAL)
    digests = [one.chunk.digest for one in await embedded(MANUAL)]
    assert await bench.index.encoded(stranger, EMBEDDER.encoder, digests) == {}
    for other in (Encoder("another", 384), Encoder(EMBEDDER.encoder.name, 8)):
        assert await bench.index.encoded(bench.workspace, other, digests) == {}


async def test_what_is_encoded_goes_with_the_last_chunk_that_has_it(bench: Bench) -> None:
    one, another = await bench.add_store(), await bench.add_store()
    file = await bench.ingest(one, MANUAL)
    await bench.ingest(another, MANUAL, file=file)
    digests = [made.chunk.digest for made in await embedded(MANUAL)]
    await bench.catalog.detach_file(bench.workspace, one, file)
    assert {*await bench.index.encoded(bench.workspace, EMBEDDER.encoder, digests)} == {*digests}
    await bench.catalog.delete_vector_store(bench.workspace, another)
    assert await bench.index.encoded(bench.workspace, EMBEDDER.encoder, digests) == {}


async def completed(
    bench: Bench, store: str, file: str, chunks: Sequence[EmbeddedChunk], read_by: str
) -> None:
    job = await bench.attach(store, file)
    await bench.index.stage(job.lease, chunks)
    published = await bench.index.publish(job.lease, len(chunks))
    notes = ReadingNotes("utf-8", 7, "3", "")
    await bench.queue.complete(job.lease, replace(published, read_by=read_by, notes=notes))


async def two_windows() -> list[EmbeddedChunk]:
    """Chunks of which one has everything that a chunk can have."""
    chunks = await embedded([*MANUAL, "two windows"])
    told = replace(chunks[3].chunk, page=3, heading="Pumps", gap="\n\n", page_breaks=((4, 4), (6, None)))
    return [*chunks[:3], EmbeddedChunk(told, [axis(0), axis(1)])]


@pytest.mark.parametrize("at_once", [1, 3, 1000])
async def test_a_copy_is_what_another_store_has(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(pgvector, "COPIED_AT_ONCE", at_once)
    chunks = await two_windows()
    (one, another), file = (await bench.add_store(), await bench.add_store()), await bench.add_file()
    await completed(bench, one, file, chunks, "reader 1")
    job = await bench.attach(another, file)
    for _ in range(2):  # as often as a job is begun
        assert await bench.index.stage_copy(job.lease, "reader 1") == Staged(
            4, ReadingNotes("utf-8", 7, "3", "")
        )
    assert await bench.search("KX-4471", another) == [], "only staged"
    await bench.queue.complete(job.lease, await bench.index.publish(job.lease, 4))
    first, second = [await bench.index.chunks(bench.workspace, store, file) for store in (one, another)]
    assert first == second == [made.chunk for made in chunks]
    for question in ("KX-4471", "pump", "windows"):
        for alpha in (0.0, 0.7, 1.0):
            theirs, ours = [
                {(made.text, made.cosine, made.keyword) for made in found}
                for found in [await bench.search(question, store, alpha=alpha) for store in (one, another)]
            ]
            assert theirs == ours != set()


@pytest.mark.parametrize("why", ["reader", "size", "encoder", "unfinished", "detached", "workspace", "same"])
async def test_what_would_be_made_otherwise_is_not_copied(
    bench: Bench, why: str, stranger: WorkspaceId
) -> None:
    one, another = await bench.add_store(), await bench.add_store()
    file = await bench.add_file()
    chunks = await embedded(MANUAL)
    if why == "unfinished":
        begun = await bench.attach(one, file)
        await bench.index.stage(begun.lease, chunks)
        await bench.index.publish(begun.lease, 3)
    else:
        await completed(bench, one, file, chunks, "reader 1")
    if why == "detached":
        await bench.catalog.detach_file(bench.workspace, one, file)
    chunking = ChunkingStrategy(256, 50) if why == "size" else CHUNKING
    if why == "encoder":
        now = int(time.time())
        store = VectorStore(
            f"vs_{secrets.token_hex(8)}", bench.workspace, "", None, None, Encoder("another", 384), now, now
        )
        another = (await bench.catalog.add_vector_store(store, [], CHUNKING)).id
    workspace = bench.workspace
    if why == "workspace":
        workspace = stranger
        another, file = await bench.add_store(stranger), await bench.add_file(stranger)
    if why == "same":
        another, chunking = one, ChunkingStrategy(256, 50)
        await bench.catalog.detach_file(bench.workspace, one, file)
    await bench.catalog.attach_file(
        workspace, another, file, attributes=None, chunking=chunking, chunking_given=True
    )
    job = await bench.claim()
    read_by = "reader 2" if why == "reader" else "reader 1"
    assert await bench.index.stage_copy(job.lease, read_by) is None
    assert await bench.index.staged(job.lease) == {}


async def test_a_copy_is_for_the_job_s_owner_alone(bench: Bench) -> None:
    one, another = await bench.add_store(), await bench.add_store()
    file = await bench.add_file()
    await completed(bench, one, file, await embedded(MANUAL), "reader 1")
    older = await bench.attach(another, file)
    await bench.queue.release(older.lease)
    newer = await bench.claim()
    with contextlib.suppress(LeaseLost):
        assert await bench.index.stage_copy(older.lease, "reader 1") is None
    assert await bench.index.staged(newer.lease) == {}


@pytest.mark.parametrize("at_once", [1, 2, 3])
async def test_publishing_in_parts_leaves_the_same(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(pgvector, "CHUNKS_AT_ONCE", at_once)
    store, file = await bench.add_store(), await bench.add_file()
    job = await bench.attach(store, file)
    published = await bench.finish(job, await embedded(MANUAL))
    assert published.chunk_count == published.window_count == len(MANUAL)
    assert [one.text for one in await bench.index.chunks(bench.workspace, store, file)] == MANUAL
    assert texts_of(await bench.search("pump", store)) == set(MANUAL)


async def test_chunks_beyond_the_count_are_dropped(bench: Bench) -> None:
    store, file = await bench.add_store(), await bench.add_file()
    job = await bench.attach(store, file)
    await bench.index.stage(job.lease, await embedded(MANUAL))
    await bench.index.publish(job.lease, 1)
    assert [one.text for one in await bench.index.chunks(bench.workspace, store, file)] == MANUAL[:1]
    assert await bench.index.staged(job.lease) == {}


async def test_a_gap_among_the_staged_chunks_is_not_published(bench: Bench) -> None:
    store, file = await bench.add_store(), await bench.add_file()
    job = await bench.attach(store, file)
    chunks = await embedded(MANUAL)
    await bench.index.stage(job.lease, [chunks[0], chunks[2]])
    with pytest.raises(Unavailable):
        await bench.index.publish(job.lease, 3)
    assert await bench.search("pump", store) == []
    assert sorted(await bench.index.staged(job.lease)) == [0, 2]


async def test_an_older_attempt_can_no_longer_write(bench: Bench) -> None:
    store, file = await bench.add_store(), await bench.add_file()
    older = await bench.attach(store, file)
    await bench.index.stage(older.lease, (await embedded(MANUAL))[:2])
    await bench.queue.release(older.lease)
    newer = await bench.claim()
    assert newer.lease.job_id == older.lease.job_id
    with pytest.raises(LeaseLost):
        await bench.index.stage(older.lease, await embedded(["too late"]))
    with pytest.raises(LeaseLost):
        await bench.index.publish(older.lease, 2)
    # What the older attempt had finished is still good.
    assert sorted(await bench.index.staged(newer.lease)) == [0, 1]
    await bench.index.stage(newer.lease, (await embedded(MANUAL))[2:])
    assert (await bench.index.publish(newer.lease, 3)).chunk_count == 3


@pytest.mark.parametrize("how", ["file deleted", "detached", "store deleted"])
async def test_a_file_that_goes_during_ingestion_leaves_nothing(bench: Bench, how: str) -> None:
    store, file = await bench.add_store(), await bench.add_file()
    job = await bench.attach(store, file)
    await bench.index.stage(job.lease, await embedded(MANUAL))
    if how == "file deleted":
        await bench.catalog.delete_file(bench.workspace, file)
    elif how == "detached":
        await bench.catalog.detach_file(bench.workspace, store, file)
    else:
        await bench.catalog.delete_vector_store(bench.workspace, store)
    with pytest.raises(LeaseLost):
        await bench.index.stage(job.lease, await embedded(MANUAL))
    with pytest.raises(LeaseLost):
        await bench.index.publish(job.lease, 3)
    assert await bench.search("pump", store) == []
    assert await bench.index.chunks(bench.workspace, store, file) == []


@pytest.mark.parametrize("text", ["a NUL \0 inside", "half a character \ud800"])
async def test_text_that_cannot_be_stored_is_the_file_s_fault(bench: Bench, text: str) -> None:
    job = await bench.attach(await bench.add_store(), await bench.add_file())
    with pytest.raises(InvalidFile):
        await bench.index.stage(job.lease, [EmbeddedChunk(Chunk(0, text, 0, len(text)), [axis(0)])])


# ── what a search finds ─────────────────────────────────────────────────────


async def test_a_candidate_carries_everything(bench: Bench) -> None:
    store = await bench.add_store()
    attributes: Attributes = {"year": 2024.0, "draft": True, "team": "pumps"}
    file = await bench.ingest(store, MANUAL, attributes)
    found = {c.chunk_index: c for c in await bench.search("what does KX-4471 mean", store)}
    hit = found[1]
    assert (hit.vector_store_id, hit.file_id, hit.filename) == (store, file, "manual.txt")
    assert hit.attributes == attributes
    assert type((hit.attributes or {})["year"]) is float
    assert (hit.text, hit.start, hit.end) == (MANUAL[1], len(MANUAL[0]), len(MANUAL[0]) + len(MANUAL[1]))
    assert (hit.page, hit.heading) == (2, "Part")
    assert len({c.chunk_id for c in found.values()}) == 3


async def test_both_scores_come_for_every_chunk_whichever_leg_found_it(bench: Bench) -> None:
    store, file = await bench.add_store(), await bench.add_file()
    chunks = [
        EmbeddedChunk(Chunk(0, "words about gearwheels", 0, 22), [axis(0)]),
        EmbeddedChunk(Chunk(1, "something else", 22, 36), [axis(1)]),
    ]
    await bench.finish(await bench.attach(store, file), chunks)
    found = await bench.search("gearwheels", store, vector=axis(1), candidates=1)
    by_index = {c.chunk_index: c for c in found}
    assert set(by_index) == {0, 1}
    assert by_index[0].cosine == pytest.approx(0, abs=1e-3)
    assert by_index[1].cosine == pytest.approx(1, abs=1e-3)
    assert by_index[1].keyword == 0
    assert 0 < by_index[0].keyword <= 1


async def test_the_best_window_of_a_chunk_counts(bench: Bench) -> None:
    store, file = await bench.add_store(), await bench.add_file()
    chunk = EmbeddedChunk(Chunk(0, "long", 0, 4), [axis(0), axis(1), axis(2)])
    await bench.finish(await bench.attach(store, file), [chunk])
    (found,) = await bench.search("x", store, vector=axis(1))
    assert found.cosine == pytest.approx(1, abs=1e-3)


async def test_a_small_store_is_returned_whole(bench: Bench) -> None:
    store = await bench.add_store()
    texts = [f"chunk number {number}" for number in range(30)]
    await bench.ingest(store, texts)
    assert texts_of(await bench.search("unrelated", store, candidates=30)) == set(texts)
    assert texts_of(await bench.search("unrelated", store, candidates=30, alpha=1)) == set(texts)


async def test_each_leg_brings_no_more_than_was_asked_for(bench: Bench) -> None:
    store = await bench.add_store()
    await bench.ingest(store, [f"pump number {number}" for number in range(30)])
    found = await bench.search("pump", store, candidates=5)
    assert 5 <= len(found) <= 10
    assert len({c.chunk_id for c in found}) == len(found)


async def test_keyword_search_needs_no_vector_and_finds_only_words(bench: Bench) -> None:
    store = await bench.add_store()
    await bench.ingest(store, MANUAL)
    found = await bench.search("the rotors of KX-4471", store, alpha=0)
    assert texts_of(found) == {MANUAL[1]}
    assert [c.cosine for c in found] == [0]
    assert await bench.search("zeppelin", store, alpha=0) == []
    assert await bench.search("the of and ?!", store, alpha=0) == []


async def test_a_rare_word_outweighs_a_common_one(bench: Bench) -> None:
    store = await bench.add_store()
    await bench.ingest(store, [*[f"pump {number}" for number in range(20)], "a zeppelin"])
    score = {c.text: c.keyword for c in await bench.search("pump zeppelin", store, alpha=0)}
    assert score["a zeppelin"] > score["pump 3"]


async def test_an_empty_question_and_an_empty_store(bench: Bench) -> None:
    store = await bench.add_store()
    assert await bench.search("pump", store) == []
    await bench.ingest(store, MANUAL)
    assert texts_of(await bench.search("", store)) == set(MANUAL)
    assert await bench.search("pump") == []


# ── tenants and stores ──────────────────────────────────────────────────────


async def test_another_workspace_finds_and_reads_nothing(bench: Bench, stranger: WorkspaceId) -> None:
    store = await bench.add_store()
    file = await bench.ingest(store, MANUAL)
    theirs = await bench.add_store(stranger)
    await bench.ingest(theirs, ["Theirs alone."], workspace=stranger)
    assert await bench.search("pump", store, workspace=stranger, alpha=0) == []
    found = await bench.search("pump", store, theirs, workspace=stranger)
    assert texts_of(found) == {"Theirs alone."}
    assert await bench.index.chunks(stranger, store, file) == []
    assert texts_of(await bench.search("pump", store, theirs)) == set(MANUAL)


@pytest.mark.parametrize("unknown", ["vs_unknown", "", "vs_\0", "vs_\ud800", "'; --"])
async def test_an_unknown_store_yields_nothing_and_spoils_nothing(bench: Bench, unknown: str) -> None:
    store = await bench.add_store()
    file = await bench.ingest(store, MANUAL)
    assert await bench.search("pump", unknown) == []
    assert texts_of(await bench.search("pump", unknown, store, store)) == set(MANUAL)
    assert await bench.index.chunks(bench.workspace, unknown, file) == []


async def test_a_file_in_two_stores_is_two_sets_of_chunks(bench: Bench) -> None:
    one, other = await bench.add_store(), await bench.add_store()
    file = await bench.ingest(one, MANUAL, {"kind": "a"})
    await bench.ingest(other, MANUAL, {"kind": "b"}, file=file)
    found = await bench.search("pump", one, other)
    assert len(found) == 6
    assert {(c.vector_store_id, (c.attributes or {})["kind"]) for c in found} == {(one, "a"), (other, "b")}
    # A filter looks at the attributes that the file has in that store.
    found = await bench.search("pump", one, other, where=Comparison("eq", "kind", "b"))
    assert [c.vector_store_id for c in found] == [other] * 3
    found = await bench.search("pump", one, other, where=Comparison("eq", "kind", "b"), alpha=0)
    assert [c.vector_store_id for c in found] == [other]

    await bench.catalog.detach_file(bench.workspace, one, file)
    assert {c.vector_store_id for c in await bench.search("pump", one, other)} == {other}
    assert await bench.index.chunks(bench.workspace, one, file) == []
    assert len(await bench.index.chunks(bench.workspace, other, file)) == 3


async def test_a_deleted_file_is_found_no_more(bench: Bench) -> None:
    store = await bench.add_store()
    file = await bench.ingest(store, MANUAL)
    await bench.ingest(store, ["The other file mentions a pump, too."])
    await bench.catalog.delete_file(bench.workspace, file)
    assert texts_of(await bench.search("pump", store)) == {"The other file mentions a pump, too."}
    assert await bench.search("bananas", store, alpha=0) == []


async def test_an_expired_file_is_found_no_more(bench: Bench, database: Database) -> None:
    """Even before it is removed, and in whatever way its store is searched."""
    store = await bench.add_store()
    gone = await bench.ingest(store, MANUAL, {"kind": "a"})
    kept = await bench.ingest(store, ["The other file mentions a pump, too."], {"kind": "a"})
    await expire(bench, gone, database)
    for where in (None, Comparison("eq", "kind", "a")):
        for alpha in (0.0, 0.7, 1.0):
            found = await bench.search("pump", store, alpha=alpha, where=where)
            assert [candidate.file_id for candidate in found] == [kept]


async def expire(bench: Bench, file: str, database: Database) -> None:
    if isinstance(bench.catalog, InMemoryCatalog):
        key = (bench.workspace, file)
        bench.catalog.state.files[key] = replace(bench.catalog.state.files[key], expires_at=1)
        return
    async with database.transaction() as connection:
        statement = text("update knowledge_files set expires_at = now() where id = :id")
        await connection.execute(statement, {"id": file})


# ── filters ─────────────────────────────────────────────────────────────────

ATTRIBUTES: list[Attributes | None] = [
    None,
    {},
    {"a": 1.0},
    {"a": True},
    {"a": False, "b": "x"},
    {"a": "1", "b": "y"},
    {"a": "", "b": "Z", "c": 0.0},
    {"a": 2.5, "b": "x", "c": -1.0},
    {"a": 1e300, "b": "é", "c": 1e-9},
    {"a": "true", "it's": 'a "quoted" \\ thing'},
    {"a": 0.1, "b": 3.0, "c": "ä"},
]
VALUES: list[AttributeValue] = [value for one in ATTRIBUTES for value in (one or {}).values()]
VALUES += [1.5, "zz", 0.30000000000000004, "a%_b"]

keys = st.sampled_from(["a", "b", "c", "it's", "unknown", "", ":name"])
values = st.sampled_from(VALUES)
comparisons = st.builds(
    Comparison, st.sampled_from(["eq", "ne", "gt", "gte", "lt", "lte"]), keys, values
) | st.builds(Comparison, st.sampled_from(["in", "nin"]), keys, st.lists(values, max_size=3).map(tuple))
filters = st.recursive(
    comparisons,
    lambda inner: st.builds(
        Compound, st.sampled_from(["and", "or"]), st.lists(inner, min_size=1, max_size=3).map(tuple)
    ),
    max_leaves=6,
)


@pytest.fixture
async def filtered(bench: Bench) -> tuple[Bench, str]:
    """A store with a file, of one chunk, for each of ATTRIBUTES."""
    store = await bench.add_store()
    for number, attributes in enumerate(ATTRIBUTES):
        await bench.ingest(store, [f"pump {number}"], attributes)
    return bench, store


@given(where=filters, alpha=st.sampled_from([0.0, 0.7, 1.0]))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_a_filter_lets_through_what_plain_python_would(
    filtered: tuple[Bench, str], where: Filter, alpha: float
) -> None:
    bench, store = filtered
    found = await bench.search("pump", store, where=where, alpha=alpha)
    expected = {
        f"pump {number}" for number, attributes in enumerate(ATTRIBUTES) if qualifies(where, attributes)
    }
    assert texts_of(found) == expected


async def test_filters_by_hand(filtered: tuple[Bench, str]) -> None:
    bench, store = filtered
    cases = [
        (Comparison("eq", "a", 1.0), {2}),
        (Comparison("eq", "a", True), {3}),
        (Comparison("ne", "a", 1.0), {0, 1, 3, 4, 5, 6, 7, 8, 9, 10}),
        (Comparison("nin", "b", ("x", "y")), {0, 1, 2, 3, 6, 8, 9, 10}),
        (Comparison("in", "b", ("x", 3.0)), {4, 7, 10}),
        (Comparison("gt", "a", 1.0), {7, 8}),
        (Comparison("lte", "a", 1.0), {2, 10}),
        (Comparison("gte", "b", "x"), {4, 5, 7, 8}),
        (Compound("and", (Comparison("eq", "b", "x"), Comparison("lt", "c", 0.0))), {7}),
        (Compound("or", (Comparison("eq", "a", "1"), Comparison("eq", "c", 0.0))), {5, 6}),
    ]
    for where, expected in cases:
        found = await bench.search("pump", store, where=where)
        assert texts_of(found) == {f"pump {number}" for number in expected}, where


@pytest.mark.parametrize(
    "where",
    [
        Comparison("eq", "a\0", "x"),
        Comparison("eq", "a", "x\0"),
        Comparison("gt", "a", "\ud800"),
        Comparison("lt", "a", float("inf")),
        Comparison("in", "a", ("x", "\0")),
    ],
)
async def test_a_filter_that_nothing_stored_could_match_is_refused(bench: Bench, where: Filter) -> None:
    store = await bench.add_store()
    await bench.ingest(store, MANUAL, {"a": "x"})
    with pytest.raises(InvalidRequest):
        await bench.search("pump", store, where=where)


async def test_changed_attributes_count_from_the_next_search(bench: Bench) -> None:
    store = await bench.add_store()
    file = await bench.ingest(store, MANUAL, {"state": "old"})
    await bench.catalog.update_attributes(bench.workspace, store, file, {"state": "new"})
    assert await bench.search("pump", store, where=Comparison("eq", "state", "old")) == []
    found = await bench.search("pump", store, where=Comparison("eq", "state", "new"))
    assert [c.attributes for c in found] == [{"state": "new"}] * 3


# ── PostgreSQL alone ────────────────────────────────────────────────────────

# Keys whose stored document frequency is not what counting the chunks gives.
DRIFT = text("""
    with counted as (
        select t.store_no, k as key, count(*) as df
        from knowledge_chunks c
        join chunk_terms t on t.chunk_id = c.id
        cross join lateral unnest(t.keys) k
        where c.workspace_id = :workspace
        group by t.store_no, k
    ), stored as (
        select d.store_no, d.key, d.df
        from term_df d join vector_stores s using (store_no)
        where s.workspace_id = :workspace and d.df <> 0
    )
    select count(*) from counted full join stored using (store_no, key)
    where counted.df is distinct from stored.df
""")

# Rows that nothing refers to any more.
ORPHANS = text("""
    select
        (select count(*) from chunk_windows where chunk_id not in (select id from knowledge_chunks))
        + (select count(*) from chunk_terms where chunk_id not in (select id from knowledge_chunks))
        + (select count(*) from term_df where store_no not in (select store_no from vector_stores))
        + (select count(*) from ingest_chunks where job_id not in (select id from ingest_jobs))
        + (select count(*) from publishing) + (select count(*) from publishing_terms)
        + (select count(*) from publishing_parts)
""")


async def assert_consistent(database: Database, workspace: WorkspaceId) -> None:
    async with database.transaction() as connection:
        assert (await connection.execute(DRIFT, {"workspace": workspace})).scalar_one() == 0
        assert (await connection.execute(ORPHANS)).scalar_one() == 0


async def test_document_frequencies_follow_every_change(postgres_bench: Bench, database: Database) -> None:
    bench = postgres_bench
    one, other = await bench.add_store(), await bench.add_store()
    files = [await bench.ingest(one, [*MANUAL, f"pump {number}"]) for number in range(3)]
    await bench.ingest(other, MANUAL, file=files[0])
    await assert_consistent(database, bench.workspace)

    job = await bench.attach(one, await bench.add_file())
    await bench.index.stage(job.lease, await embedded(MANUAL))
    await bench.index.publish(job.lease, 3)
    await bench.index.stage(job.lease, await embedded(["a pump", "a zeppelin"]))
    await bench.index.publish(job.lease, 2)
    await assert_consistent(database, bench.workspace)
    await bench.index.publish(job.lease, 2)
    await assert_consistent(database, bench.workspace)
    await bench.index.publish(job.lease, 0)
    await assert_consistent(database, bench.workspace)

    await bench.catalog.detach_file(bench.workspace, one, files[0])
    await assert_consistent(database, bench.workspace)
    await bench.catalog.delete_file(bench.workspace, files[1])
    await assert_consistent(database, bench.workspace)
    await bench.catalog.delete_vector_store(bench.workspace, other)
    await assert_consistent(database, bench.workspace)


async def test_files_replaced_side_by_side_do_not_deadlock(postgres_bench: Bench, database: Database) -> None:
    """Each takes terms away and brings others, in the same store."""
    bench = postgres_bench
    store = await bench.add_store()
    one = await embedded([f"pump valve {number}" for number in range(60)])
    other = await embedded([f"seal rotor pump {number}" for number in reversed(range(30, 90))])
    jobs = [await bench.attach(store, await bench.add_file()) for _ in range(4)]
    for number in range(4):
        for place, job in enumerate(jobs):
            await bench.index.stage(job.lease, (one, other)[(number + place) % 2])
        await asyncio.gather(*(bench.index.publish(job.lease, 60) for job in jobs))
    await assert_consistent(database, bench.workspace)


async def test_a_job_whose_worker_died_after_publishing_is_done(
    postgres_bench: Bench, database: Database
) -> None:
    """Even at its last attempt: a failed one would leave chunks that no search finds and nothing removes."""
    bench = postgres_bench
    store, file = await bench.add_store(), await bench.add_file()
    job, chunks = await bench.attach(store, file), await embedded(MANUAL)
    await bench.index.stage(job.lease, chunks)
    published = await bench.index.publish(job.lease, len(chunks))
    dies = text("update ingest_jobs set lease_until = now() - interval '61 s', failures = 4 where id = :job")
    async with database.transaction() as connection:
        await connection.execute(dies, {"job": job.lease.job_id})

    await bench.queue.claim("another worker", lease_s=60)
    member = await bench.catalog.get_membership(bench.workspace, store, file)
    assert (member.status, member.chunk_count) == ("completed", published.chunk_count)
    with pytest.raises(LeaseLost):
        await bench.queue.complete(job.lease, published)
    assert texts_of(await bench.search("oil valve", store, alpha=0)) >= {MANUAL[0]}


async def test_a_failed_file_that_starts_over_is_not_taken_for_published(
    postgres_bench: Bench, database: Database
) -> None:
    bench = postgres_bench
    store, file = await bench.add_store(), await bench.add_file()
    job, chunks = await bench.attach(store, file), await embedded(MANUAL)
    await bench.index.stage(job.lease, chunks)
    await bench.index.publish(job.lease, len(chunks))
    await bench.queue.fail(job.lease, LastError("server_error", "It came to nothing."))
    again = await bench.attach(store, file)
    async with database.transaction() as connection:
        late = text("update ingest_jobs set lease_until = now() - interval '1 s' where id = :job")
        await connection.execute(late, {"job": again.lease.job_id})

    recovered = await bench.queue.claim("another worker", lease_s=60)
    assert recovered is not None
    assert recovered.file_id == file


async def test_filters_may_be_as_deep_as_the_api_says(postgres_bench: Bench) -> None:
    bench = postgres_bench
    store = await bench.add_store()
    await bench.ingest(store, MANUAL, {"a": "x"})
    where: Filter = Comparison("eq", "a", "x")
    for _ in range(MAX_FILTER_DEPTH - 1):
        where = Compound("and", (where,))
    assert texts_of(await bench.search("pump", store, where=where)) == set(MANUAL)
    with pytest.raises(InvalidRequest):
        await bench.search("pump", store, where=Compound("or", (where,)))


async def test_publishing_and_deleting_side_by_side_do_not_deadlock(
    postgres_bench: Bench, database: Database
) -> None:
    bench = postgres_bench
    store = await bench.add_store()
    texts = [f"pump valve seal rotor {number % 7} {number}" for number in range(40)]
    old = [await bench.ingest(store, texts) for _ in range(3)]
    jobs = [await bench.attach(store, await bench.add_file()) for _ in range(3)]
    chunks = await embedded(list(reversed(texts)))
    for job in jobs:
        await bench.index.stage(job.lease, chunks)
    await asyncio.gather(
        *(bench.index.publish(job.lease, len(chunks)) for job in jobs),
        *(bench.catalog.delete_file(bench.workspace, file) for file in old),
    )
    await assert_consistent(database, bench.workspace)


async def test_publishing_races_with_deleting_the_same_things(
    postgres_bench: Bench, database: Database
) -> None:
    """Whoever comes first wins, and nothing is left half done."""
    bench = postgres_bench
    chunks = await embedded([f"pump {number}" for number in range(30)])
    for round_number in range(6):
        store, file = await bench.add_store(), await bench.add_file()
        job = await bench.attach(store, file)
        await bench.index.stage(job.lease, chunks)
        deletion = (
            bench.catalog.delete_vector_store(bench.workspace, store)
            if round_number % 2
            else bench.catalog.delete_file(bench.workspace, file)
        )
        published, deleted = await asyncio.gather(
            bench.index.publish(job.lease, len(chunks)), deletion, return_exceptions=True
        )
        assert isinstance(published, Published | LeaseLost)
        assert not isinstance(deleted, Exception)
        assert await bench.search("pump", store) == []
    await assert_consistent(database, bench.workspace)


@pytest.fixture
async def crowded(postgres_bench: Bench) -> tuple[Bench, str]:
    """A store of 400 chunks in 8 files, a common word and rarer ones in them."""
    bench = postgres_bench
    store = await bench.add_store()
    for number in range(8):
        texts = [
            f"pump {('seal', 'valve')[n % 2]} {('rotor', 'blade')[n % 5 > 0]} part{n} of book{number}"
            for n in range(50)
        ]
        await bench.ingest(store, texts, {"book": float(number)})
    return bench, store


def scores(candidates: Sequence[Candidate], leg: str, count: int) -> list[float]:
    return sorted((round(getattr(c, leg), 3) for c in candidates), reverse=True)[:count]


QUESTIONS = ["pump valve rotor", "part7 of book3", "seal blade part11", "book5 rotor part10"]


async def test_the_graph_finds_what_the_scan_finds(
    crowded: tuple[Bench, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, store = crowded
    for question in QUESTIONS:
        scanned = await bench.search(question, store, alpha=1, candidates=20)
        with monkeypatch.context() as patch:
            patch.setattr(search_module, "SCAN_COST_RATIO", 0.0)
            walked = await bench.search(question, store, alpha=1, candidates=20)
        assert scores(walked, "cosine", 18) == scores(scanned, "cosine", 18)


@pytest.mark.parametrize("budget", [1, 60, 150])
async def test_a_small_keyword_budget_never_returns_too_few(
    crowded: tuple[Bench, str], monkeypatch: pytest.MonkeyPatch, budget: int
) -> None:
    bench, store = crowded
    for question in QUESTIONS:
        full = await bench.search(question, store, alpha=0, candidates=20)
        with monkeypatch.context() as patch:
            patch.setattr(search_module, "KEYWORD_BUDGET", budget)
            short = await bench.search(question, store, alpha=0, candidates=20)
        assert len(short) == len(full) == 20
        assert scores(short, "keyword", 3) == scores(full, "keyword", 3)


async def test_a_filter_that_defeats_the_estimates_still_returns_enough(
    crowded: tuple[Bench, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, store = crowded
    monkeypatch.setattr(search_module, "SCAN_COST_RATIO", 0.0)
    monkeypatch.setattr(search_module, "KEYWORD_SCAN_CHUNKS", 0)
    monkeypatch.setattr(search_module, "FILTERED_KEYWORD_BUDGET", 1)
    where = Comparison("eq", "book", 6.0)
    for alpha in (0.0, 0.7, 1.0):
        found = await bench.search("pump of book2", store, alpha=alpha, candidates=50, where=where)
        assert len(found) == 50
        assert {(c.attributes or {})["book"] for c in found} == {6.0}


@contextlib.contextmanager
def recorded(database: Database) -> Iterator[list[str]]:
    """The statements that are executed within."""
    statements: list[str] = []

    def record(connection, cursor, statement, *rest) -> None:
        statements.append(statement)

    engine = database._engine.sync_engine
    event.listen(engine, "before_cursor_execute", record)
    try:
        yield statements
    finally:
        event.remove(engine, "before_cursor_execute", record)


def legs_run(statements: Sequence[str]) -> list[tuple[bool, bool]]:
    """Of each statement that searched: whether the dense leg was in it, and the keyword leg."""
    searches = [one for one in statements if "with dense" in one]
    return [("dim = 384" in one, "from chunk_terms" in one) for one in searches]


NEARSIGHTED = text("""
    select set_config('hnsw.ef_search', '1', true), set_config('hnsw.iterative_scan', 'off', true),
           set_config('enable_seqscan', 'off', true), set_config('enable_sort', 'off', true)
""")
"""The graph gives up after the nearest vector."""


async def test_only_the_leg_that_fell_short_runs_again(
    crowded: tuple[Bench, str], database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, store = crowded
    one_book = Comparison("eq", "book", 6.0)

    async def legs(where: Filter | None, alpha: float = 0.7) -> list[tuple[bool, bool]]:
        with recorded(database) as statements:
            # A fifth of the chunks have a rotor, all have a pump.
            found = await bench.search("pump rotor", store, alpha=alpha, where=where, candidates=100)
        assert len(found) >= (50 if where else 100)
        return legs_run(statements)

    assert await legs(one_book) == [(True, True)]
    with monkeypatch.context() as patch:
        patch.setattr(search_module, "_SEARCH_SETTINGS", NEARSIGHTED)
        patch.setattr(search_module, "SCAN_COST_RATIO", 0.0)
        assert await legs(one_book) == [(True, True), (True, False)]
    monkeypatch.setattr(search_module, "KEYWORD_SCAN_CHUNKS", 0)
    monkeypatch.setattr(search_module, "FILTERED_KEYWORD_BUDGET", 1)
    monkeypatch.setattr(search_module, "KEYWORD_BUDGET", 1)
    assert await legs(one_book) == [(True, True), (False, True)]
    # Without a filter every rotor was found, and the dense leg fills the page if there is one.
    assert await legs(None) == [(True, True)]
    assert await legs(None, alpha=0) == [(False, True), (False, True)]


async def test_narrow_tables_are_read_only_behind_their_chunks(
    crowded: tuple[Bench, str], database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They carry no policy: whatever reads them joins knowledge_chunks, and asks for the store by number."""
    bench, store = crowded
    with recorded(database) as statements:
        for alpha in (0.0, 0.5, 1.0):
            for where in (None, Comparison("lt", "book", 3.0)):
                await bench.search("pump of book2", store, alpha=alpha, where=where)
        monkeypatch.setattr(search_module, "SCAN_COST_RATIO", 0.0)
        monkeypatch.setattr(search_module, "KEYWORD_BUDGET", 1)
        await bench.search("pump valve of book2", store)
        await bench.ingest(store, MANUAL)
    reading = [one.replace("to_regclass('chunk_windows')", "") for one in statements]
    narrow = [one for one in reading if "chunk_windows" in one or "chunk_terms" in one]
    assert len(narrow) >= 7 + 2  # searches, and the statements that publish
    assert all("knowledge_chunks" in one and "store_no" in one for one in narrow)
