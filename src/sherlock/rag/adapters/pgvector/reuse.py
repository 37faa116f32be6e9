"""Vectors that a workspace's chunks have already, found by a digest of what was encoded."""

from array import array
from collections.abc import Collection, Mapping, Sequence

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from sherlock.rag.domain.models import Encoder, Vector, WorkspaceId

DIGEST_BYTES = 16
"""Kept of a SHA-256. Among 2**32 chunks two different texts meet with a chance of 2**-65."""

# For each digest the windows of one chunk that has it, whichever; its store tells which encoder made them.
_ENCODED = text("""
    select wanted.digest, w.embedding
    from unnest(CAST(:digests as bytea[])) as wanted (digest)
    cross join lateral (
        select c.id
        from knowledge_chunks c
        join vector_stores s on s.store_no = c.store_no
        where c.workspace_id = :workspace and c.digest = wanted.digest
          and s.encoder = :encoder and s.dimension = :dimension
        limit 1
    ) as made
    join chunk_windows w on w.chunk_id = made.id
    order by wanted.digest, w.part
""")


async def find_encoded(
    connection: AsyncConnection, workspace_id: WorkspaceId, encoder: Encoder, digests: Collection[bytes]
) -> Mapping[bytes, Sequence[Vector]]:
    """What `ChunkIndex.encoded` returns."""
    wanted = {digest[:DIGEST_BYTES]: digest for digest in digests}
    rows = await connection.execute(
        _ENCODED,
        {
            "digests": [*wanted],
            "workspace": workspace_id,
            "encoder": encoder.name,
            "dimension": encoder.dimension,
        },
    )
    found: dict[bytes, list[Vector]] = {}
    for row in rows:
        found.setdefault(wanted[row.digest], []).append(array("f", row.embedding.to_list()))
    return found
