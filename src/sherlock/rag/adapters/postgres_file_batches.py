"""`FileBatchCatalog` in PostgreSQL: files attached together, by the statements that attach a single one."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection

from sherlock.rag.adapters.postgres import Database, printable, storable
from sherlock.rag.adapters.postgres_catalog import (
    LOCK_STORE,
    MEMBERSHIPS,
    Listing,
    attach,
    attaching,
    cancel,
    let_go,
    membership,
    page_of,
)
from sherlock.rag.domain.errors import NotFound
from sherlock.rag.domain.models import (
    Attachment,
    FileBatch,
    FileCounts,
    Page,
    PageRequest,
    Status,
    VectorStoreFile,
    WorkspaceId,
)

_ADD_BATCH = text("""
    insert into file_batches (workspace_id, vector_store_id, id, created_at)
    values (:workspace_id, :vector_store_id, :batch_id, to_timestamp(:created_at))
""")
_ADD_FILES = text("""
    insert into file_batch_files (workspace_id, vector_store_id, batch_id, file_id)
    select :workspace_id, :vector_store_id, :batch_id, unnest(CAST(:file_ids AS text[]))
""")

# How the ingest of a batch's file stands. A look-up, not a join: it uses an index whatever the planner knows
# of freshly written rows, where a join compared each of 2,000 files with all others (0.8 s).
_STATUS = """
    coalesce(f.ended, (
        select m.status from vector_store_files m
        where m.workspace_id = f.workspace_id and m.vector_store_id = f.vector_store_id
          and m.file_id = f.file_id
    ))
"""

# A batch and how its files stand, in one statement: status and counts are of the same moment.
_GET_BATCH = text(f"""
    select b.id, b.workspace_id, b.vector_store_id, b.created_at, b.cancelled_at is not null as cancelled,
           counts.*
    from file_batches b cross join lateral (
        select count(*) filter (where status = 'in_progress') as in_progress,
               count(*) filter (where status = 'completed') as completed,
               count(*) filter (where status = 'failed') as failed,
               count(*) filter (where status = 'cancelled') as cancelled_files
        from (
            select {_STATUS} as status from file_batch_files f
            where f.workspace_id = b.workspace_id and f.batch_id = b.id
            offset 0  -- or the look-up would be repeated for each of the counts
        ) files
    ) counts
    where b.workspace_id = :workspace_id and b.vector_store_id = :vector_store_id and b.id = :batch_id
""")

_LOCK_BATCH = text("""
    select id from file_batches
    where workspace_id = :workspace_id and vector_store_id = :vector_store_id and id = :batch_id
    for no key update
""")

# Those that this batch still waits for.
_IN_PROGRESS = text(f"""
    select f.file_id from file_batch_files f
    where f.workspace_id = :workspace_id and f.vector_store_id = :vector_store_id and f.batch_id = :batch_id
      and {_STATUS} = 'in_progress'
""")

_CANCEL_BATCH = text("""
    update file_batches set cancelled_at = now()
    where workspace_id = :workspace_id and vector_store_id = :vector_store_id and id = :batch_id
""")

_IN_BATCH = """
    select file_id from file_batch_files
    where workspace_id = :workspace_id and batch_id = :batch_id
"""
_LIST_FILES = Listing(
    "VectorStoreFile",
    f"""{MEMBERSHIPS} and m.file_id in ({_IN_BATCH})
        and m.status = coalesce(CAST(:status AS text), m.status)""",
    "m.created_at",
    "m.file_no",
    cursor=text(f"""
        select created_at as time, file_no as number from vector_store_files
        where workspace_id = :workspace_id and vector_store_id = :vector_store_id and file_id = :cursor
          and file_id in ({_IN_BATCH})
    """),
)


class PostgresFileBatches:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, batch: FileBatch, attachments: Sequence[Attachment]) -> FileBatch:
        key = _key(batch.workspace_id, batch.vector_store_id, batch.id)
        file_ids = [one.file_id for one in attachments]
        for file_id in file_ids:
            if not storable(file_id):
                raise NotFound("File", printable(file_id), param="file_ids")

        async def attach_all(connection: AsyncConnection) -> FileBatch:
            await attach(connection, batch.workspace_id, batch.vector_store_id, attachments, param="file_ids")
            await connection.execute(_ADD_BATCH, key | {"created_at": batch.created_at})
            await connection.execute(_ADD_FILES, key | {"file_ids": file_ids})
            return await _batch(connection, key)

        return await attaching(self._database, attach_all)

    async def get(self, workspace_id: WorkspaceId, vector_store_id: str, batch_id: str) -> FileBatch:
        async with self._database.transaction() as connection:
            return await _batch(connection, _key(workspace_id, vector_store_id, batch_id))

    async def cancel(self, workspace_id: WorkspaceId, vector_store_id: str, batch_id: str) -> FileBatch:
        key = _key(workspace_id, vector_store_id, batch_id)
        async with self._database.transaction() as connection:
            running = (await connection.scalars(_IN_PROGRESS, key)).all()
        await let_go(self._database, workspace_id, vector_store_id, running)
        async with self._database.transaction() as connection:
            await connection.execute(LOCK_STORE, key)
            await connection.execute(_LOCK_BATCH, key)
            if in_progress := (await connection.scalars(_IN_PROGRESS, key)).all():
                await cancel(connection, workspace_id, vector_store_id, in_progress)
                await connection.execute(_CANCEL_BATCH, key)
            return await _batch(connection, key)

    async def list_files(
        self,
        workspace_id: WorkspaceId,
        vector_store_id: str,
        batch_id: str,
        page: PageRequest,
        status: Status | None = None,
    ) -> Page[VectorStoreFile]:
        key = _key(workspace_id, vector_store_id, batch_id)
        async with self._database.transaction() as connection:
            await _batch(connection, key)
            rows, has_more = await page_of(connection, _LIST_FILES, page, {**key, "status": status})
        return Page(tuple(map(membership, rows)), has_more)


async def _batch(connection: AsyncConnection, key: dict[str, Any]) -> FileBatch:
    if (row := (await connection.execute(_GET_BATCH, key)).one_or_none()) is None:
        raise NotFound("VectorStoreFileBatch", key["batch_id"])
    return _file_batch(row)


def _key(workspace_id: WorkspaceId, vector_store_id: str, batch_id: str) -> dict[str, Any]:
    """Bound values that name a batch. Raises `NotFound` for ids that no database holds."""
    if not storable(vector_store_id):
        raise NotFound("VectorStore", printable(vector_store_id))
    if not storable(batch_id):
        raise NotFound("VectorStoreFileBatch", printable(batch_id))
    return {"workspace_id": workspace_id, "vector_store_id": vector_store_id, "batch_id": batch_id}


def _file_batch(row: Row[Any]) -> FileBatch:
    return FileBatch(
        id=row.id,
        workspace_id=row.workspace_id,
        vector_store_id=row.vector_store_id,
        created_at=int(row.created_at.timestamp()),
        file_counts=FileCounts(row.in_progress, row.completed, row.failed, row.cancelled_files),
        cancelled=row.cancelled,
    )
