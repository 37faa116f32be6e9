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
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace

import asyncpg
import httpx
import numpy as np
import psutil
import pytest
from sqlalchemy import text as sql
from tests.benchmarks import report
from tests.benchmarks.corpus import COLLECTION, Corpus, corpus
from tests.benchmarks.other_designs import Design, LangChain, Weighted, connected
from tests.benchmarks.sherlock_tables import CHUNKS_PER_FILE, Store, build
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
    StoredFile,
)

pytestmark = [pytest.mark.benchmark, pytest.mark.torch, pytest.mark.timeout(6 * 3600)]

CHUNKS = int(os.environ.get("BENCH_CHUNKS", "100000"))
SHARES = (10, 100, 1000)
"""Of CHUNKS, one part in so many."""
CANDIDATES, ALPHA, PAGE = 50, 0.7, 10
ASKED, EXACT_QUESTIONS = 100, 30
JUDGED_QUESTIONS = 40
COMPARED_QUESTIONS = 6
"""Of the other designs, where only time is measured."""
ERROR_CODES, RARE_WORDS = 40, 40
INSERTED_FILES = 10
CHUNKING = ChunkingStrategy(512, 50)
LEGS = {"dense": 1.0, "keyword": 0.0, "hybrid": ALPHA}
BARE_GRAPH = """
    select chunk_id from sherlock.chunk_windows
    where store_no = $1 and dim = 384
    order by embedding::halfvec(384) <#> CAST($2 as text)::halfvec(384) limit 50
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


@dataclass(frozen=True)
class Times:
    wall_ms: list[float]
    cpu_ms: float
    """The database's, on average; what other processes do to the wall time does not show in it."""

    @property
    def p50(self) -> float:
        return statistics.median(self.wall_ms)

    @property
    def p95(self) -> float:
        return sorted(self.wall_ms)[int(0.95 * (len(self.wall_ms) - 1))]


class Benchmark:
    """The filled database, and how to ask it."""

    def __init__(
        self, database: Database, server: psutil.Process, stores: list[Store], known: Corpus
    ) -> None:
        self._server = server
        self.database = database
        self.index = PgvectorIndex(database)
        self.stores = stores
        self.corpus = known

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

    async def search(self, query: IndexQuery) -> list[Candidate]:
        return await self.index.search(DEFAULT_WORKSPACE, query)

    async def exact(self, query: IndexQuery) -> list[Candidate]:
        with pytest.MonkeyPatch.context() as exactly:
            for bound in ("SCAN_COST_RATIO", "KEYWORD_BUDGET", "FILTERED_KEYWORD_BUDGET"):
                exactly.setattr(search_module, bound, 10**9)
            return await self.search(query)

    async def time(self, calls: Iterable[Callable[[], Awaitable[object]]]) -> Times:
        took, before = [], self._cpu_s()
        for call in calls:
            began = time.perf_counter()
            await call()
            took.append((time.perf_counter() - began) * 1000)
        return Times(took, (self._cpu_s() - before) / len(took) * 1000)

    def _cpu_s(self) -> float:
        spent = 0.0
        for process in self._server.children():
            times = process.cpu_times()
            spent += times.user + times.system
        return spent


