"""`IngestQueue` in PostgreSQL. The row is the truth, the database's clock the only one; NOTIFY: "look now".

Whoever ends a job locks the membership before the job, as deleting does, so that the two cannot deadlock.
Claiming skips what is locked instead of waiting.
"""

from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.elements import TextClause

from sherlock.rag.adapters.postgres import INGEST_CHANNEL, WAKE_WORKERS, Database
from sherlock.rag.domain.errors import LeaseLost
from sherlock.rag.domain.models import (
    ChunkingStrategy,
    Encoder,
    IngestJob,
    LastError,
    Lease,
    Published,
    WorkspaceId,
)

OUTAGE_LIMIT_S = 86_400.0
"""A day: how long an outage may put a job off."""

# Fails the jobs whose last allowed attempt ended with its worker.
_REAP = text("""
    with spent as (
        select j.id, j.workspace_id, j.vector_store_id, j.file_id
        from ingest_jobs j join vector_store_files m using (workspace_id, vector_store_id, file_id)
        where j.state = 'running' and j.lease_until < now() and j.failures + 1 >= :max_attempts
        for no key update of j, m skip locked
    ), unstaged as (
        delete from ingest_chunks c using spent where c.job_id = spent.id
    ), failed as (
        update ingest_jobs j set state = 'failed', failures = j.failures + 1, lease_owner = null,
            lease_until = null, error_code = 'server_error', error_message = :message, finished_at = now()
        from spent where j.id = spent.id
    )
    update vector_store_files m set status = 'failed', error_code = 'server_error', error_message = :message
    from spent s
    where m.workspace_id = s.workspace_id and m.vector_store_id = s.vector_store_id and m.file_id = s.file_id
      and m.status = 'in_progress'
""")

# Claims one job: first one whose worker is gone (a failed attempt), else the one that has been due longest.
# Each branch walks its own partial index and stops at the first row nobody else holds.
_CLAIM = text("""
    with orphaned as materialized (
        select j.id, 1 as failed
        from ingest_jobs j join vector_store_files m using (workspace_id, vector_store_id, file_id)
        where j.state = 'running' and j.lease_until < now() and j.failures + 1 < :max_attempts
          and m.status = 'in_progress'
        order by j.lease_until limit 1
        for no key update of j, m skip locked
    ), waiting as materialized (
        select j.id, 0 as failed
        from ingest_jobs j join vector_store_files m using (workspace_id, vector_store_id, file_id)
        where j.state = 'waiting' and j.run_after <= now() and m.status = 'in_progress'
          and not exists (select from orphaned)
        order by j.run_after, j.id limit 1
        for no key update of j, m skip locked
    ), due as (select * from orphaned union all select * from waiting)
    update ingest_jobs j set state = 'running', attempt = j.attempt + 1, failures = j.failures + due.failed,
        lease_owner = :owner, lease_until = now() + make_interval(secs => :lease_s)
    from due, vector_store_files m, vector_stores s, knowledge_files f
    where j.id = due.id
      and m.workspace_id = j.workspace_id and m.vector_store_id = j.vector_store_id and m.file_id = j.file_id
      and s.store_no = m.store_no and f.file_no = m.file_no
    returning j.id, j.attempt, j.workspace_id, j.vector_store_id, j.file_id, f.filename, f.bytes,
        m.max_chunk_size_tokens, m.chunk_overlap_tokens, s.encoder, s.dimension
""")

# The fence: a later attempt, another owner or an ended job is not ours.
_OURS = "id = :job_id and attempt = :attempt and lease_owner = :owner and state = 'running'"

_RENEW = text(f"""
    update ingest_jobs j set lease_until = now() + make_interval(secs => :lease_s)
    where {_OURS} and exists (
        select from vector_store_files m
        where m.workspace_id = j.workspace_id and m.vector_store_id = j.vector_store_id
          and m.file_id = j.file_id and m.status = 'in_progress')
    returning id
""")

# Locks the membership of a job; no row when it has gone (and the job with it) or was cancelled.
_LOCK_MEMBERSHIP = text("""
    select m.workspace_id, m.vector_store_id, m.file_id
    from ingest_jobs j join vector_store_files m using (workspace_id, vector_store_id, file_id)
    where j.id = :job_id and m.status = 'in_progress'
    for no key update of m
""")

_FINISH = text(f"""
    update ingest_jobs set state = 'done', lease_owner = null, lease_until = null, finished_at = now(),
        error_code = null, error_message = null
    where {_OURS} returning id
""")
_FAIL = text(f"""
    update ingest_jobs set state = 'failed', lease_owner = null, lease_until = null, finished_at = now(),
        failures = failures + 1, error_code = :code, error_message = :message
    where {_OURS} returning id
""")

# Tells as well whether the job has had its last chance.
_RETRY = text(f"""
    update ingest_jobs set state = 'waiting', lease_owner = null, lease_until = null,
        run_after = now() + make_interval(secs => :delay_s),
        failures = failures + CAST(CAST(:counted AS boolean) AS int),
        outage_since = case when not CAST(:counted AS boolean) then coalesce(outage_since, now()) end,
        error_code = :code, error_message = :message
    where {_OURS}
    returning case when CAST(:counted AS boolean) then failures >= :max_attempts
                   else outage_since <= now() - make_interval(secs => :outage_limit_s) end
""")
_RELEASE = text(f"""
    update ingest_jobs set state = 'waiting', lease_owner = null, lease_until = null, run_after = now()
    where {_OURS} returning id
""")

