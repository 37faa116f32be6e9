"""The OpenAI shapes of vector stores and of the files in them."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, NotRequired, Self

from pydantic import Discriminator, Field, model_validator
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict

from sherlock.rag.domain.models import (
    UNSET,
    AttributeValue,
    ChunkingStrategy,
    FileCounts,
    Metadata,
    ReadingNotes,
    Status,
    StoreStatus,
    VectorStore,
    VectorStoreChanges,
    VectorStoreFile,
)
from sherlock.schemas import ClosedModel, Key, MetadataInput, Number, Text, TextObject, Value

# ── requests ────────────────────────────────────────────────────────────────

AttributesInput = Annotated[dict[Key, Value | bool | Number], Field(max_length=16)]


class StaticChunking(ClosedModel):
    max_chunk_size_tokens: int = Field(ge=100, le=4096)
    chunk_overlap_tokens: int = Field(ge=0)

    @model_validator(mode="after")
    def _overlap_is_at_most_half(self) -> Self:
        if self.chunk_overlap_tokens > self.max_chunk_size_tokens // 2:
            raise PydanticCustomError(
                "overlap_too_large", "chunk_overlap_tokens may be at most half of max_chunk_size_tokens"
            )
        return self


class AutoChunkingStrategy(ClosedModel):
    type: Literal["auto"]


class StaticChunkingStrategy(ClosedModel):
    type: Literal["static"]
    static: StaticChunking


ChunkingStrategyInput = Annotated[AutoChunkingStrategy | StaticChunkingStrategy, Discriminator("type")]


def chunking_strategy(given: AutoChunkingStrategy | StaticChunkingStrategy | None) -> ChunkingStrategy | None:
    """`None`: the server's own sizes."""
    if not isinstance(given, StaticChunkingStrategy):
        return None
    return ChunkingStrategy(given.static.max_chunk_size_tokens, given.static.chunk_overlap_tokens)


class StoreExpiration(ClosedModel):
    anchor: Literal["last_active_at"]
    days: int = Field(ge=1, le=365)


class CreateVectorStoreRequest(ClosedModel):
    name: Value = ""
    description: Value | None = None
    file_ids: list[Text] = Field([], max_length=500)
    expires_after: StoreExpiration | None = None
    chunking_strategy: ChunkingStrategyInput | None = None
    metadata: MetadataInput | None = None


class UpdateVectorStoreRequest(ClosedModel):
    null_clears: ClassVar[bool] = True

    name: Value | None = None
    expires_after: StoreExpiration | None = None
    metadata: MetadataInput | None = None

    def to_changes(self) -> VectorStoreChanges:
        given = self.model_fields_set
        days = self.expires_after.days if self.expires_after else None
        return VectorStoreChanges(
            name=self.name if "name" in given else UNSET,
            metadata=self.metadata if "metadata" in given else UNSET,
            expires_after_days=days if "expires_after" in given else UNSET,
        )


class AttachFileRequest(ClosedModel):
    file_id: Text
    attributes: AttributesInput | None = None
    chunking_strategy: ChunkingStrategyInput | None = None


class UpdateAttributesRequest(ClosedModel):
    null_clears: ClassVar[bool] = True

    attributes: AttributesInput | None


# ── objects ─────────────────────────────────────────────────────────────────


class FileCountsObject(TypedDict):
    in_progress: int
    completed: int
    failed: int
    cancelled: int
    total: int


def file_counts_object(counts: FileCounts) -> FileCountsObject:
    return {
        "in_progress": counts.in_progress,
        "completed": counts.completed,
        "failed": counts.failed,
        "cancelled": counts.cancelled,
        "total": counts.total,
    }


class StoreExpirationObject(TypedDict):
    anchor: Literal["last_active_at"]
    days: int


