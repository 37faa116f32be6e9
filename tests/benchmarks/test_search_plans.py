"""Which index each statement of a search takes, in stores and filters of many sizes, analysed or not.

10,000 chunks in stores of 91 %, 7 %, 1 % and 0.1 % of them, one window each, of 8 numbers: small vectors
make the same graph, sooner. The statements are the product's own, explained in place.

Run with `pytest -m benchmark tests/benchmarks/test_search_plans.py`.
"""

import json
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import asyncpg
import pytest
from pgvector import HalfVector
from sqlalchemy import event, text
from tests.conftest import new_database

from sherlock.embedded import EmbeddedPostgres
from sherlock.rag import terms
from sherlock.rag.adapters.pgvector import PgvectorIndex
from sherlock.rag.adapters.pgvector.values import sparse
from sherlock.rag.adapters.postgres import Database, driver, migrate
from sherlock.rag.domain.models import DEFAULT_WORKSPACE, Comparison, Filter, IndexQuery, Vector
from sherlock.rag.domain.operators import read_operators

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(600)]

DIMENSION = 8
STORES = {"vs_90": 9_190, "vs_7": 700, "vs_1": 100, "vs_01": 10}
FILE_CHUNKS = 10
QUESTION = "pump w7"
"""The first word stands in every chunk, the second in every fiftieth."""
VECTOR = Vector("f", [1.0, *[0.0] * (DIMENSION - 1)])

GRAPH, WINDOWS, KEYS, TERMS = "chunk_windows_8", "chunk_windows_file", "chunk_terms_keys", "chunk_terms_file"
LARGE = {"knowledge_chunks", "chunk_windows", "chunk_terms", "term_df"}


@pytest.fixture
async def owner_of_filled(embedded: EmbeddedPostgres) -> AsyncIterator[str]:
    async with new_database(embedded) as owner_url:
        yield owner_url


@pytest.fixture
async def filled(owner_of_filled: str) -> AsyncIterator[Database]:
    """The chunks in a database of their own, of which the server has no statistics."""
    url = await migrate(owner_of_filled, app_password=None, dimension=DIMENSION)
    owner = await asyncpg.connect(owner_of_filled)
    for table in (*LARGE, "vector_store_files", "vector_stores"):
        await owner.execute(f"alter table sherlock.{table} set (autovacuum_enabled = off)")
    await owner.close()
    database = await Database.open(url, pool_size=2)
    for store, chunks in STORES.items():
        await fill(database, store, chunks)
    yield database
    await database.close()


async def fill(database: Database, store: str, chunks: int) -> None:
    """Files of 10 chunks, numbered by an attribute."""
    bound = {
        "workspace": DEFAULT_WORKSPACE,
        "store": store,
        "files": chunks // FILE_CHUNKS,
        "of": FILE_CHUNKS,
    }
    async with database.transaction() as connection:
        store_no = (await connection.execute(ADD_STORE, bound | {"dimension": DIMENSION})).scalar_one()
        await connection.execute(ADD_FILES, bound)
        await connection.execute(ATTACH_FILES, bound | {"store_no": store_no})
        rows = (await connection.execute(ADD_CHUNKS, bound | {"store_no": store_no})).all()
        number = random.Random(store_no)
        windows, listed = [], []
        for at, (chunk, file_no) in enumerate(rows):
            weights = terms.document_weights(terms.terms(f"pump w{at % 50} r{at}"))
            keys = [terms.store_key(store_no, key) for key in weights]
            vector = [number.gauss(0, 1) for _ in range(DIMENSION)]
            windows.append((chunk, 0, store_no, file_no, DIMENSION, HalfVector(vector)))
            listed.append((chunk, store_no, file_no, sparse(weights), keys))
        copying = await driver(connection)
        await copying.copy_records_to_table("chunk_windows", schema_name="sherlock", records=windows)
        await copying.copy_records_to_table("chunk_terms", schema_name="sherlock", records=listed)
        await connection.execute(COUNT_TERMS, {"store_no": store_no})


