"""Search quality on judged collections, through the real encoder, reranker and database.

`EVAL_DIR` names the folder that holds `collections/`; where there is none, these tests are skipped. A
document is a file of one chunk. Run with `pytest -m benchmark -s tests/benchmarks/test_quality.py`: cranfield
takes some five minutes on two cores, scifact half an hour.
"""

import itertools
import os
import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from sherlock import evaluate
from sherlock.local_models import DEFAULT_ENCODER, encoder_folder, reranker_folder
from sherlock.rag.adapters.embedder import SentenceTransformersEmbedder
from sherlock.rag.adapters.pgvector import PgvectorIndex
from sherlock.rag.adapters.postgres import Database
from sherlock.rag.adapters.postgres_catalog import PostgresCatalog
from sherlock.rag.adapters.postgres_queue import PostgresIngestQueue
from sherlock.rag.adapters.reranker import CrossEncoderReranker
from sherlock.rag.application.retrieve import Retriever
from sherlock.rag.domain.models import (
    Chunk,
    ChunkingStrategy,
    EmbeddedChunk,
    Result,
    SearchOptions,
    SearchQuery,
    StoredFile,
    VectorStore,
    WorkspaceId,
)

pytestmark = [pytest.mark.benchmark, pytest.mark.torch, pytest.mark.timeout(3600)]

EVAL_DIR = Path(os.environ.get("EVAL_DIR", Path(__file__).parents[3] / "shared" / "eval"))
BATCH = 64
RERANK_BUDGETS_S = (0.4, 1.0)
"""The default; and more, as on a faster machine."""
NOISE = 0.001
"""Of nDCG@10: what a reranked order may be below the order it was made of before that means anything."""
CHUNKING = ChunkingStrategy(512, 50)


@dataclass(frozen=True)
class Bounds:
    """The least nDCG@10 that is still sound, without the reranker."""

    alpha_07: float
    alpha_05: float
    dense: float
    keyword: float


BOUNDS = {
    "cranfield": Bounds(alpha_07=0.55, alpha_05=0.555, dense=0.49, keyword=0.48),
    "scifact": Bounds(alpha_07=0.715, alpha_05=0.73, dense=0.64, keyword=0.67),
}


def folder_of(collection: str) -> Path:
    folder = EVAL_DIR / "collections" / collection
    if not folder.is_dir():
        pytest.skip(f"no collection {collection}: EVAL_DIR does not name a folder that holds it")
    return folder


@pytest.fixture(scope="module")
async def embedder(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SentenceTransformersEmbedder]:
    models = tmp_path_factory.mktemp("models")
    embedder = SentenceTransformersEmbedder(
        DEFAULT_ENCODER, lambda: encoder_folder(DEFAULT_ENCODER, models), dimension=384
    )
    yield embedder
    await embedder.close()


@pytest.fixture(scope="module")
async def reranker(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[CrossEncoderReranker]:
    models = tmp_path_factory.mktemp("models")
    reranker = CrossEncoderReranker("packaged", lambda: reranker_folder("", models))
    reranker.start()
    yield reranker
    await reranker.close()


async def ingest(
    database: Database, workspace: WorkspaceId, embedder: SentenceTransformersEmbedder, folder: Path
) -> str:
    """A vector store that holds the collection; a file is named as its document."""
    catalog, queue, index = PostgresCatalog(database), PostgresIngestQueue(database), PgvectorIndex(database)
    now = int(time.time())
    store = VectorStore(
        f"vs_{secrets.token_hex(8)}", workspace, folder.name, None, None, embedder.encoder, now, now
    )
    await catalog.add_vector_store(store, [], CHUNKING)
    documents = list(evaluate.load_documents(folder))
    for start in range(0, len(documents), BATCH):
        batch = documents[start : start + BATCH]
        windows = await embedder.embed_documents([text for _, text in batch])
        for (name, text), vectors in zip(batch, windows, strict=True):
            file = StoredFile(f"file-{secrets.token_hex(8)}", workspace, name, "assistants", 1, "0" * 64, now)
            await catalog.add_file(file)
            await catalog.attach_file(
                workspace, store.id, file.id, attributes=None, chunking=CHUNKING, chunking_given=False
            )
            job = await queue.claim("benchmark", lease_s=600)
            assert job is not None
            await index.stage(job.lease, [EmbeddedChunk(Chunk(0, text, 0, len(text)), vectors)])
            await queue.complete(job.lease, await index.publish(job.lease, 1))
    return store.id


def document_of(result: Result) -> str:
    return result.candidate.filename


@pytest.mark.parametrize("collection", list(BOUNDS))
async def test_search_quality(
    collection: str,
    database: Database,
    workspace: WorkspaceId,
    embedder: SentenceTransformersEmbedder,
    reranker: CrossEncoderReranker,
) -> None:
    folder = folder_of(collection)
    store = await ingest(database, workspace, embedder, folder)
    queries = evaluate.load_queries(folder)
    retriever = Retriever(
        PostgresCatalog(database),
        PgvectorIndex(database),
        embedder,
        reranker,
        candidates=50,
        rerank_budget_s=0.0,
    )

    async def measure(alpha: float, budget_s: float = 0.0) -> evaluate.Report:
        template = SearchQuery((), (store,), SearchOptions(limit=50, alpha=alpha))
        asked = replace(retriever, rerank_budget_s=budget_s)
        report = await evaluate.run(asked, workspace, queries, template, document_of=document_of)
        print(f"\n{collection} alpha {alpha}, {budget_s} s for reranking: {report}", end="", flush=True)
        return report

    bounds = BOUNDS[collection]
    keyword, dense = await measure(0.0), await measure(1.0)
    even, default = await measure(0.5), await measure(0.7)
    reranked = {
        (alpha, budget_s): (await measure(alpha, budget_s)).ndcg
        for alpha, budget_s in itertools.product((0.5, 0.7), RERANK_BUDGETS_S)
    }
    assert keyword.ndcg >= bounds.keyword
    assert dense.ndcg >= bounds.dense
    assert even.ndcg >= bounds.alpha_05
    assert default.ndcg >= bounds.alpha_07
    assert min(even.recall, default.recall) > max(keyword.recall, dense.recall)
    for (alpha, budget_s), ndcg in reranked.items():
        assert ndcg >= (even if alpha == 0.5 else default).ndcg - NOISE, (alpha, budget_s)