_COMPLETE_MEMBERSHIP = text("""
    update vector_store_files set status = 'completed', chunk_count = :chunk_count,
        window_count = :window_count, usage_bytes = :usage_bytes
    where workspace_id = :workspace_id and vector_store_id = :vector_store_id and file_id = :file_id
""")
_FAIL_MEMBERSHIP = text("""
    update vector_store_files set status = 'failed', error_code = :code, error_message = :message
    where workspace_id = :workspace_id and vector_store_id = :vector_store_id and file_id = :file_id
""")
_FAIL_SPENT_JOB = text("""
    update ingest_jobs set state = 'failed', finished_at = now() where id = :job_id
""")

# What a job staged is of no use once it has ended.
_UNSTAGE = text("delete from ingest_chunks where job_id = :job_id")

_DEPTH = text("select count(*) from ingest_jobs where state in ('waiting', 'running')")


class PostgresIngestQueue:
    """Jobs in `ingest_jobs`.

    One fails for good after `max_attempts` counted attempts, or when the attempts that are not counted have
    found something down for `outage_limit_s`.
    """

    def __init__(
        self, database: Database, *, max_attempts: int = 5, outage_limit_s: float = OUTAGE_LIMIT_S
    ) -> None:
        self._database = database
        self._max_attempts = max_attempts
        self._outage_limit_s = outage_limit_s
        self._listener = database.listen(INGEST_CHANNEL)

    async def claim(self, owner: str, lease_s: float) -> IngestJob | None:
        parameters = {"owner": owner, "lease_s": lease_s, "max_attempts": self._max_attempts}
        async with self._database.transaction() as connection:
            await connection.execute(
                _REAP,
                {
                    "max_attempts": self._max_attempts,
                    "message": "The file could not be ingested: its worker stopped at every attempt.",
                },
            )
            row = (await connection.execute(_CLAIM, parameters)).one_or_none()
        if row is None:
            return None
        return IngestJob(
            lease=Lease(job_id=row.id, attempt=row.attempt, owner=owner),
            workspace_id=WorkspaceId(row.workspace_id),
            vector_store_id=row.vector_store_id,
            file_id=row.file_id,
            filename=row.filename,
            bytes=row.bytes,
            chunking=ChunkingStrategy(row.max_chunk_size_tokens, row.chunk_overlap_tokens),
            encoder=Encoder(row.encoder, row.dimension),
        )

    async def renew(self, lease: Lease, lease_s: float) -> None:
        async with self._database.transaction() as connection:
            if await connection.scalar(_RENEW, {**_fence(lease), "lease_s": lease_s}) is None:
                raise LeaseLost()

    async def complete(self, lease: Lease, published: Published) -> None:
        async with self._database.transaction() as connection:
            membership, _ = await _end(connection, lease, _FINISH)
            figures = {
                "chunk_count": published.chunk_count,
                "window_count": published.window_count,
                "usage_bytes": published.usage_bytes,
            }
            await connection.execute(_COMPLETE_MEMBERSHIP, {**membership, **figures})
            await connection.execute(_UNSTAGE, {"job_id": lease.job_id})

    async def fail(self, lease: Lease, error: LastError) -> None:
        reason = {"code": error.code, "message": error.message}
        async with self._database.transaction() as connection:
            membership, _ = await _end(connection, lease, _FAIL, reason)
            await connection.execute(_FAIL_MEMBERSHIP, {**membership, **reason})
            await connection.execute(_UNSTAGE, {"job_id": lease.job_id})

    async def retry(self, lease: Lease, delay_s: float, error: LastError, *, counted: bool) -> None:
        reason = {"code": error.code, "message": error.message}
        limits = {
            "delay_s": delay_s,
            "counted": counted,
            "max_attempts": self._max_attempts,
            "outage_limit_s": self._outage_limit_s,
        }
        async with self._database.transaction() as connection:
            membership, spent = await _end(connection, lease, _RETRY, {**reason, **limits})
            if spent:
                await connection.execute(_FAIL_SPENT_JOB, {"job_id": lease.job_id})
                await connection.execute(_FAIL_MEMBERSHIP, {**membership, **reason})
                await connection.execute(_UNSTAGE, {"job_id": lease.job_id})

    async def release(self, lease: Lease) -> None:
        async with self._database.transaction() as connection:
            await _end(connection, lease, _RELEASE)
            await connection.execute(WAKE_WORKERS)

    async def depth(self) -> int:
        async with self._database.transaction() as connection:
            return int(await connection.scalar(_DEPTH) or 0)

    async def wait_for_work(self, timeout_s: float) -> None:
        await self._listener.wait(timeout_s)

    async def close(self) -> None:
        """Stop listening; the database stays open."""
        await self._listener.close()


async def _end(
    connection: AsyncConnection,
    lease: Lease,
    statement: TextClause,
    parameters: dict[str, Any] | None = None,
) -> tuple[dict[str, str], Any]:
    """Take the job out of our hands with `statement`; its locked membership's key, and what that returned.

    Raises `LeaseLost`, which rolls everything back.
    """
    membership = (await connection.execute(_LOCK_MEMBERSHIP, {"job_id": lease.job_id})).one_or_none()
    if membership is None:
        raise LeaseLost()
    returned = await connection.scalar(statement, {**_fence(lease), **(parameters or {})})
    if returned is None:
        raise LeaseLost()
    return dict(membership._mapping), returned


def _fence(lease: Lease) -> dict[str, Any]:
    return {"job_id": lease.job_id, "attempt": lease.attempt, "owner": lease.owner}
