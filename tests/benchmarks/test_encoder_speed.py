"""The encoder beside the library it is built on: processor time, and the vectors it gives for it.

Texts of one window each, in an order that has nothing to do with their length, as they come while files are
read. The library's `encode` reads no more than that window. Rounds of all ways take turns and the median
round counts, so that what else the machine does weighs on all alike.

Run with `make bench PYTEST_ARGS=tests/benchmarks/test_encoder_speed.py`: some two minutes on an idle machine;
it writes `docs/benchmarks.md`.
"""

import asyncio
import random
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from tests.benchmarks import report
from tests.benchmarks.corpus import installed_pieces

from sherlock.local_models import DEFAULT_ENCODER, encoder_folder
from sherlock.rag.adapters.embedder import SentenceTransformersEmbedder
from sherlock.rag.domain.models import Vector

pytestmark = [pytest.mark.benchmark, pytest.mark.torch, pytest.mark.timeout(3600)]

TEXTS, ROUNDS, QUERIES = 64, 3, 40
ARRIVING = 32
SEED = 3

Encode = Callable[[Sequence[str]], Awaitable[list[Vector]]]


@asynccontextmanager
async def opened(models: Path, *, exports: Sequence[Path]) -> AsyncIterator[SentenceTransformersEmbedder]:
    embedder = SentenceTransformersEmbedder(
        DEFAULT_ENCODER, lambda: encoder_folder(DEFAULT_ENCODER, models), exports=exports
    )
    await embedder.embed_query("load, and export where that is wanted")
    await asyncio.wrap_future(embedder._exporting.submit(lambda: None))
    assert bool(exports) == (embedder._exported is not None)
    yield embedder
    await embedder.close()


@pytest.fixture(scope="module")
async def embedder(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SentenceTransformersEmbedder]:
    models = tmp_path_factory.mktemp("models")
    async with opened(models, exports=[models]) as embedder:
        yield embedder


@pytest.fixture(scope="module")
async def on_torch(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SentenceTransformersEmbedder]:
    async with opened(tmp_path_factory.mktemp("models"), exports=[]) as embedder:
        yield embedder


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> SentenceTransformer:
    return SentenceTransformer(
        str(encoder_folder(DEFAULT_ENCODER, tmp_path_factory.mktemp("models"))), device="cpu"
    )


@pytest.fixture(scope="module")
def texts(library: SentenceTransformer) -> list[str]:
    """Of one window, from a line to a page."""
    dice = random.Random(SEED)
    pieces = installed_pieces(20 * TEXTS, dice)
    cut = [piece[: dice.randint(40, len(piece))] for piece in pieces]
    return [text for text in cut if len(library.tokenizer(text, verbose=False)["input_ids"]) <= 250][:TEXTS]


def cosines(ours: Sequence[Vector], theirs: Sequence[Vector]) -> np.ndarray:
    left, right = np.array(ours), np.array(theirs)
    return (left * right).sum(1) / np.linalg.norm(left, axis=1) / np.linalg.norm(right, axis=1)


async def cpu_s(work: Awaitable[object]) -> float:
    """Of all threads of this process."""
    before = time.process_time()
    await work
    return time.process_time() - before


async def test_documents_and_queries(
    embedder: SentenceTransformersEmbedder,
    on_torch: SentenceTransformersEmbedder,
    library: SentenceTransformer,
    texts: list[str],
) -> None:
    async def at_once(some: Sequence[str]) -> list[Vector]:
        return [*library.encode(list(some), show_progress_bar=False)]

    async def as_they_arrive(some: Sequence[str]) -> list[Vector]:
        batches = [some[start : start + ARRIVING] for start in range(0, len(some), ARRIVING)]
        return [vector for batch in batches for vector in await at_once(batch)]

    ways: dict[str, Encode] = {
        "Sherlock": embedder.embed_texts,
        "one `encode` of all": at_once,
        f"`encode` of each {ARRIVING} as they arrive": as_they_arrive,
    }
    spent: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, encode in ways.items():
            spent[name].append(await cpu_s(encode(texts)))
    least = cosines(await embedder.embed_texts(texts), await at_once(texts)).min()
    rate = {name: TEXTS / statistics.median(rounds) for name, rounds in spent.items()}

    def question(number: int) -> str:
        # No two alike, so that no cache knows them.
        return " ".join(texts[number % TEXTS].split()[: 5 + number % 8]) + f" {number}"

    def questions(first: int) -> list[str]:
        return [question(number) for number in range(first, first + QUERIES)]

    queries: dict[str, Callable[[str], Awaitable[object]]] = {
        "Sherlock": embedder.embed_query,
        "Sherlock until the encoder is exported": on_torch.embed_query,
        "`encode`": lambda text: at_once([text]),
    }
    query_ms: dict[str, list[float]] = {name: [] for name in queries}
    for asked in questions(0):
        for name, encode_one in queries.items():
            query_ms[name].append(await cpu_s(encode_one(asked)) * 1000)
    others = questions(QUERIES)[:20]
    closest = cosines([await embedder.embed_query(text) for text in others], await at_once(others)).min()

    report.keep(
        "Encoder",
        "make bench PYTEST_ARGS=tests/benchmarks/test_encoder_speed.py",
        f"all-MiniLM-L6-v2, one thread, {TEXTS} texts of up to 250 word pieces; chunks a second of processor "
        f"time, medians of {ROUNDS} rounds in turn. The least cosine to the library's vectors: {least:.6f}.",
        report.table(
            ["documents", "chunks a CPU second", "Sherlock is so many times as fast"],
            [[name, each, rate["Sherlock"] / each] for name, each in rate.items()],
        ),
        f"Queries of 6 to 13 words, medians of {QUERIES}; the least cosine to the library's: {closest:.6f}.",
        report.table(
            ["one query", "CPU ms"], [[name, statistics.median(each)] for name, each in query_ms.items()]
        ),
    )
    assert least >= 0.9999
    assert closest >= 0.9999


async def test_queries_while_documents_are_encoded(
    embedder: SentenceTransformersEmbedder, texts: list[str]
) -> None:
    async def waits(kind: str) -> list[float]:
        took = []
        for number in range(QUERIES):
            began = time.perf_counter()
            await embedder.embed_query(f"{kind} question number {number} about the encoder")
            took.append((time.perf_counter() - began) * 1000)
        return took

    alone = await waits("a quiet")

    async def ingest() -> None:
        while True:
            await embedder.embed_documents(texts)

    ingesting = asyncio.create_task(ingest())
    await asyncio.sleep(0.1)
    began = time.perf_counter()
    await embedder.embed_documents(texts[:1])  # queues behind, as a query would
    behind_ms = (time.perf_counter() - began) * 1000
    beside = await waits("a busy")
    ingesting.cancel()
    await asyncio.gather(ingesting, return_exceptions=True)
    report.keep(
        "Queries while documents are encoded",
        "make bench PYTEST_ARGS=tests/benchmarks/test_encoder_speed.py",
        f"Milliseconds of wall time for a query that no cache knows, {QUERIES} of them; a short text that "
        f"queues behind {TEXTS} documents waits {behind_ms:.0f}.",
        report.table(
            ["queries", "p50", "p95"],
            [
                [name, statistics.median(took), statistics.quantiles(took, n=20)[-1]]
                for name, took in (("alone", alone), ("beside documents in the same process", beside))
            ],
        ),
    )
    assert statistics.median(beside) < behind_ms / 4
