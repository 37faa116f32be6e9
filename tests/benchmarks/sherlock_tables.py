"""Sherlock's tables filled in bulk: COPY, then the indexes; far faster than publishing file by file."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import asyncpg
from pgvector import HalfVector
from pgvector.asyncpg import register_vector
from tests.benchmarks.corpus import Vectors

from sherlock.rag import terms
from sherlock.rag.adapters.pgvector.values import sparse
from sherlock.rag.domain.models import WorkspaceId

CHUNKS_PER_FILE = 100
COPIED_AT_ONCE = 10_000
"""Chunks whose terms are held in memory together."""

_INDEXES = ("chunk_windows_384", "chunk_windows_file", "chunk_terms_keys", "chunk_terms_file")
_TABLES = ("knowledge_chunks", "chunk_windows", "chunk_terms", "term_df")
_CATALOG = ("vector_stores", "knowledge_files", "vector_store_files")
_CHUNK_COLUMNS = (
    "id", "workspace_id", "vector_store_id", "file_id", "store_no", "file_no", "chunk_index", "content",
    "char_start", "char_end",
)  # fmt: skip

# A store and its files; the file's number stands in the attribute `number`.
_STORE = """
    insert into vector_stores (workspace_id, id, encoder, dimension) values ($1, $2, $3, $4)
    returning store_no
"""
_FILES = """
    with file as (
        insert into knowledge_files (workspace_id, id, filename, purpose, bytes, sha256)
        select $1, CAST($2 as text) || '-' || number, number || '.txt', 'assistants', 1, repeat('0', 64)
        from generate_series(0, $4 - 1) number
        returning id, file_no
    )
    insert into vector_store_files (
        workspace_id, vector_store_id, file_id, store_no, file_no, status, attributes, max_chunk_size_tokens,
        chunk_overlap_tokens, chunk_count, window_count)
    select $1, $2, id, $3, file_no, 'completed',
           jsonb_build_object('number', CAST(split_part(id, '-', -1) as int)), 512, 50, $5, $5
    from file
    returning file_no, attributes -> 'number'
"""
_DOCUMENT_FREQUENCIES = """
    insert into sherlock.term_df (store_no, key, df)
    select store_no, key, count(*) from sherlock.chunk_terms, unnest(keys) key group by store_no, key
"""


@dataclass
class Built:
    seconds: dict[str, float] = field(default_factory=dict)
    """By step."""
    mebibytes: dict[str, float] = field(default_factory=dict)
    """By table, without its indexes, and by index."""


@dataclass(frozen=True)
class Store:
    """Chunks for one vector store, CHUNKS_PER_FILE of them in each file."""

    id: str
    texts: Sequence[str]
    vectors: Vectors


async def build(owner_url: str, workspace: WorkspaceId, encoder: str, stores: Sequence[Store]) -> Built:
    """Into tables that are empty."""
    built = Built()
    server = await asyncpg.connect(owner_url)
    await register_vector(server, schema="public")
    # As a restored dump would: what the triggers keep is right as it is copied.
    await server.execute("set search_path = sherlock, public; set session_replication_role = replica")
    # A graph that does not fit into it is finished far more slowly; 3 GB held that of 1.1 million vectors.
    gigabytes = 1 + sum(len(store.texts) for store in stores) // 500_000
    await server.execute(f"set maintenance_work_mem = '{gigabytes}GB'")
    definitions = [
        await server.fetchval("select pg_get_indexdef(CAST($1::text as regclass))", index)
        for index in _INDEXES
    ]
    await server.execute(f"drop index {', '.join(_INDEXES)}")
    began = time.perf_counter()
    first_id = 1
    for store in stores:
        await _copy(server, workspace, encoder, store, first_id)
        first_id += len(store.texts)
    await server.fetchval("select setval(pg_get_serial_sequence('knowledge_chunks', 'id'), $1)", first_id)
    built.seconds["rows"] = time.perf_counter() - began
    steps = dict(zip(_INDEXES, definitions, strict=True)) | {"term_df": _DOCUMENT_FREQUENCIES}
    for name, statement in steps.items():
        began = time.perf_counter()
        await server.execute(statement)
        built.seconds[name] = time.perf_counter() - began
    await server.execute(f"vacuum analyze {', '.join((*_TABLES, *_CATALOG))}")
    for table in _TABLES:
        built.mebibytes[table] = await _mebibytes(server, "pg_table_size", table)
    for index in (*_INDEXES, "chunk_windows_pkey", "chunk_terms_pkey", "term_df_pkey"):
        built.mebibytes[index] = await _mebibytes(server, "pg_relation_size", index)
    await server.close()
    return built


async def _copy(
    server: asyncpg.Connection, workspace: WorkspaceId, encoder: str, store: Store, first_id: int
) -> None:
    count, dimension = store.vectors.shape
    store_no = await server.fetchval(_STORE, workspace, store.id, encoder, dimension)
    files = await server.fetch(
        _FILES, workspace, store.id, store_no, count // CHUNKS_PER_FILE, CHUNKS_PER_FILE
    )
    file_nos = [file_no for file_no, _ in sorted(files, key=lambda row: int(row[1]))]
    for start in range(0, count, COPIED_AT_ONCE):
        chunks, windows, keywords = [], [], []
        for at in range(start, min(start + COPIED_AT_ONCE, count)):
            chunk_id, text = first_id + at, store.texts[at]
            number, index = divmod(at, CHUNKS_PER_FILE)
            file_id, file_no = f"{store.id}-{number}", file_nos[number]
            weights = terms.document_weights(terms.terms(text))
            keys = [terms.store_key(store_no, term) for term in weights]
            chunks.append(
                (chunk_id, workspace, store.id, file_id, store_no, file_no, index, text, 0, len(text))
            )
            vector = HalfVector(store.vectors[at])
            windows.append((chunk_id, 0, store_no, file_no, dimension, vector))
            keywords.append((chunk_id, store_no, file_no, sparse(weights), keys))
        for table, records, columns in (
            ("knowledge_chunks", chunks, _CHUNK_COLUMNS),
            ("chunk_windows", windows, None),
            ("chunk_terms", keywords, None),
        ):
            await server.copy_records_to_table(
                table, schema_name="sherlock", records=records, columns=columns
            )


async def _mebibytes(server: asyncpg.Connection, measure: str, relation: str) -> float:
    size: int = await server.fetchval(f"select {measure}(CAST($1::text as regclass))", relation)
    return size / (1 << 20)
