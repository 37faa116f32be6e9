"""The rows of `knowledge_files`, for the adapters that write and read them."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Row, text

from sherlock.rag.domain.models import StoredFile

FILE_COLUMNS = "id, workspace_id, filename, purpose, bytes, sha256, created_at, expires_at"

# A workspace comes into being with its first file or store.
ADD_FILE = text("""
    with workspace as (insert into workspaces (id) values (:workspace_id) on conflict do nothing)
    insert into knowledge_files (workspace_id, id, filename, purpose, bytes, sha256, created_at, expires_at)
    values (:workspace_id, :id, :filename, :purpose, :bytes, :sha256,
            to_timestamp(:created_at), to_timestamp(CAST(:expires_at AS float8)))
""")

# All that there are; nobody sees one whose time has passed, though its row may stand for some seconds more.
FILES = f"""
    select {FILE_COLUMNS} from knowledge_files
    where workspace_id = :workspace_id and (expires_at is null or expires_at > now())
"""
GET_FILE = text(f"{FILES} and id = :id")


def file_values(file: StoredFile) -> Mapping[str, Any]:
    """The parameters of `ADD_FILE`."""
    return {
        "workspace_id": file.workspace_id,
        "id": file.id,
        "filename": file.filename,
        "purpose": file.purpose,
        "bytes": file.bytes,
        "sha256": file.sha256,
        "created_at": file.created_at,
        "expires_at": file.expires_at,
    }


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
