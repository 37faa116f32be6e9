"""`UploadRecords` in PostgreSQL.

An upload's row is locked before the file that it becomes, and before its parts. Reserving and adding parts
do not lock it: what they bring too late is left over, and found as such.
"""

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import Row, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from sherlock.rag.adapters.postgres import Database, check_id, storable
from sherlock.rag.adapters.postgres_files import GET_FILE, insert_file, stored_file
from sherlock.rag.domain.errors import (
    Conflict,
    InvalidRequest,
    NotFound,
    ReservationLost,
    UploadNotPending,
)
from sherlock.rag.domain.models import StoredFile, Upload, UploadPart, WorkspaceId

MAX_PARTS = 10_000
"""Of one upload; as many as S3 allows. Those that come at the same time may exceed it."""

# A workspace comes into being with its first upload, too.
_ADD = text("""
    with workspace as (insert into workspaces (id) values (:workspace_id) on conflict do nothing)
    insert into uploads (workspace_id, id, filename, purpose, bytes, expires_after_s, created_at, expires_at)
    values (:workspace_id, :id, :filename, :purpose, :bytes, :expires_after_s,
            to_timestamp(:created_at), to_timestamp(:expires_at))
""")

# Nobody has to come by for an upload to expire.
_UPLOAD = """
    select id, workspace_id, filename, purpose, bytes, expires_after_s, part_ids, file_id,
           created_at, expires_at,
           case when status = 'pending' and expires_at <= now() then 'expired' else status end as status
    from uploads where workspace_id = :workspace_id and id = :upload_id
"""
_GET = text(_UPLOAD)
_LOCK = text(f"{_UPLOAD} for no key update")

_RESERVE = text("""
    with upload as (
        select workspace_id, bytes from uploads
        where workspace_id = :workspace_id and id = :upload_id and status = 'pending' and expires_at > now()
          and :max_parts > (
            select count(*) from upload_objects where workspace_id = :workspace_id and upload_id = :upload_id)
    ), reserved as (
        insert into loose_objects (workspace_id, id, due_at)
        select workspace_id, :part_id, now() + make_interval(secs => :for_s) from upload
    )
    select bytes from upload
""")

_ADD_PART = text("""
    with reservation as (
        delete from loose_objects
        where workspace_id = :workspace_id and id = :part_id and not going returning id
    )
    insert into upload_objects (workspace_id, upload_id, id, bytes)
    select u.workspace_id, u.id, r.id, CAST(:bytes AS bigint)
    from uploads u cross join reservation r
    where u.workspace_id = :workspace_id and u.id = :upload_id
      and u.status = 'pending' and u.expires_at > now()
    returning id, workspace_id, upload_id, bytes, created_at
""")

_PARTS = text("""
    select id, workspace_id, upload_id, bytes, created_at from upload_objects
    where workspace_id = :workspace_id and upload_id = :upload_id and bytes is not null
      and id = any(CAST(:ids AS text[]))
""")

_COMPLETE = text("""
    update uploads set status = 'completed', part_ids = CAST(:part_ids AS text[]), file_id = :file_id
    where workspace_id = :workspace_id and id = :upload_id
""")
_CANCEL = text("""
    update uploads set status = 'cancelled' where workspace_id = :workspace_id and id = :upload_id
""")

_OBJECTS = text("""
    select id from upload_objects
    where workspace_id = :workspace_id and upload_id = :upload_id and bytes is not null
    order by created_at, id limit :limit
""")
# Where bytes is null an API from before `loose_objects` wrote the row, and may still be storing the part.
_LEFT_OVER = text("""
    select o.workspace_id, o.id
    from upload_objects o join uploads u on u.workspace_id = o.workspace_id and u.id = o.upload_id
    where (u.status <> 'pending' or u.expires_at <= now())
      and (o.bytes is not null or o.created_at <= now() - interval '1 day')
    order by o.created_at, o.id limit :limit
""")
_FORGET = text("""
    delete from upload_objects where workspace_id = :workspace_id and id = any(CAST(:ids AS text[]))
""")

_FORGET_UPLOADS = text("""
    with old as (
        select workspace_id, id from uploads u
        where expires_at <= now() - make_interval(secs => :older_than_s) and not exists (
            select from upload_objects o where o.workspace_id = u.workspace_id and o.upload_id = u.id)
        order by expires_at limit :limit
        for update skip locked
    )
    delete from uploads u using old where u.workspace_id = old.workspace_id and u.id = old.id
    returning u.id
""")