ADD_STORE = text("""
    insert into vector_stores (workspace_id, id, encoder, dimension)
    values (:workspace, :store, 'hash', :dimension) returning store_no
""")
ADD_FILES = text("""
    insert into knowledge_files (workspace_id, id, filename, purpose, bytes, sha256)
    select :workspace, 'file-' || CAST(:store as text) || n, 'a.txt', 'assistants', 1, ''
    from generate_series(1, CAST(:files as int)) n
""")
ATTACH_FILES = text("""
    insert into vector_store_files (workspace_id, vector_store_id, file_id, store_no, file_no, status,
                                    attributes, max_chunk_size_tokens, chunk_overlap_tokens,
                                    chunk_count, window_count)
    select :workspace, :store, id, :store_no, file_no, 'completed',
           jsonb_build_object('number', row_number() over (order by file_no)), 512, 50, :of, :of
    from knowledge_files where id like 'file-' || CAST(:store as text) || '%'
""")
ADD_CHUNKS = text("""
    insert into knowledge_chunks (workspace_id, vector_store_id, file_id, store_no, file_no,
                                  chunk_index, content, char_start, char_end)
    select :workspace, :store, file_id, :store_no, file_no, n, 'pump', 0, 4
    from vector_store_files, generate_series(1, CAST(:of as int)) n where store_no = :store_no
    returning id, file_no
""")
COUNT_TERMS = text("""
    insert into term_df (store_no, key, df)
    select :store_no, key, count(*) from chunk_terms, unnest(keys) key where store_no = :store_no group by key
""")


@dataclass
class Plan:
    """Indexes that each leg reads, and large tables that are read from end to end."""

    dense: set[str] = field(default_factory=set)
    keyword: set[str] = field(default_factory=set)
    scanned: set[str] = field(default_factory=set)

    def add(self, node: dict[str, Any], leg: str) -> None:
        leg = node.get("Subplan Name", leg)
        index, table = node.get("Index Name"), node.get("Relation Name")
        if index and leg.startswith("CTE "):
            (self.dense if leg == "CTE dense" else self.keyword).add(index)
        if node["Node Type"] == "Seq Scan" and table in LARGE:
            self.scanned.add(table)
        for child in node.get("Plans", []):
            self.add(child, leg)


async def plan(database: Database, query: IndexQuery) -> Plan:
    """How the statements of a search are run."""
    asked: list[tuple[str, Any]] = []

    def record(connection, cursor, statement, parameters, *rest) -> None:
        asked.append((statement, parameters))

    engine = database._engine.sync_engine
    event.listen(engine, "before_cursor_execute", record)
    try:
        assert await PgvectorIndex(database).search(DEFAULT_WORKSPACE, query)
    finally:
        event.remove(engine, "before_cursor_execute", record)
    found = Plan()
    async with database.transaction() as connection:
        for statement, parameters in asked:
            if "set_config" in statement:
                await connection.exec_driver_sql(statement, parameters)
            elif "with dense" in statement:
                # Where searches are planned for any values, the plan for these ones might be another.
                mode = (await connection.exec_driver_sql("show plan_cache_mode")).scalar_one()
                generic = "generic_plan, " if mode == "force_generic_plan" else ""
                explain = f"explain ({generic}format json) {statement}"
                explained = await connection.exec_driver_sql(explain, parameters)
                told = explained.scalar_one()
                (top,) = json.loads(told) if isinstance(told, str) else told
                found.add(top["Plan"], "")
    return found


def files(share: float) -> Filter:
    return Comparison("lte", "number", share * STORES["vs_90"] / FILE_CHUNKS)


EITHER = {KEYS, TERMS}
"""The lists of words, or the lists of the store's files: small stores, and filters of many files."""

CASES: list[tuple[str, Filter | None, set[str], set[str]]] = [
    ("vs_90", None, {GRAPH}, {KEYS}),
    ("vs_7", None, {WINDOWS}, EITHER),
    ("vs_1", None, {WINDOWS}, EITHER),
    ("vs_01", None, {WINDOWS}, EITHER),
    ("vs_90", files(0.9), {GRAPH}, EITHER),
    # Just below the bound of a scan, once the size of the whole table is known.
    ("vs_90", files(0.5), {GRAPH, WINDOWS}, {TERMS}),
    ("vs_90", files(0.07), {WINDOWS}, {TERMS}),
    ("vs_90", files(0.01), {WINDOWS}, {TERMS}),
    ("vs_90", files(0.002), {WINDOWS}, {TERMS}),
]


async def test_searches_take_their_indexes(filled: Database, owner_of_filled: str) -> None:
    await check_plans(filled, "no statistics")
    owner = await asyncpg.connect(owner_of_filled)
    await owner.execute("analyze")
    await owner.close()
    await check_plans(filled, "analysed")


async def check_plans(database: Database, state: str) -> None:
    for store, where, dense, keyword in CASES:
        found = await plan(database, IndexQuery(QUESTION, VECTOR, (store,), 0.7, 50, where))
        share = "" if where is None else f", filtered to {where.value} files"  # type: ignore[union-attr]
        print(f"\n{state}, {store}{share}: {found}", end="")
        assert len(found.dense) == 1
        assert found.dense <= dense
        assert keyword & found.keyword
        assert not found.scanned
    # An excluded word leaves the graph its order.
    words, operators = read_operators("pump -seal")
    found = await plan(database, IndexQuery(words, VECTOR, ("vs_90",), 0.7, 50, None, operators))
    assert GRAPH in found.dense
    assert not found.scanned
