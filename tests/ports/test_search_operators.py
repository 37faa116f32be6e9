"""Quoted phrases and exclusions: every `ChunkIndex` finds just the chunks that hold them, and all of those.

What a phrase and an excluded word mean is said here once more, for words without inflection.
"""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.fakes import InMemoryCatalog, InMemoryIngestQueue, MemoryState
from tests.fakes_index import InMemoryChunkIndex
from tests.ports.test_chunk_index import Bench, recorded, texts_of

from sherlock.rag.adapters.hash_embedder import HashEmbedder
from sherlock.rag.adapters.pgvector import PgvectorIndex
from sherlock.rag.adapters.pgvector import search as search_module
from sherlock.rag.adapters.postgres import Database
from sherlock.rag.adapters.postgres_catalog import PostgresCatalog
from sherlock.rag.adapters.postgres_queue import PostgresIngestQueue
from sherlock.rag.domain.models import Candidate, Comparison, Filter, IndexQuery, WorkspaceId
from sherlock.rag.domain.operators import Operators, read_operators

EMBEDDER = HashEmbedder(384)
WORDS = ["pump", "oil", "rotor", "the"]  # the last is a stop word
# Every order of two and three words, apart and together, in two files.
TEXTS = [f"{a} {b} {c}" for a in WORDS for b in WORDS for c in ("seal", "of", "pump")]


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


async def search(
    bench: Bench,
    asked: str | tuple[str, Operators],
    *stores: str,
    alpha: float = 0.7,
    candidates: int = 50,
    where: Filter | None = None,
) -> list[Candidate]:
    text, operators = read_operators(asked) if isinstance(asked, str) else asked
    vector = await EMBEDDER.embed_query(text) if alpha > 0 else None
    query = IndexQuery(text, vector, stores, alpha, candidates, where, operators)
    return await bench.index.search(bench.workspace, query)


async def test_operators_by_hand(bench: Bench) -> None:
    store = await bench.add_store()
    texts = [
        "The feed pump stops.",
        "A pump to feed cattle.",
        "Feed-pumps and other machines.",
        "See /etc/app/config.yaml for the oil.",
        "新東京都庁の案内",
        "to be or not to be",
        "The Universe is vast.",
        "The university is old.",
        "Run readFile twice.",
    ]
    await bench.ingest(store, texts)

    async def found(query: str, alpha: float = 0.7) -> set[int]:
        return {texts.index(one) for one in texts_of(await search(bench, query, store, alpha=alpha))}

    for alpha in (0.0, 0.7, 1.0):
        assert await found('"feed pump"', alpha) == {0}
        assert await found('"FEED PUMPS"', alpha) == {2}
        assert await found('"config.yaml"', alpha) == {3}
        assert await found('"東京都"', alpha) == {4}
        assert await found('"都"', alpha) == {4}
        assert await found('"to be or not"', alpha) == {5}
        assert await found('"readfile"', alpha) == {8}
        assert await found('"oil pump"', alpha) == set()
        assert await found('"the" "oil"', alpha) == {3}
    everything = set(range(len(texts)))
    assert await found("machine -pump") == everything - {0, 1, 2}
    assert await found("machine -the") == everything - {0, 3, 6, 7}
    assert await found('machine -"feed pump"') == everything - {0}
    assert await found('the -"universe"') == everything - {6}
    assert await found("都 -案内") == everything - {4}
    assert await found('"the" machine -"feed pump" -oil') == {6, 7}


async def test_operators_and_filters_and_stores_together(bench: Bench) -> None:
    one, other = await bench.add_store(), await bench.add_store()
    await bench.ingest(one, TEXTS, {"file": "a"})
    await bench.ingest(one, TEXTS[:5], {"file": "b"})
    await bench.ingest(other, ["the oil pump", "the oil and the pump"])
    where = Comparison("eq", "file", "b")
    assert texts_of(await search(bench, '"pump pump seal"', one, where=where)) == {"pump pump seal"}
    assert len(await search(bench, '"pump pump seal"', one)) == 2
    both = texts_of(await search(bench, 'seal "oil pump"', one, other))
    assert both == {one for one in [*TEXTS, "the oil pump"] if "oil pump" in one}


def meets(text: str, operators: Operators) -> bool:
    words = text.split()
    return all(f" {one} " in f" {text} " for one in operators.phrases) and not any(
        one in words for one in operators.excluded_words
    )


phrases = st.lists(st.sampled_from(WORDS), min_size=1, max_size=3).map(" ".join)


@pytest.fixture
async def filled(bench: Bench) -> tuple[Bench, str]:
    store = await bench.add_store()
    await bench.ingest(store, TEXTS[::2])
    await bench.ingest(store, TEXTS[1::2])
    return bench, store


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    required=st.lists(phrases, max_size=2),
    excluded=st.lists(st.sampled_from(["oil", "rotor", "seal", "the"]), max_size=2),
    alpha=st.sampled_from([0.0, 0.7, 1.0]),
    candidates=st.sampled_from([1, 5, 50]),
)
async def test_just_the_chunks_that_meet_the_operators(
    filled: tuple[Bench, str], required: list[str], excluded: list[str], alpha: float, candidates: int
) -> None:
    bench, store = filled
    operators = Operators(tuple(required), tuple(excluded))
    asked = "pump oil rotor seal of " + " ".join(required), operators
    found = await search(bench, asked, store, alpha=alpha, candidates=candidates)
    expected = [text for text in TEXTS if meets(text, operators)]
    assert all(candidate.text in expected for candidate in found)
    if alpha > 0 or required:  # keywords alone find nothing in "the the of"
        assert len(found) >= min(candidates, len(expected))


async def test_the_best_that_meet_them_by_graph_and_lists(
    postgres_bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By their estimates both legs would bring chunks that hold what is excluded, and too few others."""
    bench = postgres_bench
    store = await bench.add_store()
    for number in range(4):
        await bench.ingest(store, [f"pump oil rotor {n} {number}" for n in range(60)])
    await bench.ingest(store, [f"pump oil blade {n}" for n in range(60)])

    async def scores(query: str, alpha: float) -> list[float]:
        found = await search(bench, query, store, alpha=alpha, candidates=40)
        assert len(found) == 40
        assert all("rotor" not in candidate.text for candidate in found)
        leg = "cosine" if alpha else "keyword"
        return sorted(round(getattr(candidate, leg), 4) for candidate in found)

    for query in ("pump oil rotor -rotor", 'pump oil rotor -"oil rotor"', 'rotor "oil blade"'):
        for alpha in (0.0, 1.0):
            exact = await scores(query, alpha)
            with monkeypatch.context() as patch:
                patch.setattr(search_module, "SCAN_COST_RATIO", 0.0)
                patch.setattr(search_module, "KEYWORD_BUDGET", 1)
                patch.setattr(search_module, "TEXTS_AT_ONCE", 7)
                assert await scores(query, alpha) == exact


async def test_rows_without_a_policy_are_read_behind_their_chunks(
    postgres_bench: Bench, database: Database
) -> None:
    bench = postgres_bench
    store = await bench.add_store()
    await bench.ingest(store, TEXTS)
    with recorded(database) as statements:
        for query in ("pump -oil", '"pump oil"', 'pump -"the oil"'):
            await search(bench, query, store)
    reading = [one.replace("to_regclass('chunk_windows')", "") for one in statements]
    narrow = [one for one in reading if "chunk_windows" in one or "chunk_terms" in one]
    assert len(narrow) >= 1 + 2 * 3  # two legs and the search itself, where texts are read
    assert all("knowledge_chunks" in one and "store_no" in one for one in narrow)
