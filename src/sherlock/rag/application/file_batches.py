"""Many files attached to a vector store at once, watched and cancelled together."""

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass

from sherlock.rag.application.vector_stores import VectorStores
from sherlock.rag.domain.errors import Conflict
from sherlock.rag.domain.models import (
    Attachment,
    Attributes,
    ChunkingStrategy,
    FileBatch,
    Page,
    PageRequest,
    Status,
    VectorStoreFile,
    WorkspaceId,
)
from sherlock.rag.domain.ports import FileBatchCatalog


@dataclass(frozen=True, slots=True)
class BatchFile:
    """A file as the caller names it; `chunking` is `None` for the server's own sizes."""

    file_id: str
    attributes: Attributes | None = None
    chunking: ChunkingStrategy | None = None


@dataclass(frozen=True, slots=True)
class FileBatches:
    batches: FileBatchCatalog
    vector_stores: VectorStores

    async def create(
        self, workspace_id: WorkspaceId, vector_store_id: str, files: Sequence[BatchFile]
    ) -> FileBatch:
        """Queue the ingest of all files, or of none. Raises what `VectorStores.attach` raises.

        A file that is named twice is attached once: later attributes replace earlier ones, and another
        chunking strategy is a `Conflict`, as if the files were attached one by one.
        """
        await self.vector_stores.require_room(workspace_id, vector_store_id)
        wanted: dict[str, BatchFile] = {}
        for file in files:
            wanted[file.file_id] = merged(wanted.get(file.file_id), file)
        default = self.vector_stores.default_chunking
        attachments = [
            Attachment(file.file_id, file.chunking or default, file.chunking is not None, file.attributes)
            for file in wanted.values()
        ]
        batch = FileBatch(
            f"vsfb_{secrets.token_hex(12)}", workspace_id, vector_store_id, created_at=int(time.time())
        )
        return await self.batches.add(batch, attachments)

    async def get(self, workspace_id: WorkspaceId, vector_store_id: str, batch_id: str) -> FileBatch:
        return await self.batches.get(workspace_id, vector_store_id, batch_id)

    async def cancel(self, workspace_id: WorkspaceId, vector_store_id: str, batch_id: str) -> FileBatch:
        """End the ingest of every file that is still in progress."""
        return await self.batches.cancel(workspace_id, vector_store_id, batch_id)

    async def list_files(
        self,
        workspace_id: WorkspaceId,
        vector_store_id: str,
        batch_id: str,
        page: PageRequest,
        status: Status | None = None,
    ) -> Page[VectorStoreFile]:
        return await self.batches.list_files(workspace_id, vector_store_id, batch_id, page, status)


def merged(before: BatchFile | None, again: BatchFile) -> BatchFile:
    """One file out of two mentions."""
    if before is None:
        return again
    if before.chunking and again.chunking and before.chunking != again.chunking:
        raise Conflict("The file is named twice with different chunking strategies.", param="files")
    return BatchFile(
        again.file_id,
        before.attributes if again.attributes is None else again.attributes,
        before.chunking or again.chunking,
    )
