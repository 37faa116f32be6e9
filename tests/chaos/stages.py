"""How far the jobs have come that a kill hits."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from tests.chaos.database import KillableDatabase

Stage = Literal["queued", "reading", "encoding", "staging", "publishing"]
STAGES: Sequence[Stage] = get_args(Stage)
"""`reading` lasts until the first chunks are staged, with fetching before and their encoding after it;
`encoding` is the time between two batches that are staged, in which the next one is also being read."""

# A transaction that stages or publishes holds the job's row: its number is what last locked the row.
_JOBS = """
    select split_part(j.lease_owner, ':', 2)::int, j.failures,
           case when j.state = 'waiting' then 'queued'
                when a.query ~* 'into ingest_chunks|chunk_index = any' then 'staging'
                when a.query ~* 'knowledge_chunks|term_df|chunk_count' then 'publishing'
                when exists (select from ingest_chunks i where i.job_id = j.id) then 'encoding'
                else 'reading' end
    from ingest_jobs j
    left join pg_stat_activity a on a.backend_xid = j.xmax and a.state <> 'idle'
    where j.state in ('waiting', 'running')
"""


@dataclass(frozen=True, slots=True)
class JobAt:
    worker_pid: int | None
    failures: int
    """Attempts that count against it."""
    stage: Stage


def jobs_under_way(database: KillableDatabase) -> list[JobAt]:
    return [JobAt(pid, failures, stage) for pid, failures, stage in database.rows(_JOBS)]


def furthest(jobs: Sequence[JobAt]) -> Stage | None:
    return max((job.stage for job in jobs), key=STAGES.index, default=None)
