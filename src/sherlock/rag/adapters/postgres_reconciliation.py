"""`ReconciliationRecords` in PostgreSQL: a row says when a worker looked last, and what it found."""

from dataclasses import asdict

from sqlalchemy import text

from sherlock.rag.adapters.postgres import Database
from sherlock.rag.adapters.postgres_files import UNEXPIRED
from sherlock.rag.domain.models import Orphans, WorkspaceId

# Of workers that ask at the same time, the second waits for the first and then finds that it is too early.
_BEGIN = text("""
    insert into reconciliation (one) values (true)
    on conflict (one) do update set begun_at = now()
        where reconciliation.begun_at <= now() - make_interval(secs => :every_s)
    returning one
""")

_FILES = text(f"""
    select f.file_no, f.workspace_id, f.id
    from knowledge_files f
    where f.file_no > :after and {UNEXPIRED}
    order by f.file_no limit :limit
""")

_END = text("""
    insert into reconciliation (ended_at, bytes_without_record, records_without_bytes)
    values (now(), :bytes_without_record, :records_without_bytes)
    on conflict (one) do update set ended_at = excluded.ended_at,
        bytes_without_record = excluded.bytes_without_record,
        records_without_bytes = excluded.records_without_bytes
""")

_LATEST = text("""
    select bytes_without_record, records_without_bytes from reconciliation where ended_at is not null
""")


class PostgresReconciliation:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def begin(self, every_s: float) -> bool:
        async with self._database.transaction() as connection:
            return await connection.scalar(_BEGIN, {"every_s": every_s}) is not None

    async def files(self, after: int, limit: int) -> list[tuple[int, WorkspaceId, str]]:
        async with self._database.transaction() as connection:
            rows = await connection.execute(_FILES, {"after": after, "limit": limit})
            return [(row.file_no, row.workspace_id, row.id) for row in rows]

    async def end(self, found: Orphans) -> None:
        async with self._database.transaction() as connection:
            await connection.execute(_END, asdict(found))

    async def latest(self) -> Orphans | None:
        async with self._database.transaction() as connection:
            row = (await connection.execute(_LATEST)).one_or_none()
            return None if row is None else Orphans(row.bytes_without_record, row.records_without_bytes)
