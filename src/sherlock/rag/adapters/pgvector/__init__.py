"""`ChunkIndex` in PostgreSQL: dense search with pgvector, keyword search with our own terms under GIN.

Here is what writes and reads chunks; `search.py` finds them.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pgvector import HalfVector
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from sherlock.rag import terms
from sherlock.rag.adapters.pgvector import parts
from sherlock.rag.adapters.pgvector.reuse import DIGEST_BYTES, find_encoded
from sherlock.rag.adapters.pgvector.search import find_candidates
from sherlock.rag.adapters.pgvector.siblings import find_sibling, own_keys, prepare_copying, read_weights
from sherlock.rag.adapters.pgvector.values import flat_page_breaks, page_breaks, sparse
from sherlock.rag.adapters.postgres import Database, driver, storable
from sherlock.rag.domain.errors import DatabaseUnavailable, InvalidFile, LeaseLost
from sherlock.rag.domain.models import (
    Candidate,
    Chunk,
    EmbeddedChunk,
    Encoder,
    IndexQuery,
    Lease,
    Published,
    Staged,
    Vector,
    WorkspaceId,
)

_BYTES_PER_FLOAT = 2  # halfvec
CHUNKS_AT_ONCE = 200
"""Published in one transaction, a second or two; a file with more is published in parts."""
PARTS_AT_ONCE = 2
"""Parts of a file that are published side by side, each on a connection: nearly all of it is the work of the
server, which gives a connection one core."""
COPIED_AT_ONCE = 1_000
"""Chunks that are staged in one transaction when they are copied, 4 MB or so."""

# ── statements ──────────────────────────────────────────────────────────────

# The job of a lease that still holds, and the numbers of its store and file. The store is kept from being
# deleted until we end: its deletion locks the store before the membership, and so must we.
_LOCK_STORE = text("""
    select s.store_no, s.dimension, j.workspace_id, j.vector_store_id, j.file_id
    from ingest_jobs j
    join vector_stores s on s.workspace_id = j.workspace_id and s.id = j.vector_store_id
    where j.id = :job and j.attempt = :attempt and j.state = 'running'
    for key share of s
""")

# Parts of a file are put in side by side: they keep others out, but not each other.
_ALONE, _BESIDE = "update", "share"

# The membership, so that two runs cannot interleave, and a file that has gone is noticed.
_LOCK_MEMBERSHIP = {
    strength: text(f"""
        select file_no, status
        from vector_store_files
        where workspace_id = :workspace and vector_store_id = :store and file_id = :file
        for {strength}
    """)
    for strength in (_ALONE, _BESIDE)
}

# The job itself, last: while it is locked nobody can claim it. No row: the lease is lost.
_LOCK_JOB = {
    strength: text(f"""
        select 1 from ingest_jobs
        where id = :job and attempt = :attempt and state = 'running'
        for {strength}
    """)
    for strength in (_ALONE, _BESIDE)
}

# What finished attempts left behind.
_STAGED = text("""
    select i.chunk_index, i.digest
    from ingest_chunks i
    join ingest_jobs j on j.id = i.job_id
    where i.job_id = :job and j.attempt = :attempt and j.state = 'running'
""")

# For keys, which carry the store's number.
_STORE_OF_JOB = text("""
    select s.store_no
    from ingest_jobs j
    join vector_stores s on s.workspace_id = j.workspace_id and s.id = j.vector_store_id
    where j.id = :job
""")

# Before the same chunks are put in again.
_UNSTAGE = text("""
    delete from ingest_chunks where job_id = :job and chunk_index = any(CAST(:indices as int[]))
""")

# Rows in one value, of a statement that was prepared before the job is locked: until all of it has come, the
# server takes us for idle in a transaction, for which there is a timeout. For the rest of a COPY, or the
# values of a statement just prepared, it waits without a bound, and a frozen worker would hold the job.
_STAGE = """
    insert into ingest_chunks (job_id, chunk_index, digest, content, char_start, char_end, page, heading,
                               windows, weights, keys, gap, page_breaks)
    select job_id, chunk_index, digest, content, char_start, char_end, page, heading,
           windows, weights, keys, gap, page_breaks
    from unnest(CAST($1 AS ingest_chunks[]))
