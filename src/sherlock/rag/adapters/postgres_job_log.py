"""`JobLog` in PostgreSQL: the rows of `ingest_jobs`, read for a person."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row, text

from sherlock.rag.adapters.postgres import Database, storable
from sherlock.rag.domain.errors import NotFound
from sherlock.rag.domain.models import JobRecord, JobState, ReadingNotes, WorkspaceId

_BIGGEST_ID = 2**63 - 1

_JOBS = """
    select j.id, j.workspace_id, j.vector_store_id, j.file_id, f.filename, j.state, j.attempt, j.failures,
           j.created_at, j.run_after, j.finished_at, j.error_message, m.reading_notes
    from ingest_jobs j
    join knowledge_files f on f.workspace_id = j.workspace_id and f.id = j.file_id
    join vector_store_files m on m.workspace_id = j.workspace_id and m.vector_store_id = j.vector_store_id
        and m.file_id = j.file_id
"""
_GET = text(f"{_JOBS} where j.id = :id")

# The newest first, walked by the primary key.
_LIST = text(f"""
    {_JOBS} where j.id < :before
      and j.state = coalesce(CAST(:state AS text), j.state)
      and j.workspace_id = coalesce(CAST(:workspace_id AS text), j.workspace_id)
    order by j.id desc limit :limit
""")


class PostgresJobLog:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def list(
        self, state: JobState | None, workspace_id: WorkspaceId | None, limit: int, before: int | None = None
    ) -> Sequence[JobRecord]:
        if workspace_id is not None and not storable(workspace_id):
            return []
        chosen = {
            "state": state,
            "workspace_id": workspace_id,
            "limit": limit,
            "before": _BIGGEST_ID if before is None else before,
        }
        async with self._database.transaction() as connection:
            return [_record(row) for row in await connection.execute(_LIST, chosen)]

    async def get(self, job_id: int) -> JobRecord:
        if abs(job_id) > _BIGGEST_ID:
            raise NotFound("IngestJob", str(job_id))
        async with self._database.transaction() as connection:
            if (row := (await connection.execute(_GET, {"id": job_id})).one_or_none()) is None:
                raise NotFound("IngestJob", str(job_id))
            return _record(row)


def _record(row: Row[Any]) -> JobRecord:
    return JobRecord(
        id=row.id,
        workspace_id=WorkspaceId(row.workspace_id),
        vector_store_id=row.vector_store_id,
        file_id=row.file_id,
        filename=row.filename,
        state=row.state,
        attempt=row.attempt,
        failures=row.failures,
        created_at=int(row.created_at.timestamp()),
        run_after=int(row.run_after.timestamp()),
        finished_at=int(row.finished_at.timestamp()) if row.finished_at else None,
        reason=row.error_message,
        notes=ReadingNotes(**row.reading_notes) if row.reading_notes else None,
    )
