"""Search in large stores: time, recall against an exact scan, size, and two other designs beside it.

Four stores in one database hold 100,000 chunks (`BENCH_CHUNKS`), a tenth, a hundredth and a thousandth of
that. Filters let the same shares of the large one through. All designs search the same vectors in the same
PostgreSQL, set up as Sherlock's local mode does.

Run with `make bench PYTEST_ARGS=tests/benchmarks/test_scale.py`; it writes `docs/benchmarks.md`. The first
run encodes some 3,000 texts, which takes five minutes on an idle machine.
"""

import asyncio
import os
import random
import secrets
import statistics
import time
from array import array
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, replace
from functools import partial

import asyncpg
import httpx
import numpy as np
import pytest
from pgvector import HalfVector
from tests.benchmarks import report
from tests.benchmarks.clock import Clock, Times
from tests.benchmarks.corpus import COLLECTION, Corpus, corpus
from tests.benchmarks.other_designs import Design, LangChain, Weighted, connected
from tests.benchmarks.sherlock_tables import CHUNKS_PER_FILE, Built, Store, build
from tests.integration.processes import deployment

from sherlock import evaluate
from sherlock.local_models import DEFAULT_ENCODER
from sherlock.rag import terms
from sherlock.rag.adapters.pgvector import PgvectorIndex
from sherlock.rag.adapters.pgvector import search as search_module
from sherlock.rag.adapters.postgres import Database
from sherlock.rag.adapters.postgres_catalog import PostgresCatalog
from sherlock.rag.adapters.postgres_queue import PostgresIngestQueue
from sherlock.rag.domain import ranking
from sherlock.rag.domain.models import (
    DEFAULT_WORKSPACE,
    Candidate,
    Chunk,
    ChunkingStrategy,
    Comparison,
    EmbeddedChunk,
    Filter,
    IndexQuery,
    IngestJob,
    StoredFile,
)

pytestmark = [pytest.mark.benchmark, pytest.mark.torch, pytest.mark.timeout(6 * 3600)]

CHUNKS = int(os.environ.get("BENCH_CHUNKS", "100000"))
SHARES = (10, 100, 1000)
"""Of CHUNKS, one part in so many."""
CANDIDATES, ALPHA, PAGE = 50, 0.7, 10
ASKED, EXACT_QUESTIONS = 100, 100
JUDGED_QUESTIONS = 40
PROMISED_CHUNKS = 100_000
"""Up to which recall has a bound; of more it is only told."""
COMPARED_QUESTIONS = 30
"""Of the other designs, where only time is measured."""
ERROR_CODES, RARE_WORDS = 40, 40
INSERTED_FILES = 10
CHUNKING = ChunkingStrategy(512, 50)
COMMAND = f"BENCH_CHUNKS={CHUNKS} make bench PYTEST_ARGS=tests/benchmarks/test_scale.py"
LEGS = {"dense": 1.0, "keyword": 0.0, "hybrid": ALPHA}
"""The weight of the dense score."""
SCORES = {"dense": "cosine", "keyword": "keyword"}
"""What a leg ranks by."""
DOCUMENT_FREQUENCY = "select df from sherlock.term_df where store_no = $1 and key = $2"
BARE_GRAPH = """
    select chunk_id from sherlock.chunk_windows
    where store_no = $1 and dim = 384
    order by embedding::halfvec(384) <#> CAST($2 as halfvec) limit 50
"""


@dataclass(frozen=True)
class Selection:
    """What a search looks at: a store, or the files of the large one below a number."""

    name: str
    store: Store
    below: int | None = None

    @property
    def filter(self) -> Filter | None:
        return None if self.below is None else Comparison("lt", "number", float(self.below))