class PostgresUploadRecords:
    """Uploads in `uploads`, their parts in `upload_objects`."""

    def __init__(self, database: Database, *, max_parts: int = MAX_PARTS) -> None:
        self._database = database
        self._max_parts = max_parts

    async def add(self, upload: Upload) -> None:
        if not storable(upload.filename):
            raise InvalidRequest("'filename' holds a character that cannot be stored.", param="filename")
        parameters = {
            "workspace_id": upload.workspace_id,
            "id": upload.id,
            "filename": upload.filename,
            "purpose": upload.purpose,
            "bytes": upload.bytes,
            "expires_after_s": upload.file_expires_after_s,
            "created_at": upload.created_at,
            "expires_at": upload.expires_at,
        }
        try:
            async with self._database.transaction() as connection:
                await connection.execute(_ADD, parameters)
        except IntegrityError as error:
            raise Conflict("An upload with this id exists already.") from error

    async def get(self, workspace_id: WorkspaceId, upload_id: str) -> Upload:
        async with self._database.transaction() as connection:
            return await _get(connection, workspace_id, upload_id)

    async def reserve(self, workspace_id: WorkspaceId, upload_id: str, part_id: str, for_s: float) -> int:
        check_id("Upload", upload_id)
        parameters = {
            "workspace_id": workspace_id,
            "upload_id": upload_id,
            "part_id": part_id,
            "for_s": for_s,
            "max_parts": self._max_parts,
        }
        async with self._database.transaction() as connection:
            declared: int | None = await connection.scalar(_RESERVE, parameters)
            if declared is None:
                _require_pending(await _get(connection, workspace_id, upload_id))
                raise InvalidRequest(f"The upload has more than {self._max_parts} parts.")
            return declared

    async def add_part(
        self, workspace_id: WorkspaceId, upload_id: str, part_id: str, size: int
    ) -> UploadPart:
        check_id("Upload", upload_id)
        check_id("UploadPart", part_id)
        part = {"workspace_id": workspace_id, "upload_id": upload_id, "part_id": part_id, "bytes": size}
        async with self._database.transaction() as connection:
            if (row := (await connection.execute(_ADD_PART, part)).one_or_none()) is None:
                _require_pending(await _get(connection, workspace_id, upload_id))
                raise ReservationLost
            return _part(row)

    async def parts(
        self, workspace_id: WorkspaceId, upload_id: str, part_ids: Collection[str]
    ) -> dict[str, UploadPart]:
        if not storable(upload_id):
            return {}
        ids = list(filter(storable, part_ids))
        wanted = {"workspace_id": workspace_id, "upload_id": upload_id, "ids": ids}
        async with self._database.transaction() as connection:
            return {row.id: _part(row) for row in await connection.execute(_PARTS, wanted)}

    async def complete(
        self, workspace_id: WorkspaceId, upload_id: str, part_ids: Sequence[str], file: StoredFile
    ) -> Upload:
        key = {"workspace_id": workspace_id, "upload_id": upload_id}
        try:
            async with self._database.transaction() as connection:
                _require_pending(await _get(connection, workspace_id, upload_id, lock=True))
                await insert_file(connection, file, reserved=True)
                done = {"part_ids": list(part_ids), "file_id": file.id}
                await connection.execute(_COMPLETE, {**key, **done})
                return await _get(connection, workspace_id, upload_id)
        except IntegrityError as error:
            raise Conflict("A file with this id exists already.") from error

    async def cancel(self, workspace_id: WorkspaceId, upload_id: str) -> Upload:
        key = {"workspace_id": workspace_id, "upload_id": upload_id}
        async with self._database.transaction() as connection:
            upload = await _get(connection, workspace_id, upload_id, lock=True)
            if upload.status == "cancelled":
                return upload
            _require_pending(upload)
            await connection.execute(_CANCEL, key)
            return await _get(connection, workspace_id, upload_id)

    async def objects(self, workspace_id: WorkspaceId, upload_id: str, limit: int) -> list[str]:
        if not storable(upload_id):
            return []
        upload = {"workspace_id": workspace_id, "upload_id": upload_id}
        async with self._database.transaction() as connection:
            return list(await connection.scalars(_OBJECTS, {**upload, "limit": limit}))

    async def left_over(self, limit: int) -> list[tuple[WorkspaceId, str]]:
        async with self._database.transaction() as connection:
            rows = await connection.execute(_LEFT_OVER, {"limit": limit})
            return [(row.workspace_id, row.id) for row in rows]

    async def forget(self, workspace_id: WorkspaceId, part_ids: Collection[str]) -> None:
        ids = list(filter(storable, part_ids))
        async with self._database.transaction() as connection:
            await connection.execute(_FORGET, {"workspace_id": workspace_id, "ids": ids})

    async def forget_uploads(self, limit: int, older_than_s: float) -> int:
        bounds = {"limit": limit, "older_than_s": older_than_s}
        async with self._database.transaction() as connection:
            return len((await connection.scalars(_FORGET_UPLOADS, bounds)).all())


# ── steps within a transaction ──────────────────────────────────────────────


async def _get(
    connection: AsyncConnection, workspace_id: WorkspaceId, upload_id: str, *, lock: bool = False
) -> Upload:
    """The upload with its file. Raises `NotFound`."""
    check_id("Upload", upload_id)
    key = {"workspace_id": workspace_id, "upload_id": upload_id}
    if (row := (await connection.execute(_LOCK if lock else _GET, key)).one_or_none()) is None:
        raise NotFound("Upload", upload_id)
    file = None
    if row.file_id is not None:
        found = await connection.execute(GET_FILE, {"workspace_id": workspace_id, "id": row.file_id})
        file = found.one_or_none()
    return Upload(
        id=row.id,
        workspace_id=row.workspace_id,
        filename=row.filename,
        purpose=row.purpose,
        bytes=row.bytes,
        created_at=int(row.created_at.timestamp()),
        expires_at=int(row.expires_at.timestamp()),
        file_expires_after_s=row.expires_after_s,
        status=row.status,
        part_ids=None if row.part_ids is None else tuple(row.part_ids),
        file=None if file is None else stored_file(file),
    )


def _require_pending(upload: Upload) -> None:
    if upload.status != "pending":
        raise UploadNotPending(upload.status)


def _part(row: Row[Any]) -> UploadPart:
    return UploadPart(
        id=row.id,
        workspace_id=row.workspace_id,
        upload_id=row.upload_id,
        bytes=row.bytes,
        created_at=int(row.created_at.timestamp()),
    )
