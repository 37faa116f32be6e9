"""The OpenAI shapes of uploads in parts."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StringConstraints
from typing_extensions import TypedDict

from sherlock.file_schemas import FileExpiration, FileObject, FilePurpose, file_object
from sherlock.rag.domain.models import Purpose, Upload, UploadPart, UploadStatus
from sherlock.schemas import ClosedModel, Key, Value, without_nul

# ── requests ────────────────────────────────────────────────────────────────

MAX_PARTS = 10_000


class CreateUploadRequest(ClosedModel):
    filename: Annotated[str, StringConstraints(min_length=1, max_length=4096), AfterValidator(without_nul)]
    purpose: FilePurpose
    bytes: int = Field(ge=0)
    mime_type: Value
    """Ignored: a type is told by content and name."""
    expires_after: FileExpiration | None = None


class CompleteUploadRequest(ClosedModel):
    part_ids: list[Key] = Field(max_length=MAX_PARTS)
    md5: Annotated[str, StringConstraints(pattern="^[0-9a-fA-F]{32}$")] | None = None


# ── objects ─────────────────────────────────────────────────────────────────


class UploadObject(TypedDict):
    id: str
    object: Literal["upload"]
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: Purpose
    status: UploadStatus
    file: FileObject | None


def upload_object(upload: Upload) -> UploadObject:
    return {
        "id": upload.id,
        "object": "upload",
        "bytes": upload.bytes,
        "created_at": upload.created_at,
        "expires_at": upload.expires_at,
        "filename": upload.filename,
        "purpose": upload.purpose,
        "status": upload.status,
        "file": file_object(upload.file) if upload.file else None,
    }


class UploadPartObject(TypedDict):
    id: str
    object: Literal["upload.part"]
    created_at: int
    upload_id: str


def upload_part_object(part: UploadPart) -> UploadPartObject:
    return {
        "id": part.id,
        "object": "upload.part",
        "created_at": part.created_at,
        "upload_id": part.upload_id,
    }