"""

# An earlier attempt may have cut the text into more chunks.
_DROP_SURPLUS = text("delete from ingest_chunks where job_id = :job and chunk_index >= :chunk_count")

# How much of the file is there. Counted here, where it is read in one go: counting the windows of each chunk
# just published went through all of the file's, for there are no statistics yet (8 s at 10,000 chunks).
_MEASURE = text("""
    select count(*) as chunks,
           coalesce(sum(octet_length(content)), 0) as content_bytes,
           coalesce(sum(cardinality(windows)), 0) as windows
    from ingest_chunks where job_id = :job
""")

# What the job has published, when nothing of it is staged any more.
_PUBLISHED = text("""
    select chunk_count, window_count, usage_bytes
    from vector_store_files
    where workspace_id = :workspace and vector_store_id = :store and file_id = :file
""")

# The last of the file's chunks, 0 if there are none: those that are published now come after it.
_LAST_CHUNK = text("""
    select coalesce(max(id), 0) from knowledge_chunks
    where workspace_id = :workspace and vector_store_id = :store and file_id = :file
""")

# Staged chunks, a part of them, become the file's chunks, with a row for every window and one for the terms.
_PUBLISH = text("""
    with published as (
        insert into knowledge_chunks (workspace_id, vector_store_id, file_id, store_no, file_no, chunk_index,
                                      content, char_start, char_end, page, heading, gap, page_breaks, digest)
        select :workspace, :store, :file, :store_no, :file_no, chunk_index,
               content, char_start, char_end, page, heading, gap, page_breaks,
               substr(digest, 1, :digest_bytes)
        from ingest_chunks
        where job_id = :job and chunk_index >= :first and chunk_index < :end
        order by chunk_index
        returning id, chunk_index
    ), windows as (
        insert into chunk_windows (chunk_id, part, store_no, file_no, dim, embedding)
        select p.id, w.part - 1, :store_no, :file_no, :dimension, w.embedding
        from published p
        join ingest_chunks i on i.job_id = :job and i.chunk_index = p.chunk_index
        cross join lateral unnest(i.windows) with ordinality as w (embedding, part)
    )
    insert into chunk_terms (chunk_id, store_no, file_no, weights, keys)
    select p.id, :store_no, :file_no, i.weights, i.keys
    from published p
    join ingest_chunks i on i.job_id = :job and i.chunk_index = p.chunk_index
""")

# What search takes its estimates from. Should the ingest not be completed now, the chunks have to go.
_WRITE_COUNTS = text("""
    update vector_store_files
    set chunk_count = :chunk_count, window_count = :window_count, usage_bytes = :usage_bytes,
        unconfirmed = true
    where workspace_id = :workspace and vector_store_id = :store and file_id = :file
""")

# The former chunks go, with their windows and terms by foreign key, and what was staged; document frequencies
# change by what the new chunks hold more, or less. In key order, as every writer of term_df does, so that two
# cannot deadlock; last in the transaction, so that others wait little.
_REPLACE = text("""
    with former as (
        delete from knowledge_chunks
        where workspace_id = :workspace and vector_store_id = :store and file_id = :file and id <= :last
        returning id
    ), staged as (
        delete from ingest_chunks where job_id = :job returning keys
    ), change (key, step) as (
        select key, sum(step)
        from (
            select unnest(t.keys), -1
            from former join chunk_terms t on t.chunk_id = former.id and t.store_no = :store_no
            union all
            select unnest(keys), 1 from staged
        ) as one (key, step)
        group by key
        having sum(step) <> 0
    )
    insert into term_df (store_no, key, df)
    select :store_no, key, step from change order by key
    on conflict (store_no, key) do update set df = greatest(term_df.df + excluded.df, 0)
