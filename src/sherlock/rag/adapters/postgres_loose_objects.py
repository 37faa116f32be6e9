"""`LooseObjects` in PostgreSQL.

Who wants to keep an object and who wants to remove it meet on its row: the second waits for the first, and
then finds it gone, or going. Nothing is locked after such a row but what adding the object's file locks.
"""

from typing import Any

from sqlalchemy import text

from sherlock.rag.adapters.postgres import Database
from sherlock.rag.domain.models import WorkspaceId

_RESERVE = text("""
    insert into loose_objects (workspace_id, id, due_at)
    values (:workspace_id, :id, now() + make_interval(secs => :for_s))
""")
_RENEW = text("""
    update loose_objects set due_at = now() + make_interval(secs => :for_s)
    where workspace_id = :workspace_id and id = :id and not going
""")

# Waits for a transaction that is making the object a file's; what came of it only a later statement sees.
_CLAIM = text("""
    insert into loose_objects (workspace_id, id, due_at, going)
    values (:workspace_id, :id, now(), true)
    on conflict (workspace_id, id) do update set due_at = now(), going = true
""")
_IS_A_FILE = text("""
    select exists (select from knowledge_files where workspace_id = :workspace_id and id = :id)
""")

_CLAIM_DUE = text("""
    with due as (
        select workspace_id, id from loose_objects where due_at <= now()
        order by due_at limit :limit
        for update skip locked
    )
    update loose_objects o set due_at = now() + make_interval(secs => :again_after_s), going = true
    from due where o.workspace_id = due.workspace_id and o.id = due.id
    returning o.workspace_id, o.id
""")

_FORGET = text("delete from loose_objects where workspace_id = :workspace_id and id = :id")


class PostgresLooseObjects:
    """Rows of `loose_objects`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def reserve(self, workspace_id: WorkspaceId, object_id: str, for_s: float) -> None:
        await self._database.execute(_RESERVE, {**_key(workspace_id, object_id), "for_s": for_s})

    async def renew(self, workspace_id: WorkspaceId, object_id: str, for_s: float) -> None:
        await self._database.execute(_RENEW, {**_key(workspace_id, object_id), "for_s": for_s})

    async def claim(self, workspace_id: WorkspaceId, object_id: str) -> bool:
        key = _key(workspace_id, object_id)
        async with self._database.transaction() as connection:
            await connection.execute(_CLAIM, key)
            if is_a_file := bool(await connection.scalar(_IS_A_FILE, key)):
                await connection.execute(_FORGET, key)
            return not is_a_file

    async def claim_due(self, limit: int, again_after_s: float) -> list[tuple[WorkspaceId, str]]:
        bounds = {"limit": limit, "again_after_s": again_after_s}
        async with self._database.transaction() as connection:
            return [(row.workspace_id, row.id) for row in await connection.execute(_CLAIM_DUE, bounds)]

    async def forget(self, workspace_id: WorkspaceId, object_id: str) -> None:
        await self._database.execute(_FORGET, _key(workspace_id, object_id))


def _key(workspace_id: WorkspaceId, object_id: str) -> dict[str, Any]:
    return {"workspace_id": workspace_id, "id": object_id}
