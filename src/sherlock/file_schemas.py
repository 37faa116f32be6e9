"""The OpenAI shapes of files."""

from typing import Annotated, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from sherlock.rag.domain.models import Purpose, StoredFile
from sherlock.schemas import ClosedModel, InDigits

# ── upload ──────────────────────────────────────────────────────────────────

FilePurpose = Literal["assistants", "batch", "fine-tune", "vision", "user_data", "evals"]
"""What a caller may upload for."""

SHORTEST_LIFE_S = 3600
LONGEST_LIFE_S = 2_592_000


class FileExpiration(ClosedModel):
    anchor: Literal["created_at"]
    seconds: Annotated[int, Field(strict=False, ge=SHORTEST_LIFE_S, le=LONGEST_LIFE_S), InDigits]
    """From upload to expiry; forms write it in digits."""


class UploadForm(ClosedModel):
    """The fields beside the file."""

    purpose: FilePurpose
    expires_after: FileExpiration | None = None


# ── objects ─────────────────────────────────────────────────────────────────


class FileObject(TypedDict):
    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    filename: str
    purpose: Purpose
    status: Literal["processed"]
    expires_at: NotRequired[int]


def file_object(file: StoredFile) -> FileObject:
    """`status` says that the file is stored; ingest has a status of its own, on the vector-store file."""
    shown: FileObject = {
        "id": file.id,
        "object": "file",
        "bytes": file.bytes,
        "created_at": file.created_at,
        "filename": file.filename,
        "purpose": file.purpose,
        "status": "processed",
    }
    if file.expires_at is not None:
        shown["expires_at"] = file.expires_at
    return shown


class DeletedFile(TypedDict):
    id: str
    object: Literal["file"]
    deleted: Literal[True]