""")

# A file that was published and then cancelled or failed, before its ingest was completed. Its store and its
# membership are locked as publishing locks them; what others hold is passed over.
_UNCONFIRMED = text("""
    select m.workspace_id as workspace, m.vector_store_id as store, m.file_id as file, m.store_no, m.file_no
    from vector_store_files m join vector_stores s using (store_no)
    where m.unconfirmed and m.status in ('failed', 'cancelled')
      and not exists (select from publishing p where p.store_no = m.store_no and p.file_no = m.file_no)
    limit 1
    for key share of s skip locked for update of m skip locked
""")
_COUNT_NOTHING = text("""
    update vector_store_files
    set chunk_count = 0, window_count = 0, usage_bytes = 0, unconfirmed = false
    where store_no = :store_no and file_no = :file_no
""")

# A file's chunks in order.
_CHUNKS = text("""
    select chunk_index, content, char_start, char_end, page, heading, gap, page_breaks
    from knowledge_chunks
    where workspace_id = :workspace and vector_store_id = :store and file_id = :file
      and (store_no, file_no) not in (select store_no, file_no from publishing)
    order by chunk_index
""")


class PgvectorIndex:
    """Chunks in `knowledge_chunks`, their vectors in `chunk_windows`, their terms in `chunk_terms`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def staged(self, lease: Lease) -> Mapping[int, bytes]:
        async with self._database.transaction() as connection:
            rows = await connection.execute(_STAGED, {"job": lease.job_id, "attempt": lease.attempt})
            return {row.chunk_index: row.digest for row in rows}

    async def encoded(
        self, workspace_id: WorkspaceId, encoder: Encoder, digests: Collection[bytes]
    ) -> Mapping[bytes, Sequence[Vector]]:
        async with self._database.transaction() as connection:
            return await find_encoded(connection, workspace_id, encoder, digests)

    async def stage(self, lease: Lease, chunks: Sequence[EmbeddedChunk]) -> None:
        latest = {embedded.chunk.index: embedded for embedded in chunks}
        async with self._database.transaction() as connection:
            found = await connection.execute(_STORE_OF_JOB, {"job": lease.job_id})
            store_no = found.scalar_one_or_none()
        if store_no is None:
            raise LeaseLost
        # Analysis takes a while and needs no connection: a store keeps its number.
        records = await asyncio.to_thread(_staged_records, lease.job_id, store_no, latest)
        async with self._database.transaction() as connection:
            staging = await (await driver(connection)).prepare(_STAGE)
            await _lock_job(connection, lease)
            await connection.execute(_UNSTAGE, {"job": lease.job_id, "indices": list(latest)})
            await staging.fetch(records)

    async def stage_copy(self, lease: Lease, read_by: str) -> Staged | None:
        async with self._database.transaction() as connection:
            sibling = await find_sibling(connection, lease, read_by)
        if sibling is None:
            return None
        for first in range(0, sibling.chunk_count, COPIED_AT_ONCE):
            end = min(first + COPIED_AT_ONCE, sibling.chunk_count)
            async with self._database.transaction() as connection:
                weights = await read_weights(connection, sibling, first, end)
            # As in `stage`: it takes a while and needs no connection.
            keys = await asyncio.to_thread(own_keys, sibling, weights)
            async with self._database.transaction() as connection:
                copying = await prepare_copying(connection)
                await _lock_job(connection, lease)
                unwanted = {"job": lease.job_id, "indices": list(range(first, end))}
                await connection.execute(_UNSTAGE, unwanted)
                copied = await copying.fetch(lease.job_id, [chunk for chunk, _ in weights], keys)
            if len(copied) < end - first:  # it has gone meanwhile
                return None
        return Staged(sibling.chunk_count, sibling.notes)

    async def publish(self, lease: Lease, chunk_count: int) -> Published:
        async with self._target(lease) as (connection, target):
            await connection.execute(_DROP_SURPLUS, target.job | {"chunk_count": chunk_count})
            staged = await _measure(connection, target)
            # Nothing staged where something should be: this job has published, and only its answer was lost.
            if chunk_count and not staged.chunk_count:
                staged = Published(**(await connection.execute(_PUBLISHED, target.file)).mappings().one())
                _check_whole(staged, chunk_count)
                return staged
            _check_whole(staged, chunk_count)
            if chunk_count <= CHUNKS_AT_ONCE and not await parts.is_hidden(connection, target.all):
                last = (await connection.execute(_LAST_CHUNK, target.file)).scalar_one()
                await _insert(connection, target, 0)
                await connection.execute(_WRITE_COUNTS, target.file | asdict(staged))
                await _replace(connection, target.file, target.store_no, last, job=lease.job_id)
                return staged
        await self._publish_in_parts(lease, staged)
        return staged

    async def clear_unpublished(self) -> bool:
        async with self._database.transaction() as connection:
            if await parts.clear_left_behind(connection, CHUNKS_AT_ONCE):
                return True
            return await _clear_unconfirmed(connection)

    async def search(self, workspace_id: WorkspaceId, query: IndexQuery) -> list[Candidate]:
        async with self._database.transaction() as connection:
            return await find_candidates(connection, workspace_id, query)

    async def chunks(self, workspace_id: WorkspaceId, vector_store_id: str, file_id: str) -> list[Chunk]:
        if not (storable(vector_store_id) and storable(file_id)):
            return []
        file = {"workspace": workspace_id, "store": vector_store_id, "file": file_id}
        async with self._database.transaction() as connection:
            rows = await connection.execute(_CHUNKS, file)
            return [
                Chunk(
                    index=row.chunk_index,
                    text=row.content,
                    start=row.char_start,
                    end=row.char_end,
                    page=row.page,
                    heading=row.heading,
                    gap=row.gap,
                    page_breaks=page_breaks(row.page_breaks),
                )
                for row in rows
            ]

    async def _publish_in_parts(self, lease: Lease, staged: Published) -> None:
        """The fence is asked again for each part, and each is kept if this one or a later attempt goes on."""
        done: frozenset[int] | None = None
        while done is None:
            async with self._target(lease) as (connection, target):
                if not await parts.is_hidden(connection, target.all):
                    await _remove_all(connection, target.file, target.store_no)
                done = await parts.resume(connection, target.all, staged.chunk_count, CHUNKS_AT_ONCE)
        left = iter([at for at in range(0, staged.chunk_count, CHUNKS_AT_ONCE) if at not in done])

        async def put_in() -> None:
            for first in left:
                async with self._target(lease, _BESIDE) as (connection, target):
                    await _insert(connection, target, first)
                    await parts.count_terms(connection, target.all, first, first + CHUNKS_AT_ONCE)

        putting = [asyncio.create_task(put_in()) for _ in range(PARTS_AT_ONCE)]
        try:
            await asyncio.gather(*putting)
        finally:
            for one in putting:
                one.cancel()
            await asyncio.gather(*putting, return_exceptions=True)
        async with self._target(lease) as (connection, target):
            await connection.execute(_WRITE_COUNTS, target.file | asdict(staged))
            await parts.show(connection, target.all)

    @contextlib.asynccontextmanager
    async def _target(
        self, lease: Lease, strength: str = _ALONE
    ) -> "AsyncIterator[tuple[AsyncConnection, _Target]]":
        """A transaction that holds the job and where its chunks go. Raises `LeaseLost`."""
        async with self._database.transaction() as connection:
            yield connection, await _lock_target(connection, lease, strength)


