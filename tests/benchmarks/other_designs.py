"""Two other ways to search the same chunks in the same PostgreSQL.

`Weighted` is the plain statement of Sherlock's first plan: cosine and `ts_rank` of every row of the store,
added up, over one wide table. No index of a vector or of words can help it, so it has none.

`LangChain` is what `PGVector` of langchain-postgres keeps and asks, and with it LibreChat's rag_api: one
table for all collections, metadata as jsonb, a column of vectors without a dimension and so without an index,
the nearest by cosine. Its Python is left out, to its advantage.
"""

import json
import time
from collections.abc import Sequence
from typing import Any, Protocol
from uuid import UUID, uuid4

import asyncpg
import numpy as np
from numpy.typing import NDArray
from pgvector import Vector
from pgvector.asyncpg import register_vector
from tests.benchmarks.sherlock_tables import CHUNKS_PER_FILE, Store

_WEIGHTED_TABLE = """
    create table weighted_chunks (
        id bigint primary key, store_id text not null, number int not null, content text not null,
        embedding vector(384) not null,
        fts tsvector generated always as (to_tsvector('english', content)) stored
    )
"""
_WEIGHTED_INDEXES = (
    "create index on weighted_chunks (store_id)",
    "analyze weighted_chunks",
)
# $1 the vector, $2 the words, $3 the store, $4 the files below which number, $5 how many.
_WEIGHTED_SEARCH = """
    select id
    from weighted_chunks,
         CAST(replace(CAST(plainto_tsquery('english', $2) as text), '&', '|') as tsquery) as words
    where store_id = $3 and number < $4
    order by 0.7 * (1 - (embedding <=> $1)) + 0.3 * ts_rank(fts, words) desc
    limit $5
"""

_LANGCHAIN_TABLES = """
    create table langchain_pg_collection (
        uuid uuid primary key, name varchar not null unique, cmetadata json
    );
    create table langchain_pg_embedding (
        id varchar primary key,
        collection_id uuid references langchain_pg_collection (uuid) on delete cascade,
        embedding vector, document varchar, cmetadata jsonb
    )
"""
_LANGCHAIN_INDEXES = (
    "create index on langchain_pg_embedding using gin (cmetadata jsonb_path_ops)",
    "create index on langchain_pg_embedding ((cmetadata ->> 'file_id'))",  # rag_api's own
    "analyze langchain_pg_embedding",
)
# $1 the vector, $2 the collection, $3 how many; {filter} is a condition on the metadata.
_LANGCHAIN_SEARCH = """
    select e.id, e.document, e.cmetadata, e.embedding, e.embedding <=> $1 as distance
    from langchain_pg_embedding e
    join langchain_pg_collection c on e.collection_id = c.uuid
    where e.collection_id = $2 {filter}
    order by distance
    limit $3
"""
_LANGCHAIN_LESS_THAN = """
    and jsonb_path_match(e.cmetadata, '$.number < $value', jsonb_build_object('value', CAST($4 as int)))
"""


class Design(Protocol):
    name: str

    async def search(
        self, store: str, text: str, vector: NDArray[np.float32], below: int | None, limit: int
    ) -> list[int]:
        """Positions of the best chunks within their store; `below` bounds the number of their file."""


class Weighted:
    name = "0.7 cosine + 0.3 ts_rank"

    def __init__(self, server: asyncpg.Connection) -> None:
        self._server = server
        self._first_ids: dict[str, int] = {}

    async def build(self, stores: Sequence[Store]) -> float:
        """Seconds that it took."""
        began = time.perf_counter()
        await self._server.execute(_WEIGHTED_TABLE)
        first_id = 0
        for store in stores:
            self._first_ids[store.id] = first_id
            await self._server.copy_records_to_table(
                "weighted_chunks",
                columns=("id", "store_id", "number", "content", "embedding"),
                records=(
                    (first_id + at, store.id, at // CHUNKS_PER_FILE, text, Vector(store.vectors[at]))
                    for at, text in enumerate(store.texts)
                ),
            )
            first_id += len(store.texts)
        for statement in _WEIGHTED_INDEXES:
            await self._server.execute(statement)
        return time.perf_counter() - began

    async def search(
        self, store: str, text: str, vector: NDArray[np.float32], below: int | None, limit: int
    ) -> list[int]:
        rows = await self._server.fetch(
            _WEIGHTED_SEARCH, Vector(vector), text, store, (1 << 31) - 1 if below is None else below, limit
        )
        return [row[0] - self._first_ids[store] for row in rows]


class LangChain:
    name = "LangChain PGVector"

    def __init__(self, server: asyncpg.Connection) -> None:
        self._server = server
        self._collections: dict[str, UUID] = {}

    async def build(self, stores: Sequence[Store]) -> float:
        """Seconds that it took."""
        began = time.perf_counter()
        await self._server.execute(_LANGCHAIN_TABLES)
        for store in stores:
            collection = self._collections[store.id] = uuid4()
            await self._server.execute(
                "insert into langchain_pg_collection (uuid, name) values ($1, $2)", collection, store.id
            )
            await self._server.copy_records_to_table(
                "langchain_pg_embedding",
                records=(
                    (
                        f"{store.id}:{at}",
                        collection,
                        Vector(store.vectors[at]),
                        text,
                        json.dumps(_metadata(store, at)),
                    )
                    for at, text in enumerate(store.texts)
                ),
            )
        for statement in _LANGCHAIN_INDEXES:
            await self._server.execute(statement)
        return time.perf_counter() - began

    async def search(
        self, store: str, text: str, vector: NDArray[np.float32], below: int | None, limit: int
    ) -> list[int]:
        bound: list[Any] = [Vector(vector), self._collections[store], limit]
        condition = ""
        if below is not None:
            condition = _LANGCHAIN_LESS_THAN
            bound.append(below)
        rows = await self._server.fetch(_LANGCHAIN_SEARCH.format(filter=condition), *bound)
        return [int(row["id"].rpartition(":")[2]) for row in rows]


def _metadata(store: Store, at: int) -> dict[str, Any]:
    number = at // CHUNKS_PER_FILE
    return {"file_id": f"{store.id}-{number}", "number": number}


async def connected(owner_url: str) -> asyncpg.Connection:
    server = await asyncpg.connect(owner_url)
    await register_vector(server)
    return server
