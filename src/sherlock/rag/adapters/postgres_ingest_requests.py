"""`IngestRequests` in PostgreSQL: what is owed for requests that came as messages."""

from collections.abc import Sequence

from sqlalchemy import text

from sherlock.rag.adapters.postgres import Database
from sherlock.rag.domain.messages import IngestRequest
from sherlock.rag.domain.models import WorkspaceId

ENDED_CHANNEL = "sherlock_ingest_ended"
"""Notified by triggers when an ingest ends for which a result is owed."""

KEPT_S = 86_400.0
"""A day: how long a message whose result was published is still known when it comes again."""

_ADD = text("""
    insert into ingest_requests (workspace_id, message_id, request_id, vector_store_id, file_id, reply_to,
                                 traceparent)
    values (:workspace_id, :message_id, :request_id, :vector_store_id, :file_id, :reply_to, :traceparent)
    on conflict (workspace_id, message_id) do nothing
""")

_KNOWN = text("""
    select exists (
        select from ingest_requests where workspace_id = :workspace_id and message_id = :message_id)
""")

# The oldest ones whose membership is not in progress (or is gone) and that nobody else is publishing.
_CLAIM_ENDED = text("""
    with ended as (
        select r.id from ingest_requests r
        where r.published_at is null and (r.claimed_until is null or r.claimed_until < now())
          and not exists (
            select from vector_store_files m
            where m.workspace_id = r.workspace_id and m.vector_store_id = r.vector_store_id
              and m.file_id = r.file_id and m.status = 'in_progress')
        order by r.id limit :limit
        for update of r skip locked
    ), claimed as (
        update ingest_requests r set claimed_until = now() + make_interval(secs => :lease_s)
        from ended where r.id = ended.id
        returning r.id, r.workspace_id, r.message_id, r.request_id, r.vector_store_id, r.file_id, r.reply_to,
                  r.traceparent
    )
    select * from claimed order by id
""")

_SETTLE = text("""
    update ingest_requests set published_at = now(), claimed_until = null
    where workspace_id = :workspace_id and message_id = :message_id and published_at is null
""")

# Messages are not delivered again after that long. Of two workers each removes its own.
_FORGET = text("""
    with old as (
        select id from ingest_requests where published_at < now() - make_interval(secs => :kept_s)
        order by published_at limit :limit
        for update skip locked
    )
    delete from ingest_requests r using old where r.id = old.id returning r.id
""")


class PostgresIngestRequests:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._listener = database.listen(ENDED_CHANNEL)

    async def add(self, request: IngestRequest) -> None:
        async with self._database.transaction() as connection:
            await connection.execute(
                _ADD,
                {
                    "workspace_id": request.workspace_id,
                    "message_id": request.message_id,
                    "request_id": request.request_id,
                    "vector_store_id": request.vector_store_id,
                    "file_id": request.file_id,
                    "reply_to": request.reply_to,
                    "traceparent": request.traceparent,
                },
            )

    async def known(self, workspace_id: WorkspaceId, message_id: str) -> bool:
        key = {"workspace_id": workspace_id, "message_id": message_id}
        async with self._database.transaction() as connection:
            return bool(await connection.scalar(_KNOWN, key))

    async def claim_ended(self, limit: int, lease_s: float) -> list[IngestRequest]:
        async with self._database.transaction() as connection:
            rows = (await connection.execute(_CLAIM_ENDED, {"limit": limit, "lease_s": lease_s})).all()
        return [
            IngestRequest(
                workspace_id=WorkspaceId(row.workspace_id),
                message_id=row.message_id,
                request_id=row.request_id,
                vector_store_id=row.vector_store_id,
                file_id=row.file_id,
                reply_to=row.reply_to,
                traceparent=row.traceparent,
            )
            for row in rows
        ]

    async def settle(self, requests: Sequence[IngestRequest]) -> None:
        if not requests:
            return
        keys = [{"workspace_id": r.workspace_id, "message_id": r.message_id} for r in requests]
        async with self._database.transaction() as connection:
            await connection.execute(_SETTLE, keys)

    async def forget_settled(self, limit: int) -> int:
        async with self._database.transaction() as connection:
            forgotten = await connection.scalars(_FORGET, {"kept_s": KEPT_S, "limit": limit})
            return len(forgotten.all())

    async def wait_for_ended(self, timeout_s: float) -> None:
        await self._listener.wait(timeout_s)

    async def close(self) -> None:
        """Stop listening; the database stays open."""
        await self._listener.close()