class VectorStoreObject(TypedDict):
    id: str
    object: Literal["vector_store"]
    created_at: int
    name: str
    description: str | None
    usage_bytes: int
    file_counts: FileCountsObject
    status: StoreStatus
    expires_after: NotRequired[StoreExpirationObject]
    expires_at: int | None
    last_active_at: int
    metadata: Metadata


def vector_store_object(store: VectorStore) -> VectorStoreObject:
    shown: VectorStoreObject = {
        "id": store.id,
        "object": "vector_store",
        "created_at": store.created_at,
        "name": store.name,
        "description": store.description,
        "usage_bytes": store.usage_bytes,
        "file_counts": file_counts_object(store.file_counts),
        "status": store.status,
        "expires_at": store.expires_at,
        "last_active_at": store.last_active_at,
        "metadata": store.metadata or {},
    }
    if store.expires_after_days is not None:
        shown["expires_after"] = {"anchor": "last_active_at", "days": store.expires_after_days}
    return shown


class LastErrorObject(TypedDict):
    code: Literal["server_error", "unsupported_file", "invalid_file"]
    message: str


class StaticChunkingObject(TypedDict):
    max_chunk_size_tokens: int
    chunk_overlap_tokens: int


class ChunkingStrategyObject(TypedDict):
    type: Literal["static"]
    static: StaticChunkingObject


class ReadingNotesObject(TypedDict):
    """How a completed file was read: members that do not apply to its format are left out."""

    encoding: NotRequired[str]
    page_count: NotRequired[int]
    skipped_pages: NotRequired[str]
    ocr_pages: NotRequired[str]


def reading_notes_object(notes: ReadingNotes) -> ReadingNotesObject:
    shown: ReadingNotesObject = {}
    if notes.encoding:
        shown["encoding"] = notes.encoding
    if notes.page_count:
        shown["page_count"] = notes.page_count
    if notes.skipped_pages:
        shown["skipped_pages"] = notes.skipped_pages
    if notes.ocr_pages:
        shown["ocr_pages"] = notes.ocr_pages
    return shown


class VectorStoreFileObject(TypedDict):
    id: str
    object: Literal["vector_store.file"]
    usage_bytes: int
    created_at: int
    vector_store_id: str
    status: Status
    last_error: LastErrorObject | None
    chunking_strategy: ChunkingStrategyObject
    attributes: Mapping[str, AttributeValue]
    sherlock: NotRequired[ReadingNotesObject]


def vector_store_file_object(file: VectorStoreFile) -> VectorStoreFileObject:
    error = file.last_error
    shown: VectorStoreFileObject = {
        "id": file.file_id,
        "object": "vector_store.file",
        "usage_bytes": file.usage_bytes,
        "created_at": file.created_at,
        "vector_store_id": file.vector_store_id,
        "status": file.status,
        "last_error": {"code": error.code, "message": error.message} if error else None,
        "chunking_strategy": {
            "type": "static",
            "static": {
                "max_chunk_size_tokens": file.chunking.max_chunk_size_tokens,
                "chunk_overlap_tokens": file.chunking.chunk_overlap_tokens,
            },
        },
        "attributes": file.attributes or {},
    }
    if file.notes and (notes := reading_notes_object(file.notes)):
        shown["sherlock"] = notes
    return shown


class FileContentPage(TypedDict):
    object: Literal["vector_store.file_content.page"]
    data: list[TextObject]
    has_more: Literal[False]
    next_page: None


def file_content_page(text: str) -> FileContentPage:
    """All of it in one page: clients never ask for a second."""
    return {
        "object": "vector_store.file_content.page",
        "data": [{"type": "text", "text": text}] if text else [],
        "has_more": False,
        "next_page": None,
    }


class DeletedVectorStore(TypedDict):
    id: str
    object: Literal["vector_store.deleted"]
    deleted: Literal[True]


class DeletedVectorStoreFile(TypedDict):
    id: str
    object: Literal["vector_store.file.deleted"]
    deleted: Literal[True]
