"""A file's chunks in another store of its workspace, copied where they would only be made again."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pgvector import SparseVector
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from sherlock.rag import terms
from sherlock.rag.adapters.postgres import driver
from sherlock.rag.domain.models import Lease, ReadingNotes

# A completed membership of the job's file, read by the same reader, cut and encoded as the job asks for.
_SIBLING = text("""
    select m.workspace_id, m.vector_store_id, m.file_id, m.chunk_count, m.reading_notes,
           own.store_no as own_store_no
    from ingest_jobs j
    join vector_store_files own using (workspace_id, vector_store_id, file_id)
    join vector_stores s on s.store_no = own.store_no
    join vector_store_files m on m.file_no = own.file_no and m.store_no <> own.store_no
    join vector_stores t on t.store_no = m.store_no
    where j.id = :job and j.attempt = :attempt and j.state = 'running'
      and m.status = 'completed' and m.read_by = :read_by and m.chunk_count > 0
      and m.max_chunk_size_tokens = own.max_chunk_size_tokens
      and m.chunk_overlap_tokens = own.chunk_overlap_tokens
      and t.encoder = s.encoder and t.dimension = s.dimension
    order by m.store_no
    limit 1
""")

# The terms of some of its chunks. Their keys carry a store's number, so they are made anew.
_WEIGHTS = text("""
    select c.id, t.weights
    from knowledge_chunks c join chunk_terms t on t.chunk_id = c.id
    where c.workspace_id = :workspace_id and c.vector_store_id = :vector_store_id and c.file_id = :file_id
      and c.chunk_index >= :first and c.chunk_index < :end
""")

# In one statement, so of one state of the data: what is deleted meanwhile is there whole, or not at all.
# Prepared before the job is locked, as staging is.
_COPY = """
    insert into ingest_chunks (job_id, chunk_index, digest, content, char_start, char_end, page, heading,
                               windows, weights, keys, gap, page_breaks)
    select $1, c.chunk_index, c.digest, c.content, c.char_start, c.char_end, c.page, c.heading,
           array(select w.embedding from chunk_windows w where w.chunk_id = c.id order by w.part),
           t.weights, CAST(own.keys as int[]), c.gap, c.page_breaks
    from unnest(CAST($2 as bigint[]), CAST($3 as text[])) as own (chunk_id, keys)
    join knowledge_chunks c on c.id = own.chunk_id
    join chunk_terms t on t.chunk_id = c.id
    returning chunk_index
"""


@dataclass(frozen=True, slots=True)
class Sibling:
    file: dict[str, Any]
    """As bound values."""
    chunk_count: int
    notes: ReadingNotes
    own_store_no: int
    """Of the store to copy to."""


async def find_sibling(connection: AsyncConnection, lease: Lease, read_by: str) -> Sibling | None:
    asked = {"job": lease.job_id, "attempt": lease.attempt, "read_by": read_by}
    row = (await connection.execute(_SIBLING, asked)).one_or_none()
    if row is None:
        return None
    file = {
        "workspace_id": row.workspace_id,
        "vector_store_id": row.vector_store_id,
        "file_id": row.file_id,
    }
    return Sibling(file, row.chunk_count, ReadingNotes(**(row.reading_notes or {})), row.own_store_no)


async def read_weights(
    connection: AsyncConnection, sibling: Sibling, first: int, end: int
) -> list[tuple[int, SparseVector]]:
    """The id of each chunk of a part, and its terms with their weights."""
    rows = await connection.execute(_WEIGHTS, sibling.file | {"first": first, "end": end})
    return [(row.id, row.weights) for row in rows]


def own_keys(sibling: Sibling, weights: Sequence[tuple[int, SparseVector]]) -> list[str]:
    """For each chunk its keys in the store to copy to, written as an array."""
    return [
        "{" + ",".join(str(terms.store_key(sibling.own_store_no, key)) for key in found.indices()) + "}"
        for _, found in weights
    ]


async def prepare_copying(connection: AsyncConnection) -> Any:
    """`fetch(job_id, chunk_ids, keys)` of what is returned stages the chunks; a row each."""
    return await (await driver(connection)).prepare(_COPY)