def _staged_records(job_id: int, store_no: int, chunks: Mapping[int, EmbeddedChunk]) -> list[tuple[Any, ...]]:
    """Rows of ingest_chunks, all of their columns in order. Raises `InvalidFile`."""
    records = []
    for embedded in chunks.values():
        chunk = embedded.chunk
        if not (storable(chunk.text) and storable(chunk.heading or "")):
            raise InvalidFile("The text holds characters that cannot be stored.")
        weights = terms.document_weights(terms.terms(chunk.text))
        windows = [HalfVector(list(window)) for window in embedded.windows]
        keys = [terms.store_key(store_no, term) for term in weights]
        records.append((
            job_id, chunk.index, chunk.digest, chunk.text, chunk.start, chunk.end, chunk.page, chunk.heading,
            windows, sparse(weights), keys, chunk.gap, flat_page_breaks(chunk.page_breaks),
        ))  # fmt: skip
    return records


async def _lock_job(connection: AsyncConnection, lease: Lease, strength: str = _ALONE) -> None:
    fence = {"job": lease.job_id, "attempt": lease.attempt}
    if (await connection.execute(_LOCK_JOB[strength], fence)).one_or_none() is None:
        raise LeaseLost


@dataclass(frozen=True, slots=True)
class _Target:
    """Where a job's chunks go, as bound values of the publishing statements."""

    job: dict[str, Any]
    file: dict[str, Any]
    store_no: int
    file_no: int
    dimension: int

    @property
    def numbers(self) -> dict[str, Any]:
        return {"store_no": self.store_no, "file_no": self.file_no, "dimension": self.dimension}

    @property
    def all(self) -> dict[str, Any]:
        return self.file | self.job | self.numbers


