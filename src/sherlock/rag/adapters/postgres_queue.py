"""`IngestQueue` in PostgreSQL. The row is the truth, the database's clock the only one; NOTIFY: "look now".

Whoever ends a job locks the membership before the job, as deleting does, so that the two cannot deadlock.
Claiming locks a job alone, and skips what is locked instead of waiting. Jobs are given their turns where they
are queued, in `postgres_catalog`.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.elements import TextClause

from sherlock.rag.adapters.postgres import INGEST_CHANNEL, WAKE_WORKERS, Database
from sherlock.rag.domain.correlation import Correlation
from sherlock.rag.domain.errors import DatabaseUnavailable, LeaseLost
from sherlock.rag.domain.models import (
    ChunkingStrategy,
    Encoder,
    IngestJob,
    LastError,
    Lease,
    Published,
    QueueActivity,
    WorkspaceId,
)

OUTAGE_LIMIT_S = 86_400.0
"""A day: how long an outage may put a job off."""
RECENT_JOBS = 20
"""Whose stages `activity` tells the mean of."""
WATCH_POLL_S = 1.0
"""Most requests to let go of a job are heard at once; this finds those whose notification was lost."""

_WORKER_STOPPED = "The file could not be ingested: its worker stopped at every attempt."

_DOWN_TOO_LONG = "The file could not be ingested: something that takes was down for too long."


def _take_back(which: str, *, last: str, changes: str) -> TextClause:
    """Give back the running jobs `which`; those whose attempt was the `last` one fail.

    One that had published (its file has chunks, nothing is staged any more) is done: only its end was not
    noted.
    """
    return text(f"""
        with lost as materialized (
            select id, workspace_id, vector_store_id, file_id
            from ingest_jobs j where state = 'running' and {which}
            order by lease_until limit 100
        ), locked as (
            select l.*, p.published, not p.published and coalesce({last}, false) as spent
            from lost l
            join vector_store_files m using (workspace_id, vector_store_id, file_id)
            join ingest_jobs j using (id)
            cross join lateral (
                select m.chunk_count > 0
                   and not exists (select from ingest_chunks c where c.job_id = l.id) as published
            ) p
            where j.state = 'running' and {which}
            for no key update of m, j skip locked
        ), unstaged as (
            delete from ingest_chunks c using locked l where c.job_id = l.id and l.spent
        ), failed as (
            update vector_store_files m
            set status = 'failed', error_code = 'server_error', error_message = :message
            from locked l
            where l.spent and m.workspace_id = l.workspace_id and m.vector_store_id = l.vector_store_id
              and m.file_id = l.file_id and m.status = 'in_progress'
        ), completed as (
            update vector_store_files m set status = 'completed', unconfirmed = false
            from locked l
            where l.published and m.workspace_id = l.workspace_id and m.vector_store_id = l.vector_store_id
              and m.file_id = l.file_id and m.status = 'in_progress'
        )
        update ingest_jobs j set
            state = case when l.published then 'done' when l.spent then 'failed' else 'waiting' end,
            lease_owner = null, lease_until = null, {changes},
            error_code = case when l.spent then 'server_error' when not l.published then j.error_code end,
            error_message = case when l.spent then :message when not l.published then j.error_message end,
            finished_at = case when l.spent or l.published then now() end
        from locked l where j.id = l.id
    """)


_DOWN_FOR_A_DAY = "j.outage_since <= now() - make_interval(secs => :outage_limit_s)"
_LAST_ATTEMPT = f"(j.failures + 1 >= :max_attempts or {_DOWN_FOR_A_DAY})"

# From owners who let their leases run out: a failed attempt, until they say that they live. Where the job
# would fail they have one lease more for that.
_RECOVER = _take_back(
    f"""j.lease_until < now() and (
            {_LAST_ATTEMPT} is not true or j.lease_until < now() - make_interval(secs => :lease_s)
        )""",
    last=_LAST_ATTEMPT,
    changes="failures = j.failures + 1, lost_owners = j.lost_owners || j.lease_owner",
)

# From an owner who lives and does not run them: neither its fault nor the file's.
_GIVE_UP = _take_back(
    "j.lease_owner = :owner",
    last=_DOWN_FOR_A_DAY,
    changes="outage_since = coalesce(j.outage_since, now())",
)

# Of an owner who lives no lease ran out by a file's fault: it was cut off, or stood still.
_TAKE_BACK_COUNTS = text("""
    update ingest_jobs set
        failures = failures - cardinality(array_positions(lost_owners, CAST(:owner AS text))),
        lost_owners = array_remove(lost_owners, CAST(:owner AS text)),
        outage_since = coalesce(outage_since, now())
    where lost_owners <> '{}' and state in ('waiting', 'running') and :owner = any(lost_owners)