class Benchmark:
    """The filled database, and how to ask it."""

    def __init__(
        self, database: Database, owner: asyncpg.Connection, clock: Clock, stores: list[Store], known: Corpus
    ) -> None:
        self.database = database
        self.owner = owner
        self.clock = clock
        self.index = PgvectorIndex(database)
        self.stores = stores
        self.corpus = known
        self.built = Built()

    @property
    def selections(self) -> list[Selection]:
        large = self.stores[0]
        of_stores = [Selection(f"a store of {len(store.texts):,}", store) for store in self.stores]
        of_files = [
            Selection(f"a filter for {part(share):,} of {CHUNKS:,}", large, part(share) // CHUNKS_PER_FILE)
            for share in SHARES
        ]
        return of_stores + of_files

    def query(self, number: int, selection: Selection, alpha: float) -> IndexQuery:
        number %= len(self.corpus.questions)
        vector = array("f", self.corpus.question_vectors[number])
        asked = self.corpus.questions[number]
        return IndexQuery(asked, vector, (selection.store.id,), alpha, CANDIDATES, selection.filter)

    async def store_no(self) -> int:
        """Of the large store."""
        number: int = await self.owner.fetchval(
            "select store_no from sherlock.vector_stores where id = $1", self.stores[0].id
        )
        return number

    async def search(self, query: IndexQuery) -> list[Candidate]:
        return await self.index.search(DEFAULT_WORKSPACE, query)

    async def exact(self, query: IndexQuery) -> list[Candidate]:
        with pytest.MonkeyPatch.context() as exactly:
            for bound in ("SCAN_COST_RATIO", "KEYWORD_BUDGET", "FILTERED_KEYWORD_BUDGET"):
                exactly.setattr(search_module, bound, 10**9)
            return await self.search(query)


def part(share: int) -> int:
    """Chunks in whole files."""
    return max(CHUNKS // share // CHUNKS_PER_FILE, 1) * CHUNKS_PER_FILE


def recall(found: list[Candidate], exact: list[Candidate], leg: str) -> float:
    """The share of `exact` that `found` has, or has an equal for."""
    least = min(getattr(candidate, leg) for candidate in exact)
    reached: int = sum(getattr(candidate, leg) >= least - 1e-4 for candidate in found)
    return min(reached / len(exact), 1.0)


def position(candidate: Candidate) -> int:
    """Of a chunk within its store."""
    return int(candidate.file_id.rpartition("-")[2]) * CHUNKS_PER_FILE + candidate.chunk_index


def error_codes() -> list[str]:
    dice = random.Random(5)
    return [f"E{dice.randrange(16**5):05X}-{dice.randrange(100):02}" for _ in range(ERROR_CODES)]


def made_stores(known: Corpus) -> list[Store]:
    """The large one, in which each error code stands once, and the smaller ones."""
    documents = known.judged.documents if known.judged else []
    own = CHUNKS - len(documents)
    texts = known.texts[:own]
    for code, at in zip(error_codes(), random.Random(6).sample(range(own), ERROR_CODES), strict=True):
        texts[at] += f"\nraise ServiceError('{code}')\n"
    vectors = known.vectors[:own]
    if known.judged:
        texts = texts + [text for _, text in documents]
        vectors = np.concatenate([vectors, known.judged.vectors])
    stores = [Store("vs_1", texts, vectors)]
    start = own
    for share in SHARES:
        end = start + part(share)
        stores.append(Store(f"vs_{share}", known.texts[start:end], known.vectors[start:end]))
        start = end
    return stores


async def speed_and_recall(bench: Benchmark) -> list[tuple[Selection, str, Times, float | None]]:
    """Each leg in each selection, and its recall; both legs together have none of their own."""
    measured: list[tuple[Selection, str, Times, float | None]] = []
    for selection in bench.selections:
        for leg, alpha in LEGS.items():
            queries = [bench.query(number, selection, alpha) for number in range(ASKED)]
            await bench.clock.times(bench.search, queries[:10])
            times = await bench.clock.times(bench.search, queries)
            recalls = []
            if score := SCORES.get(leg):
                for query in queries[:EXACT_QUESTIONS]:
                    found, exact = await bench.search(query), await bench.exact(query)
                    assert len(found) == len(exact)
                    recalls += [recall(found, exact, score)] if exact else []
            measured.append((selection, leg, times, statistics.fmean(recalls) if recalls else None))
            print(selection.name, leg, times, measured[-1][-1], flush=True)
    return measured


async def bare_graph(bench: Benchmark) -> Times:
    """The plain nearest-neighbour statement, with the walk that Sherlock's search asks for."""
    store_no = await bench.store_no()
    await bench.owner.execute(
        f"set hnsw.ef_search = {search_module.EF_SEARCH}; set hnsw.iterative_scan = relaxed_order"
    )

    async def walk(vector: HalfVector) -> None:
        await bench.owner.fetch(BARE_GRAPH, store_no, vector)

    vectors = [HalfVector(vector) for vector in bench.corpus.question_vectors]
    await bench.clock.times(walk, vectors[:10])
    return await bench.clock.times(walk, vectors)


class Sherlock:
    """As a `Design`: both legs, fused, without the reranker."""

    name = "Sherlock"

    def __init__(self, bench: Benchmark) -> None:
        self._bench = bench

    async def search(
        self, store: str, text: str, vector: np.ndarray, below: int | None, limit: int
    ) -> list[int]:
        where = None if below is None else Comparison("lt", "number", float(below))
        query = IndexQuery(text, array("f", vector), (store,), ALPHA, CANDIDATES, where)
        fused = ranking.fuse(await self._bench.search(query), ALPHA)
        return [position(candidate) for candidate, _ in fused[:limit]]


async def rare_words(bench: Benchmark) -> list[str]:
    """Words whose term stands in up to three chunks of the large store."""
    store_no = await bench.store_no()
    dice = random.Random(9)
    rare: list[str] = []
    while len(rare) < RARE_WORDS:
        for word in dice.choice(bench.stores[0].texts).split():
            if word.isalpha() and len(found := terms.terms(word)) == 1:
                key = terms.store_key(store_no, terms.term_key(found[0]))
                df = await bench.owner.fetchval(DOCUMENT_FREQUENCY, store_no, key)
                if df is not None and df <= 3:
                    rare.append(word)
                    break
    return rare[:RARE_WORDS]


async def missed(bench: Benchmark, words: Iterable[str]) -> list[str]:
    """Of words asked for by themselves those that no candidate of a hybrid search holds."""
    lost = []
    for number, word in enumerate(words):
        # With the vector of something else, so that the keyword leg has to find it.
        query = replace(bench.query(number, bench.selections[0], ALPHA), text=word)
        wanted = set(terms.terms(word))
        if not any(wanted <= set(terms.terms(candidate.text)) for candidate in await bench.search(query)):
            lost.append(word)
    return lost


async def insert(bench: Benchmark) -> Times:
    """Files of 100 chunks staged and published into the large store, as a worker does."""
    database, vectors = bench.database, bench.corpus.vectors
    catalog, queue, index = PostgresCatalog(database), PostgresIngestQueue(database), bench.index
    work: list[tuple[IngestJob, list[EmbeddedChunk]]] = []
    for number in range(INSERTED_FILES):
        now = int(time.time())
        file = StoredFile(
            f"file-{secrets.token_hex(8)}-{number}",
            DEFAULT_WORKSPACE,
            "new.txt",
            "assistants",
            1,
            "0" * 64,
            now,
        )
        await catalog.add_file(file)
        await catalog.attach_file(
            DEFAULT_WORKSPACE, "vs_1", file.id, attributes=None, chunking=CHUNKING, chunking_given=False
        )
        job = await queue.claim("benchmark", lease_s=3600)
        assert job is not None
        texts = bench.corpus.texts[number * CHUNKS_PER_FILE : (number + 1) * CHUNKS_PER_FILE]
        chunks = [
            EmbeddedChunk(Chunk(at, text, 0, len(text)), [array("f", vectors[-at - 1])])
            for at, text in enumerate(texts)
        ]
        work.append((job, chunks))

    async def ingest(one: tuple[IngestJob, list[EmbeddedChunk]]) -> None:
        job, chunks = one
        await index.stage(job.lease, chunks)
        await queue.complete(job.lease, await index.publish(job.lease, len(chunks)))

    return await bench.clock.times(ingest, work)


async def over_http(url: str, bench: Benchmark) -> tuple[Times, list[str]]:
    """Searches that no cache knows, and the error codes that are not on the first page."""

    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=120) as client:

        async def ask(question: str) -> list[str]:
            body = {"query": question, "max_num_results": PAGE, "ranking_options": {"ranker": "none"}}
            answer = (await client.post("/v1/vector_stores/vs_1/search", json=body)).raise_for_status()
            return [result["content"][0]["text"] for result in answer.json()["data"]]

        lost = [code for code in error_codes() if not any(code in text for text in await ask(code))]
        await asyncio.sleep(10)  # the exported encoder is there by now
        return await bench.clock.times(ask, bench.corpus.questions), lost


@pytest.fixture(scope="module")
async def bench(owner_url: str, database: Database) -> AsyncIterator[Benchmark]:
    known = await corpus(CHUNKS + sum(part(share) for share in SHARES))
    stores = made_stores(known)
    owner = await connected(owner_url)
    clock = Clock(await owner.fetchval("select pg_backend_pid()"))
    bench = Benchmark(database, owner, clock, stores, known)
    bench.built = await build(owner_url, DEFAULT_WORKSPACE, DEFAULT_ENCODER, stores)
    print(bench.built, flush=True)
    yield bench
    await owner.close()


async def test_search(bench: Benchmark, owner_url: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    measured = await speed_and_recall(bench)
    bare = await bare_graph(bench)
    lost = await missed(bench, [*error_codes(), *await rare_words(bench)])
    inserted = await insert(bench)
    served = deployment(
        tmp_path_factory.mktemp("served"),
        ready_path="/health",
        postgres_url=owner_url,
        reranker_model="none",
        llm_base_url="http://127.0.0.1:9/v1",  # never asked
    )
    with served.running("serve"):
        http, lost_over_http = await over_http(served.url, bench)

    version: str = await bench.owner.fetchval("show server_version")
    chunks = sum(len(store.texts) for store in bench.stores)
    built_s = sum(bench.built.seconds.values())
    hybrid = next(times for _, leg, times, _ in measured if leg == "hybrid")
    report.keep(
        f"Search in {CHUNKS:,} chunks",
        COMMAND,
        f"PostgreSQL {version.split()[0]} with the local mode's settings; {chunks:,} chunks of some "
        f"{statistics.fmean(map(len, bench.corpus.texts)):.0f} characters in four stores. Milliseconds; CPU "
        f"is the database's. Recall is that of the first {CANDIDATES} against an exact scan.",
        report.table(
            ["searched", "leg", "p50", "p95", "CPU", f"recall@{CANDIDATES}"],
            [
                [where.name, leg, times.p50, times.p95, times.cpu_ms, "" if found is None else f"{found:.3f}"]
                for where, leg, times, found in measured
            ],
        ),
        f"The bare graph statement in the largest store: p50 {bare.p50:.1f}, p95 {bare.p95:.1f}, CPU "
        f"{bare.cpu_ms:.1f} ms; hybrid p95 is {hybrid.p95 / bare.p50:.1f} times its p50. Through HTTP, with "
        f"encoding the query: p50 {http.p50:.1f}, p95 {http.p95:.1f} ms.",
        f"Of {ERROR_CODES} error codes and {RARE_WORDS} words of at most three chunks, asked for with the "
        f"vector of something else, {len(lost)} were missed; of the codes, through HTTP, "
        f"{len(lost_over_http)} were not on the first page.",
        f"Building took {built_s:.0f} s ("
        + ", ".join(f"{step} {seconds:.0f}" for step, seconds in bench.built.seconds.items())
        + f"), {chunks / built_s:.0f} chunks a second. Staging and publishing files of {CHUNKS_PER_FILE} "
        f"chunks into the largest store: {inserted.p50 / CHUNKS_PER_FILE:.1f} ms a chunk, "
        f"{inserted.cpu_ms / CHUNKS_PER_FILE:.1f} of them the database's CPU.",
        report.table(["table or index", "MiB"], bench.built.mebibytes.items()),
    )
    for where, leg, _, found in measured if CHUNKS <= PROMISED_CHUNKS else []:
        whole_dense = leg == "dense" and where.below is None
        assert found is None or found >= (0.98 if whole_dense else 0.97), (where.name, leg)
    assert not lost
    assert not lost_over_http


async def test_beside_other_designs(bench: Benchmark) -> None:
    others: list[Weighted | LangChain] = [Weighted(bench.owner), LangChain(bench.owner)]
    build_s = {other.name: await other.build(bench.stores) for other in others}
    designs: list[Design] = [Sherlock(bench), *others]
    rows: list[list[object]] = []
    median_ms: dict[str, float] = {}
    for selection in bench.selections:
        row: list[object] = [selection.name]
        for design in designs:
            ask = partial(_ask, bench, design, selection)
            for number in range(COMPARED_QUESTIONS):  # once before: the other designs' pages fill the memory
                await ask(number)
            times = await bench.clock.times(ask, range(COMPARED_QUESTIONS))
            median_ms.setdefault(design.name, times.p50)  # of the first selection, the large store
            row += [times.p50, times.cpu_ms]
        rows.append(row)
        print(row, flush=True)
    ndcg = {design.name: await ndcg_of(bench, design) for design in designs} if bench.corpus.judged else {}
    report.keep(
        f"{CHUNKS:,} chunks in other designs",
        COMMAND,
        f"The same chunks and vectors in the same database; p50 and the database's CPU for the best {PAGE}, "
        "in milliseconds. Built in "
        + ", ".join(f"{seconds:.0f} s ({name})" for name, seconds in build_s.items())
        + ".",
        report.table(
            ["searched", *(f"{design.name}: {what}" for design in designs for what in ("p50", "CPU"))], rows
        ),
        f"nDCG@{PAGE} of {JUDGED_QUESTIONS} {COLLECTION} questions among the {CHUNKS:,}: "
        + (", ".join(f"{name} {value:.3f}" for name, value in ndcg.items()) or "no collection here")
        + ".",
    )
    if CHUNKS >= 100_000:  # in small stores a scan is as good
        assert median_ms["Sherlock"] * 20 < median_ms[Weighted.name]
        assert median_ms["Sherlock"] < median_ms[LangChain.name]
    if ndcg:
        assert ndcg["Sherlock"] == max(ndcg.values())


async def _ask(bench: Benchmark, design: Design, selection: Selection, number: int) -> list[int]:
    asked, vector = bench.corpus.questions[number], bench.corpus.question_vectors[number]
    return await design.search(selection.store.id, asked, vector, selection.below, PAGE)


async def ndcg_of(bench: Benchmark, design: Design) -> float:
    """Of the first judged questions, in the large store."""
    judged = bench.corpus.judged
    assert judged is not None
    names = {CHUNKS - len(judged.documents) + at: name for at, (name, _) in enumerate(judged.documents)}
    scores = []
    asked = list(zip(judged.queries, judged.query_vectors, strict=True))[:JUDGED_QUESTIONS]
    for query, vector in asked:
        found = await design.search("vs_1", query.text, vector, None, PAGE)
        ranked = [names.get(at, f"other {at}") for at in found]
        scores.append(evaluate.ndcg_at_k(ranked, query.grades, PAGE))
    return statistics.fmean(scores)
