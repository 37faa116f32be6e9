"""A filtered search never returns too few, and finds what an exact scan would.

12,000 chunks; filters let 0.1 % to half of them through. The last one goes along topics that the question
is not about: all that is near is thrown away, and the walk through the graph meets what qualifies far out.

Run with `pytest -m benchmark -s tests/benchmarks/test_filters.py`: some four minutes on two busy cores.
"""

import secrets
import statistics
import time
from array import array
from dataclasses import dataclass

import numpy as np
import pytest

from sherlock.rag.adapters.pgvector import PgvectorIndex
from sherlock.rag.adapters.pgvector import search as search_module
from sherlock.rag.adapters.postgres import Database
from sherlock.rag.adapters.postgres_catalog import PostgresCatalog
from sherlock.rag.adapters.postgres_queue import PostgresIngestQueue
from sherlock.rag.domain.models import (
    Candidate,
    Chunk,
    ChunkingStrategy,
    Comparison,
    EmbeddedChunk,
    Encoder,
    Filter,
    IndexQuery,
    StoredFile,
    VectorStore,
    WorkspaceId,
)

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(1200)]

FILES, CHUNKS_PER_FILE, TOPICS, DIMENSION = 1_000, 12, 20, 384
QUESTIONS, CANDIDATES = 40, 50
CHUNKING = ChunkingStrategy(512, 50)
WAYS: dict[str, Filter] = {
    "0.1 %": Comparison("lt", "number", 1.0),
    "1 %": Comparison("lt", "number", 10.0),
    "10 %": Comparison("lt", "number", 100.0),
    "50 %": Comparison("lt", "number", 500.0),
    "50 %, by topic": Comparison("lt", "topic", TOPICS / 2),
}


@dataclass(frozen=True)
class Corpus:
    """`vectors` [files, chunks, dimension], unit length; `words` of the same shape but for the last."""

    topics: np.ndarray
    vectors: np.ndarray
    words: list[list[str]]


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def made_up(random: np.random.Generator) -> Corpus:
    """Clustered by topic, as texts are; words by Zipf's law."""
    topics = np.arange(FILES) % TOPICS
    centres = unit(random.normal(size=(TOPICS, DIMENSION)))
    spread = unit(random.normal(size=(FILES, CHUNKS_PER_FILE, DIMENSION)))
    words = [
        [" ".join(f"w{rank}" for rank in random.zipf(1.3, 40) % 5_000) for _ in range(CHUNKS_PER_FILE)]
        for _ in range(FILES)
    ]
    return Corpus(topics, unit(centres[topics][:, None] + 1.2 * spread), words)


async def stored(database: Database, workspace: WorkspaceId, corpus: Corpus) -> str:
    catalog, queue, index = PostgresCatalog(database), PostgresIngestQueue(database), PgvectorIndex(database)
    now = int(time.time())
    store = VectorStore(
        f"vs_{secrets.token_hex(8)}", workspace, "", None, None, Encoder("made-up", DIMENSION), now, now
    )
    await catalog.add_vector_store(store, [], CHUNKING)
    for number in range(FILES):
        file = StoredFile(f"file-{number:024x}", workspace, "a.txt", "assistants", 1, "0" * 64, now)
        await catalog.add_file(file)
        attributes = {"number": float(number), "topic": float(corpus.topics[number])}
        await catalog.attach_file(
            workspace, store.id, file.id, attributes=attributes, chunking=CHUNKING, chunking_given=False
        )
        job = await queue.claim("benchmark", lease_s=600)
        assert job is not None
        chunks = [
            EmbeddedChunk(Chunk(at, text, 0, len(text)), [array("f", vector)])
            for at, (text, vector) in enumerate(
                zip(corpus.words[number], corpus.vectors[number], strict=True)
            )
        ]
        await index.stage(job.lease, chunks)
        await queue.complete(job.lease, await index.publish(job.lease, len(chunks)))
    return store.id


def recall(found: list[Candidate], exact: list[Candidate], leg: str) -> float:
    """The share of `exact` that `found` has, or has an equal for."""
    least = min(getattr(candidate, leg) for candidate in exact)
    reached = sum(getattr(candidate, leg) >= least - 1e-6 for candidate in found)
    return min(reached / len(exact), 1.0)


async def test_filters_lose_nothing(
    database: Database, workspace: WorkspaceId, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(7)
    corpus = made_up(random)
    began = time.perf_counter()
    store = await stored(database, workspace, corpus)
    print(f"\n{FILES * CHUNKS_PER_FILE / (time.perf_counter() - began):.0f} chunks a second inserted")
    index = PgvectorIndex(database)
    # Near chunks of the upper half of the topics: no question is about what "by topic" lets through.
    others = [number for number in range(FILES) if corpus.topics[number] >= TOPICS / 2]
    asked = []
    for number in random.choice(others, QUESTIONS, replace=False):
        vector = unit(corpus.vectors[number, 0] + 0.5 * unit(random.normal(size=DIMENSION)))
        asked.append((" ".join(corpus.words[number][0].split()[:6]), array("f", vector)))

    async def search(number: int, where: Filter, alpha: float) -> tuple[list[Candidate], float]:
        words, vector = asked[number]
        query = IndexQuery(words, vector, (store,), alpha, CANDIDATES, where)
        started = time.perf_counter()
        found = await index.search(workspace, query)
        return found, (time.perf_counter() - started) * 1000

    for way, where in WAYS.items():
        for leg, alpha in (("cosine", 1.0), ("keyword", 0.0)):
            recalls, took_ms = [], []
            for number in range(QUESTIONS):
                found, ms = await search(number, where, alpha)
                with monkeypatch.context() as exactly:
                    exactly.setattr(search_module, "SCAN_COST_RATIO", 1e9)
                    exactly.setattr(search_module, "KEYWORD_BUDGET", 10**9)
                    exactly.setattr(search_module, "FILTERED_KEYWORD_BUDGET", 10**9)
                    exact, _ = await search(number, where, alpha)
                assert len(found) == len(exact)
                if exact:
                    recalls.append(recall(found, exact, leg))
                took_ms.append(ms)
            mean = statistics.fmean(recalls)
            p95_ms = sorted(took_ms)[int(0.95 * QUESTIONS)]
            print(
                f"{way:15} {leg:8} recall@{CANDIDATES} {mean:.3f}  p50 {statistics.median(took_ms):.0f} ms  "
                f"p95 {p95_ms:.0f} ms"
            )
            assert mean >= 0.97