""")

# The statements below walk an index in its order to the first row that will do. With a hundred thousand rows
# just written and not analyzed yet the planner would rather sort them.
KEEP_TO_THE_INDEX = text("""
    select set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
           set_config('enable_sort', 'off', true)
""")

# Claims the job whose turn it is: the first due one in the order of turns that nobody else is claiming.
CLAIM = text("""
    with next as materialized (
        select id from ingest_jobs
        where state = 'waiting' and run_after <= now()
        order by turn, id limit 1
        for no key update skip locked
    )
    update ingest_jobs j set state = 'running', attempt = j.attempt + 1,
        lease_owner = :owner, lease_until = now() + make_interval(secs => :lease_s)
    from next where j.id = next.id
    returning j.id, j.attempt, j.workspace_id, j.vector_store_id, j.file_id, j.request_id, j.traceparent
""")

# What a worker has to know of a job.
_DETAILS = text("""
    select f.filename, f.bytes, m.max_chunk_size_tokens, m.chunk_overlap_tokens, s.encoder, s.dimension
    from vector_store_files m
    join vector_stores s on s.store_no = m.store_no
    join knowledge_files f on f.file_no = m.file_no
    where m.workspace_id = :workspace_id and m.vector_store_id = :vector_store_id and m.file_id = :file_id
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