def part(share: int) -> int:
    """Chunks in whole files."""
    return max(CHUNKS // share // CHUNKS_PER_FILE, 1) * CHUNKS_PER_FILE


def recall(found: list[Candidate], exact: list[Candidate], leg: str) -> float:
    """The share of `exact` that `found` has, or has an equal for."""
    least = min(getattr(candidate, leg) for candidate in exact)
    reached = sum(getattr(candidate, leg) >= least - 1e-4 for candidate in found)
    return min(reached / len(exact), 1.0)


def position(candidate: Candidate) -> int:
    """Of a chunk within its store."""
    return int(candidate.file_id.rpartition("-")[2]) * CHUNKS_PER_FILE + candidate.chunk_index


def made_stores(known: Corpus) -> tuple[list[Store], dict[str, int]]:
    """The stores, and where in the large one the error codes stand."""
    dice = random.Random(5)
    documents = known.judged.documents if known.judged else []
    own = CHUNKS - len(documents)
    texts = known.texts[:own]
    codes = {
        f"E{dice.randrange(16**5):05X}-{dice.randrange(100):02}": at
        for at in dice.sample(range(own), ERROR_CODES)
    }
    for code, at in codes.items():
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
    return stores, codes


async def speed_and_recall(bench: Benchmark) -> list[list[object]]:
    rows: list[list[object]] = []
    questions = range(ASKED)
    for selection in bench.selections:
        for leg, alpha in LEGS.items():
            queries = [bench.query(number, selection, alpha) for number in questions]
            await bench.time(lambda q=q: bench.search(q) for q in queries[:10])  # type: ignore[misc]
            times = await bench.time(lambda q=q: bench.search(q) for q in queries)  # type: ignore[misc]
            found_all, score = "", {"dense": "cosine", "keyword": "keyword"}.get(leg)
            if score:
                recalls = []
                for query in queries[:EXACT_QUESTIONS]:
                    found, exact = await bench.search(query), await bench.exact(query)
                    assert len(found) == len(exact)
                    if exact:
                        recalls.append(recall(found, exact, score))
                found_all = f"{statistics.fmean(recalls):.3f}"
                assert statistics.fmean(recalls) >= (
                    0.98 if leg == "dense" and selection.below is None else 0.97
                )
            rows.append([selection.name, leg, times.p50, times.p95, times.cpu_ms, found_all])
            print(rows[-1], flush=True)
    return rows


async def bare_graph(bench: Benchmark, owner: asyncpg.Connection) -> Times:
    """The plain nearest-neighbour statement, with the walk that Sherlock's search asks for."""
    store_no = await owner.fetchval("select store_no from sherlock.vector_stores where id = 'vs_1'")
    await owner.execute(
        f"set hnsw.ef_search = {search_module.EF_SEARCH}; set hnsw.iterative_scan = relaxed_order"
    )
    vectors = [str(vector.tolist()) for vector in bench.corpus.question_vectors]
    await bench.time(lambda v=v: owner.fetch(BARE_GRAPH, store_no, v) for v in vectors[:10])  # type: ignore[misc]
    return await bench.time(lambda v=v: owner.fetch(BARE_GRAPH, store_no, v) for v in vectors)  # type: ignore[misc]


async def compared(
    bench: Benchmark, designs: list[Design]
) -> tuple[list[list[object]], dict[str, float], dict[str, float]]:
    """Rows of times; median milliseconds and nDCG@10 of each design in the large store."""
    rows: list[list[object]] = []
    median_ms: dict[str, float] = {}
    ndcg: dict[str, float] = {}
    for selection in bench.selections:
        row: list[object] = [selection.name]
        for design in designs:
            times = await bench.time(
                lambda d=design, n=n, s=selection: d.search(  # type: ignore[misc]
                    s.store.id, bench.corpus.questions[n], bench.corpus.question_vectors[n], s.below, PAGE
                )
                for n in range(COMPARED_QUESTIONS)
            )
            row += [times.p50, times.cpu_ms]
            if selection.store is bench.stores[0] and selection.below is None:
                median_ms[design.name] = times.p50
        rows.append(row)
        print(row, flush=True)
    if judged := bench.corpus.judged:
        first = CHUNKS - len(judged.documents)
        names = {first + at: name for at, (name, _) in enumerate(judged.documents)}
        asked = list(zip(judged.queries, judged.query_vectors, strict=True))[:JUDGED_QUESTIONS]
        for design in designs:
            scores = []
            for query, vector in asked:
                found = await design.search("vs_1", query.text, vector, None, PAGE)
                ranked = [names.get(at, f"other {at}") for at in found]
                scores.append(evaluate.ndcg_at_k(ranked, query.grades, PAGE))
            ndcg[design.name] = statistics.fmean(scores)
    return rows, median_ms, ndcg


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


async def rare_words(bench: Benchmark, owner: asyncpg.Connection) -> list[str]:
    """Words whose term stands in up to three chunks of the large store."""
    store_no = await owner.fetchval("select store_no from sherlock.vector_stores where id = 'vs_1'")
    dice = random.Random(9)
    rare: list[str] = []
    while len(rare) < RARE_WORDS:
        for word in dice.choice(bench.stores[0].texts).split():
            if word.isalpha() and len(found := terms.terms(word)) == 1:
                key = terms.store_key(store_no, terms.term_key(found[0]))
                df = await owner.fetchval(
                    "select df from sherlock.term_df where store_no = $1 and key = $2", store_no, key
                )
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
    took = []
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
        job = await queue.claim("benchmark", lease_s=600)
        assert job is not None
        texts = bench.corpus.texts[number * CHUNKS_PER_FILE : (number + 1) * CHUNKS_PER_FILE]
        chunks = [
            EmbeddedChunk(Chunk(at, text, 0, len(text)), [array("f", vectors[-at - 1])])
            for at, text in enumerate(texts)
        ]

        async def publish(job=job, chunks=chunks) -> None:  # type: ignore[no-untyped-def]
            await index.stage(job.lease, chunks)
            await queue.complete(job.lease, await index.publish(job.lease, len(chunks)))

        took.append(publish)
    return await bench.time(took)


async def over_http(url: str, bench: Benchmark, codes: Iterable[str]) -> tuple[Times, list[str]]:
    """Searches that no cache knows, and the error codes that are not on the first page."""

    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=120) as client:

        async def ask(question: str) -> list[str]:
            body = {"query": question, "max_num_results": PAGE, "ranking_options": {"ranker": "none"}}
            answer = (await client.post("/v1/vector_stores/vs_1/search", json=body)).raise_for_status()
            return [result["content"][0]["text"] for result in answer.json()["data"]]

        lost = [code for code in codes if not any(code in text for text in await ask(code))]
        await asyncio.sleep(10)  # the exported encoder is there by now
        times = await bench.time(lambda q=q: ask(q) for q in bench.corpus.questions)  # type: ignore[misc]
    return times, lost


