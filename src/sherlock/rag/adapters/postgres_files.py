"""The rows of `knowledge_files`, for the adapters that write and read them."""

from typing import Any

from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection

from sherlock.rag.domain.errors import ReservationLost
from sherlock.rag.domain.models import StoredFile

FILE_COLUMNS = "id, workspace_id, filename, purpose, bytes, sha256, created_at, expires_at"

# A workspace comes into being with its first file or store. A reservation of the object ends here; where one
# is needed and somebody is removing the bytes, nothing is added.
_ADD_FILE = text("""
    with workspace as (
        insert into workspaces (id) values (:workspace_id) on conflict do nothing
    ), reservation as (
        delete from loose_objects where workspace_id = :workspace_id and id = :id and not going returning id
    )
    insert into knowledge_files (workspace_id, id, filename, purpose, bytes, sha256, created_at, expires_at)
    select :workspace_id, :id, :filename, :purpose, CAST(:bytes AS bigint), :sha256,
           to_timestamp(:created_at), to_timestamp(CAST(:expires_at AS float8))
    where not :reserved or exists (select from reservation)
    returning id
""")

# Nobody sees a file whose time has passed, though its row may stand for some seconds more.
UNEXPIRED = "(f.expires_at is null or f.expires_at > now())"

FILES = f"""
    select {FILE_COLUMNS} from knowledge_files f
    where workspace_id = :workspace_id and {UNEXPIRED}
"""
GET_FILE = text(f"{FILES} and id = :id")


async def insert_file(connection: AsyncConnection, file: StoredFile, *, reserved: bool) -> None:
    """Raises `ReservationLost`, and SQLAlchemy's `IntegrityError` when the id is taken."""
    values = {
        "reserved": reserved,
        "workspace_id": file.workspace_id,
        "id": file.id,
        "filename": file.filename,
        "purpose": file.purpose,
        "bytes": file.bytes,
        "sha256": file.sha256,
        "created_at": file.created_at,
        "expires_at": file.expires_at,
    }
    if await connection.scalar(_ADD_FILE, values) is None:
        raise ReservationLost


def stored_file(row: Row[Any]) -> StoredFile:
    """The file of a row with `FILE_COLUMNS`."""
    return StoredFile(
        id=row.id,
        workspace_id=row.workspace_id,
        filename=row.filename,
        purpose=row.purpose,
        bytes=row.bytes,
        sha256=row.sha256,
        created_at=int(row.created_at.timestamp()),
        expires_at=int(row.expires_at.timestamp()) if row.expires_at else None,
    )
