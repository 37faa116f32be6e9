"""Whether a passage is found as well inside a long chunk as by itself, asked for through the API.

The passages of a judged collection are joined to chunks of one, two and four, at random. A chunk is as
relevant as the best passage in it. The encoder reads 256 word pieces at a time; beside what the API finds
stands what the first of these windows alone would, which is all that the library encodes of a longer text.

`EVAL_DIR` names the folder that holds `collections/`; where there is none, the test is skipped. Run with
`make bench PYTEST_ARGS=tests/benchmarks/test_long_chunks.py`: ten minutes on an idle machine; it writes
`docs/benchmarks.md`.
"""

import random
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import openai
import pytest
from openai.types import StaticFileChunkingStrategyObjectParam
from sentence_transformers import SentenceTransformer
from tests.benchmarks import report
from tests.benchmarks.corpus import COLLECTION, EVAL_DIR
from tests.integration.processes import deployment

from sherlock import evaluate
from sherlock.local_models import DEFAULT_ENCODER, encoder_folder

pytestmark = [pytest.mark.benchmark, pytest.mark.torch, pytest.mark.timeout(3600)]

SEED = 5
JOINED = (1, 2, 4)
ALPHAS = (1.0, 0.7)
K = 10
BATCH = 200
"""Files a request."""
WHOLE: StaticFileChunkingStrategyObjectParam = {
    "type": "static",
    "static": {"max_chunk_size_tokens": 4096, "chunk_overlap_tokens": 0},
}
COMMAND = "make bench PYTEST_ARGS=tests/benchmarks/test_long_chunks.py"


@dataclass(frozen=True)
class Chunks:
    """A collection whose passages were joined."""

    texts: list[str]
    queries: Sequence[tuple[str, evaluate.Grades]]
    """Grades by the position of a text, as a string."""


def joined(documents: Sequence[tuple[str, str]], queries: list[evaluate.JudgedQuery], size: int) -> Chunks:
    shuffled = [*documents]
    random.Random(SEED).shuffle(shuffled)
    groups = [shuffled[at : at + size] for at in range(0, len(shuffled), size)]
    home = {name: str(number) for number, group in enumerate(groups) for name, _ in group}
    judged = []
    for query in queries:
        grades: dict[str, float] = {}
        for name, grade in query.grades.items():
            if name in home:
                grades[home[name]] = max(grade, grades.get(home[name], 0))
        judged.append((query.text, grades))
    return Chunks(["\n\n".join(text for _, text in group) for group in groups], judged)


def ndcg(found: Iterator[list[str]], chunks: Chunks) -> float:
    return statistics.fmean(
        evaluate.ndcg_at_k(ranked, grades, K)
        for ranked, (_, grades) in zip(found, chunks.queries, strict=True)
    )


def ingested(client: openai.OpenAI, texts: Sequence[str]) -> str:
    """A vector store with a file of one chunk for each text, named by its position."""
    store = client.vector_stores.create()
    numbered = [*enumerate(texts)]
    for batch in (numbered[at : at + BATCH] for at in range(0, len(numbered), BATCH)):
        files = [
            client.files.create(file=(f"{number}.txt", text.encode()), purpose="assistants").id
            for number, text in batch
        ]
        made = client.vector_stores.file_batches.create(store.id, file_ids=files, chunking_strategy=WHOLE)
        while made.status == "in_progress":
            time.sleep(1)
            made = client.vector_stores.file_batches.retrieve(made.id, vector_store_id=store.id)
        assert made.file_counts.completed == len(files)
    return store.id


def asked(client: openai.OpenAI, store: str, chunks: Chunks, alpha: float) -> Iterator[list[str]]:
    for text, _ in chunks.queries:
        page = client.vector_stores.search(
            store,
            query=text,
            max_num_results=K,
            ranking_options={"ranker": "none"},
            extra_body={"hybrid_alpha": alpha},
        )
        yield [result.filename.removesuffix(".txt") for result in page.data]


def first_windows(model: SentenceTransformer, chunks: Chunks) -> Iterator[list[str]]:
    """By the cosine of what `encode` makes of a text, which drops all but the first window."""
    made = model.encode(chunks.texts, normalize_embeddings=True)
    for vector in model.encode([text for text, _ in chunks.queries], normalize_embeddings=True):
        yield [str(number) for number in np.argsort(-(made @ vector), kind="stable")[:K]]


def test_long_chunks(folder: Path) -> None:
    collection = EVAL_DIR / "collections" / COLLECTION
    if not collection.is_dir():
        pytest.skip(f"no collection {COLLECTION}: EVAL_DIR does not name a folder that holds it")
    documents, queries = [*evaluate.load_documents(collection)], evaluate.load_queries(collection)
    model = SentenceTransformer(str(encoder_folder(DEFAULT_ENCODER, folder)), device="cpu")
    running = deployment(folder, reranker_model="none", queue_max_jobs="10000")
    rows, whole, cut = [], {}, {}
    with running.running("serve", "worker"):
        client = running.client()
        for size in JOINED:
            chunks = joined(documents, queries, size)
            store = ingested(client, chunks.texts)
            found = [ndcg(asked(client, store, chunks, alpha), chunks) for alpha in ALPHAS]
            whole[size], cut[size] = found[0], ndcg(first_windows(model, chunks), chunks)
            pieces = [len(model.tokenizer(text)["input_ids"]) for text in chunks.texts]
            rows.append((size, len(pieces), round(statistics.fmean(pieces)), cut[size], *found))
    head = [
        "passages a chunk",
        "chunks",
        "word pieces a chunk",
        "first window alone, dense",
        "dense",
        "hybrid",
    ]
    report.keep(
        "Long chunks",
        COMMAND,
        f"nDCG@{K} of {len(queries)} {COLLECTION} questions through the API, alpha 1 and {ALPHAS[1]}, no "
        "reranker; passages joined at random. Figures compare along a row: one of fewer chunks is found more "
        "easily.",
        report.table(head, rows),
    )
    for size in JOINED[1:]:
        assert whole[size] > cut[size], "the rest of a long chunk is not found"
        assert whole[size] >= whole[1], "a passage in a long chunk is found less well than by itself"