# Whether work on the job is still of use; reads only, so it may be asked often.
_HELD = text(f"""
    select 1 from ingest_jobs j join vector_store_files m using (workspace_id, vector_store_id, file_id)
    where {_OURS} and m.status = 'in_progress'
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
        error_code = null, error_message = null, stage_ms = CAST(:stage_ms AS jsonb)
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
    update vector_store_files set status = 'completed', unconfirmed = false, chunk_count = :chunk_count,
        window_count = :window_count, usage_bytes = :usage_bytes, reading_notes = CAST(:notes AS jsonb),
        read_by = :read_by
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

# Each figure by an index of its own, however many jobs have ended.
_ACTIVITY = text("""
    select (select count(*) from ingest_jobs where state = 'running') as running, waiting, oldest_age_s
    from (
        select count(*) as waiting, CAST(extract(epoch from now() - min(created_at)) AS float) as oldest_age_s
        from ingest_jobs where state = 'waiting'
    ) waiting
""")
_RECENT = text("""
    with recent as (
        select stage_ms from ingest_jobs where state = 'done' order by finished_at desc limit :limit
    )
    select s.stage, count(*) as jobs, avg(CAST(s.ms AS float)) as ms
    from recent cross join jsonb_each_text(stage_ms) s (stage, ms)
    group by s.stage order by s.stage
""")

_WAITING = text("""
    select count(*) from (select from ingest_jobs where state = 'waiting' limit :limit) waiting
""")


class PostgresIngestQueue:
    """Jobs in `ingest_jobs`.

    One fails for good after `max_attempts` counted attempts, or when the attempts that are not counted have
    found something down for `outage_limit_s`. After an outage that this queue has seen it leaves all leases
    alone for as long as one lasts: their owners were cut off too, and come back.
    """

    def __init__(
        self, database: Database, *, max_attempts: int = 5, outage_limit_s: float = OUTAGE_LIMIT_S
    ) -> None:
        self._database = database
        self._max_attempts = max_attempts
        self._outage_limit_s = outage_limit_s
        self._patient_until = 0.0
        self._watched: dict[Lease, asyncio.Event] = {}
        self._listener = database.listen(INGEST_CHANNEL, self._let_go)

    async def claim(self, owner: str, lease_s: float) -> IngestJob | None:
        async with self._reaching(lease_s) as connection:
            await connection.execute(KEEP_TO_THE_INDEX)
            if time.monotonic() >= self._patient_until:
                patience = {"lease_s": lease_s, "message": _WORKER_STOPPED}
                await connection.execute(_RECOVER, self._limits | patience)
            claimed = await connection.execute(CLAIM, {"owner": owner, "lease_s": lease_s})
            if (job := claimed.one_or_none()) is None:
                return None
            membership = {
                "workspace_id": job.workspace_id,
                "vector_store_id": job.vector_store_id,
                "file_id": job.file_id,
            }
            row = (await connection.execute(_DETAILS, membership)).one()
        return IngestJob(
            lease=Lease(job_id=job.id, attempt=job.attempt, owner=owner),
            workspace_id=WorkspaceId(job.workspace_id),
            vector_store_id=job.vector_store_id,
            file_id=job.file_id,
            filename=row.filename,
            bytes=row.bytes,
            chunking=ChunkingStrategy(row.max_chunk_size_tokens, row.chunk_overlap_tokens),
            encoder=Encoder(row.encoder, row.dimension),
            correlation=Correlation(job.request_id, job.traceparent),
        )

    async def vouch(self, owner: str) -> None:
        given_up = {"owner": owner, "outage_limit_s": self._outage_limit_s, "message": _DOWN_TOO_LONG}
        async with self._database.transaction() as connection:
            await connection.execute(KEEP_TO_THE_INDEX)
            await connection.execute(_GIVE_UP, given_up)
            await connection.execute(_TAKE_BACK_COUNTS, {"owner": owner})

    async def watch(self, lease: Lease) -> None:
        asked = self._watched[lease] = asyncio.Event()
        try:
            while True:
                await self._listener.connect()
                with suppress(TimeoutError):
                    await asyncio.wait_for(asked.wait(), WATCH_POLL_S)
                    return
                with suppress(DatabaseUnavailable):  # the fence stops our writes
                    if not await self._holds(lease):
                        return
        finally:
            del self._watched[lease]

    async def renew(self, lease: Lease, lease_s: float) -> None:
        async with self._reaching(lease_s) as connection:
            if await connection.scalar(_RENEW, {**_fence(lease), "lease_s": lease_s}) is None:
                raise LeaseLost()

    async def complete(self, lease: Lease, published: Published) -> None:
        async with self._database.transaction() as connection:
            membership, _ = await _end(
                connection, lease, _FINISH, {"stage_ms": json.dumps(dict(published.stage_ms))}
            )
            figures = {
                "chunk_count": published.chunk_count,
                "window_count": published.window_count,
                "usage_bytes": published.usage_bytes,
                "notes": json.dumps(asdict(published.notes)),
                "read_by": published.read_by or None,
            }
            await connection.execute(_COMPLETE_MEMBERSHIP, {**membership, **figures})
            await connection.execute(_UNSTAGE, {"job_id": lease.job_id})

    async def fail(self, lease: Lease, error: LastError) -> None:
        reason = {"code": error.code, "message": error.message}
        async with self._database.transaction() as connection:
            membership, _ = await _end(connection, lease, _FAIL, reason)
            await connection.execute(_FAIL_MEMBERSHIP, {**membership, **reason})
            await connection.execute(_UNSTAGE, {"job_id": lease.job_id})

    async def retry(self, lease: Lease, delay_s: float, error: LastError, *, counted: bool) -> bool:
        reason = {"code": error.code, "message": error.message}
        terms = {"delay_s": delay_s, "counted": counted, **self._limits}
        async with self._database.transaction() as connection:
            membership, spent = await _end(connection, lease, _RETRY, {**reason, **terms})
            if spent:
                await connection.execute(_FAIL_SPENT_JOB, {"job_id": lease.job_id})
                await connection.execute(_FAIL_MEMBERSHIP, {**membership, **reason})
                await connection.execute(_UNSTAGE, {"job_id": lease.job_id})
        return not spent

    async def release(self, lease: Lease) -> None:
        async with self._database.transaction() as connection:
            await _end(connection, lease, _RELEASE)
            await connection.execute(WAKE_WORKERS)

    async def depth(self) -> int:
        async with self._database.transaction() as connection:
            return int(await connection.scalar(_DEPTH) or 0)

    async def activity(self) -> QueueActivity:
        async with self._database.transaction() as connection:
            now = (await connection.execute(_ACTIVITY)).one()
            recent = (await connection.execute(_RECENT, {"limit": RECENT_JOBS})).all()
        return QueueActivity(
            waiting=now.waiting,
            running=now.running,
            oldest_age_s=max(0.0, now.oldest_age_s or 0.0),
            recent_jobs=max((row.jobs for row in recent), default=0),
            stage_ms={row.stage: round(row.ms, 1) for row in recent},
        )

    async def waiting(self, limit: int) -> int:
        async with self._database.transaction() as connection:
            return int(await connection.scalar(_WAITING, {"limit": limit}) or 0)

    async def wait_for_work(self, timeout_s: float) -> None:
        await self._listener.wait(timeout_s)

    async def close(self) -> None:
        """Stop listening; the database stays open."""
        await self._listener.close()

    @property
    def _limits(self) -> dict[str, float]:
        return {"max_attempts": self._max_attempts, "outage_limit_s": self._outage_limit_s}

    @asynccontextmanager
    async def _reaching(self, lease_s: float) -> AsyncIterator[AsyncConnection]:
        """A transaction whose failure makes us patient: an outage's end is the end of everybody's."""
        try:
            async with self._database.transaction() as connection:
                yield connection
        except DatabaseUnavailable:
            self._patient_until = time.monotonic() + lease_s
            raise

    async def _holds(self, lease: Lease) -> bool:
        async with self._database.transaction() as connection:
            return await connection.scalar(_HELD, _fence(lease)) is not None

    def _let_go(self, payload: str) -> None:
        """A notification: of a job that was queued, or with the number of one that is to stop."""
        for lease, asked in self._watched.items():
            if payload == str(lease.job_id):
                asked.set()


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
