"""The OpenAI shapes of file batches."""

from typing import Literal

from pydantic import Field
from typing_extensions import TypedDict

from sherlock.rag.domain.errors import InvalidRequest
from sherlock.rag.domain.models import FileBatch, Status
from sherlock.schemas import ClosedModel, Text
from sherlock.vector_store_schemas import (
    AttachFileRequest,
    AttributesInput,
    ChunkingStrategyInput,
    FileCountsObject,
    file_counts_object,
)

MAX_FILES = 2000


class CreateFileBatchRequest(ClosedModel):
    """`file_ids`, which share `attributes` and `chunking_strategy`, or `files`, each with its own."""

    file_ids: list[Text] | None = Field(None, min_length=1, max_length=MAX_FILES)
    files: list[AttachFileRequest] | None = Field(None, min_length=1, max_length=MAX_FILES)
    attributes: AttributesInput | None = None
    chunking_strategy: ChunkingStrategyInput | None = None

    def each(self) -> list[AttachFileRequest]:
        """One request a file, as if they were attached one by one. Raises `InvalidRequest`."""
        if self.files is not None:
            if self.file_ids is not None:
                raise InvalidRequest(
                    "Give either 'file_ids' or 'files', not both.", param="files", code="invalid_value"
                )
            return self.files
        if self.file_ids is None:
            raise InvalidRequest(
                "Missing required parameter: 'file_ids'.",
                param="file_ids",
                code="missing_required_parameter",
            )
        return [
            AttachFileRequest(
                file_id=file_id, attributes=self.attributes, chunking_strategy=self.chunking_strategy
            )
            for file_id in self.file_ids
        ]


class FileBatchObject(TypedDict):
    id: str
    object: Literal["vector_store.file_batch"]
    created_at: int
    vector_store_id: str
    status: Status
    file_counts: FileCountsObject


def file_batch_object(batch: FileBatch) -> FileBatchObject:
    return {
        "id": batch.id,
        "object": "vector_store.file_batch",
        "created_at": batch.created_at,
        "vector_store_id": batch.vector_store_id,
        "status": batch.status,
        "file_counts": file_counts_object(batch.file_counts),
    }