async def test_scale(owner_url: str, database: Database, tmp_path_factory: pytest.TempPathFactory) -> None:
    known = await corpus(CHUNKS + sum(part(share) for share in SHARES))
    stores, codes = made_stores(known)
    built = await build(owner_url, DEFAULT_WORKSPACE, DEFAULT_ENCODER, stores)
    print(built, flush=True)
    owner = await connected(owner_url)
    server = psutil.Process(await owner.fetchval("select pg_backend_pid()")).parent()
    assert server is not None
    bench = Benchmark(database, server, stores, known)
    rows = await speed_and_recall(bench)
    bare = await bare_graph(bench, owner)
    lost = await missed(bench, [*codes, *await rare_words(bench, owner)])
    others: list[Design] = [Weighted(owner), LangChain(owner)]
    build_s = {design.name: await design.build(stores) for design in others}
    designs = [Sherlock(bench), *others]
    comparison, median_ms, ndcg = await compared(bench, designs)
    inserted = await insert(bench)
    folder = tmp_path_factory.mktemp("served")
    served = deployment(folder, postgres_url=owner_url, reranker_model="none")
    with served.running("serve"):
        http, lost_over_http = await over_http(served.url, bench, codes)
    async with database.transaction() as connection:
        version = (await connection.execute(sql("show server_version"))).scalar_one()
    await owner.close()

    chunks = sum(len(store.texts) for store in stores)
    hybrid_p95 = float(str(rows[2][3]))
    built_s = sum(built.seconds.values())
    report.keep(
        f"Search in {CHUNKS:,} chunks",
        f"BENCH_CHUNKS={CHUNKS} make bench PYTEST_ARGS=tests/benchmarks/test_scale.py",
        f"PostgreSQL {version.split()[0]} with the local mode's settings; {chunks:,} chunks of some "
        f"{statistics.fmean(map(len, known.texts)):.0f} characters in four stores. Milliseconds; CPU is the "
        f"database's. Recall is that of the first {CANDIDATES} against an exact scan.",
        report.table(["searched", "leg", "p50", "p95", "CPU", f"recall@{CANDIDATES}"], rows),
        f"The bare graph statement in the largest store: p50 {bare.p50:.1f}, p95 {bare.p95:.1f}, CPU "
        f"{bare.cpu_ms:.1f} ms; hybrid p95 is {hybrid_p95 / bare.p50:.1f} times its p50. Through HTTP, with "
        f"encoding the query: p50 {http.p50:.1f}, p95 {http.p95:.1f} ms.",
        f"Of {len(codes)} error codes and {RARE_WORDS} words of at most three chunks, asked for with the "
        f"vector of something else, {len(lost)} were missed; of the codes, through HTTP, "
        f"{len(lost_over_http)} were not on the first page.",
        f"The same vectors in other designs, p50 and the database's CPU for the best {PAGE} (built in "
        + ", ".join(f"{name}: {seconds:.0f} s" for name, seconds in build_s.items())
        + "):",
        report.table(
            ["searched", *(f"{design.name}: {what}" for design in designs for what in ("p50", "CPU"))],
            comparison,
        ),
        f"nDCG@{PAGE} of {JUDGED_QUESTIONS} {COLLECTION} questions among the {CHUNKS:,}: "
        + (", ".join(f"{name} {value:.3f}" for name, value in ndcg.items()) or "no collection here")
        + ".",
        f"Building took {built_s:.0f} s ("
        + ", ".join(f"{step} {seconds:.0f}" for step, seconds in built.seconds.items())
        + f"), {chunks / built_s:.0f} chunks a second. Staging and publishing files of {CHUNKS_PER_FILE} "
        f"chunks into the largest store: {inserted.p50 / CHUNKS_PER_FILE:.1f} ms a chunk, "
        f"{inserted.cpu_ms / CHUNKS_PER_FILE:.1f} of them the database's CPU.",
        report.table(["table or index", "MiB"], built.mebibytes.items()),
    )
    assert not lost
    assert not lost_over_http
    ours = median_ms.pop("Sherlock")
    assert ours * 20 < median_ms[Weighted.name]
    assert ours < median_ms[LangChain.name]
    if ndcg:
        assert ndcg["Sherlock"] == max(ndcg.values())