async def _lock_target(connection: AsyncConnection, lease: Lease, strength: str) -> _Target:
    """Lock store, membership and job, in the order in which deleting them would."""
    fence = {"job": lease.job_id, "attempt": lease.attempt}
    store = (await connection.execute(_LOCK_STORE, fence)).one_or_none()
    if store is None:
        raise LeaseLost
    file = {"workspace": store.workspace_id, "store": store.vector_store_id, "file": store.file_id}
    membership = (await connection.execute(_LOCK_MEMBERSHIP[strength], file)).one_or_none()
    if membership is None or membership.status not in ("in_progress", "completed"):
        raise LeaseLost
    await _lock_job(connection, lease, strength)
    return _Target({"job": lease.job_id}, file, store.store_no, membership.file_no, store.dimension)


async def _measure(connection: AsyncConnection, target: _Target) -> Published:
    """Of what is staged."""
    size = (await connection.execute(_MEASURE, target.job)).one()
    vector_bytes = size.windows * target.dimension * _BYTES_PER_FLOAT
    return Published(size.chunks, int(size.windows), int(size.content_bytes + vector_bytes))


def _check_whole(found: Published, chunk_count: int) -> None:
    if found.chunk_count != chunk_count:
        raise DatabaseUnavailable("Some finished chunks of the file are missing; they must be made again.")


async def _insert(connection: AsyncConnection, target: _Target, first: int) -> None:
    """Put staged chunks, `CHUNKS_AT_ONCE` of them, beside the file's former ones."""
    part = {"first": first, "end": first + CHUNKS_AT_ONCE, "digest_bytes": DIGEST_BYTES}
    await connection.execute(_PUBLISH, target.all | part)


async def _remove_all(connection: AsyncConnection, file: dict[str, Any], store_no: int) -> None:
    last = (await connection.execute(_LAST_CHUNK, file)).scalar_one()
    await _replace(connection, file, store_no, last, job=None)


async def _replace(
    connection: AsyncConnection, file: dict[str, Any], store_no: int, last: int, *, job: int | None
) -> None:
    """Remove the former chunks, up to `last`, in favour of what `job` staged; `None`: of nothing yet."""
    await connection.execute(_REPLACE, file | {"job": job, "store_no": store_no, "last": last})


async def _clear_unconfirmed(connection: AsyncConnection) -> bool:
    """Remove the chunks of a file that was published and not completed; whether there was one."""
    found = (await connection.execute(_UNCONFIRMED)).mappings().one_or_none()
    if found is None:
        return False
    await connection.execute(_COUNT_NOTHING, dict(found))
    await _remove_all(connection, dict(found), found["store_no"])
    return True
