"""Vector stores, and the files in them."""

import asyncio
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sherlock.rag.application.queue_limit import QueueLimit
from sherlock.rag.document_text import document_text
from sherlock.rag.domain.errors import Conflict, NotFound, VectorStoreExpired
from sherlock.rag.domain.models import (
    Attributes,
    ChunkingStrategy,
    LastError,
    Metadata,
    Page,
    PageRequest,
    Status,
    VectorStore,
    VectorStoreChanges,
    VectorStoreFile,
    WorkspaceId,
)
from sherlock.rag.domain.ports import Catalog, ChunkIndex, Embedder

_FIRST_LOOK_S = 0.02
_LONGEST_PAUSE_S = 0.5


@dataclass(frozen=True, slots=True)
class VectorStores:
    catalog: Catalog
    index: ChunkIndex
    embedder: Embedder
    default_chunking: ChunkingStrategy
    queue_limit: QueueLimit | None = None
    """`None`: any number of files may wait."""

    async def create(
        self,
        workspace_id: WorkspaceId,
        *,
        name: str | None = None,
        description: str | None = None,
        metadata: Metadata | None = None,
        expires_after_days: int | None = None,
        file_ids: Sequence[str] = (),
        chunking: ChunkingStrategy | None = None,
    ) -> VectorStore:
        """A store pinned to the encoder in use; its files are queued.

        Raises `NotFound` for a file, `QueueFull`.
        """
        if file_ids and self.queue_limit:
            await self.queue_limit.check()
        now = int(time.time())
        store = VectorStore(
            id=f"vs_{secrets.token_hex(12)}",
            workspace_id=workspace_id,
            name=name or "",
            description=description,
            metadata=metadata,
            encoder=self.embedder.encoder,
            created_at=now,
            last_active_at=now,
            expires_after_days=expires_after_days,
        )
        return await self.catalog.add_vector_store(store, file_ids, chunking or self.default_chunking)

    async def get(self, workspace_id: WorkspaceId, vector_store_id: str) -> VectorStore:
        return await self.catalog.get_vector_store(workspace_id, vector_store_id)

    async def require(self, workspace_id: WorkspaceId, vector_store_id: str) -> VectorStore:
        """The store, which is in use, without its counts, for which every membership is read.

        Raises `NotFound`, `VectorStoreExpired`.
        """
        for store in await self.catalog.find_vector_stores(workspace_id, [vector_store_id]):
            if store.expired:
                raise VectorStoreExpired(vector_store_id)
            return store
        raise NotFound("VectorStore", vector_store_id)

    async def list(self, workspace_id: WorkspaceId, page: PageRequest) -> Page[VectorStore]:
        return await self.catalog.list_vector_stores(workspace_id, page)

    async def update(
        self, workspace_id: WorkspaceId, vector_store_id: str, changes: VectorStoreChanges
    ) -> VectorStore:
        return await self.catalog.update_vector_store(workspace_id, vector_store_id, changes)

    async def delete(self, workspace_id: WorkspaceId, vector_store_id: str) -> None:
        """The store and all that was ingested into it; the files stay."""
        await self.catalog.delete_vector_store(workspace_id, vector_store_id)

    async def attach(
        self,
        workspace_id: WorkspaceId,
        vector_store_id: str,
        file_id: str,
        *,
        attributes: Attributes | None = None,
        chunking: ChunkingStrategy | None = None,
    ) -> VectorStoreFile:
        """Queue the file's ingest. Raises as `Catalog.attach_file` and `require_room` do."""
        await self.require_room(workspace_id, vector_store_id)
        return await self.catalog.attach_file(
            workspace_id,
            vector_store_id,
            file_id,
            attributes=attributes,
            chunking=chunking or self.default_chunking,
            chunking_given=chunking is not None,
        )

    async def require_room(self, workspace_id: WorkspaceId, vector_store_id: str) -> None:
        """Whether files may be attached to the store now.

        Raises `NotFound`, `VectorStoreExpired`, `Conflict` (it is pinned to another encoder than the one in
        use), `QueueFull`.
        """
        store = await self.require(workspace_id, vector_store_id)
        encoder = self.embedder.encoder
        if store.encoder != encoder:
            raise Conflict(
                f"The vector store was made with the encoder {store.encoder.name}; this server runs "
                f"{encoder.name}, whose vectors do not compare. Make a new vector store."
            )
        if self.queue_limit:
            await self.queue_limit.check()

    async def wait(
        self, workspace_id: WorkspaceId, vector_store_id: str, file_id: str, timeout_s: float
    ) -> VectorStoreFile:
        """The attached file once its ingest has ended, or as it is after `timeout_s`.

        A file that was deleted or detached meanwhile is `failed`, though nothing of it is stored any more.
        """
        deadline = asyncio.get_running_loop().time() + timeout_s
        pause_s = _FIRST_LOOK_S
        seen = VectorStoreFile(
            file_id, vector_store_id, "", "in_progress", self.default_chunking, created_at=int(time.time())
        )
        while True:
            try:
                seen = await self.catalog.get_membership(workspace_id, vector_store_id, file_id)
            except NotFound:
                gone = await self._what_is_gone(workspace_id, vector_store_id, file_id)
                return replace(seen, status="failed", last_error=LastError("server_error", gone))
            left_s = deadline - asyncio.get_running_loop().time()
            if seen.status != "in_progress" or left_s <= 0:
                return seen
            await asyncio.sleep(min(pause_s, left_s))
            pause_s = min(pause_s * 1.5, _LONGEST_PAUSE_S)

    async def _what_is_gone(self, workspace_id: WorkspaceId, vector_store_id: str, file_id: str) -> str:
        try:
            await self.catalog.get_file(workspace_id, file_id)
        except NotFound:
            return "file deleted during ingestion"
        if await self.catalog.find_vector_stores(workspace_id, [vector_store_id]):
            return "file detached during ingestion"
        return "vector store deleted during ingestion"

    async def get_file(
        self, workspace_id: WorkspaceId, vector_store_id: str, file_id: str
    ) -> VectorStoreFile:
        return await self.catalog.get_membership(workspace_id, vector_store_id, file_id)

    async def list_files(
        self, workspace_id: WorkspaceId, vector_store_id: str, page: PageRequest, status: Status | None = None
    ) -> Page[VectorStoreFile]:
        return await self.catalog.list_memberships(workspace_id, vector_store_id, page, status)

    async def update_attributes(
        self, workspace_id: WorkspaceId, vector_store_id: str, file_id: str, attributes: Attributes | None
    ) -> VectorStoreFile:
        return await self.catalog.update_attributes(workspace_id, vector_store_id, file_id, attributes)

    async def detach(self, workspace_id: WorkspaceId, vector_store_id: str, file_id: str) -> None:
        """Take the file out of the store; the file stays."""
        await self.catalog.detach_file(workspace_id, vector_store_id, file_id)

    async def file_text(self, workspace_id: WorkspaceId, vector_store_id: str, file_id: str) -> str:
        """The text that was read from the file, rejoined from its chunks. Raises `NotFound`.

        Empty until the file is completed. What stands in a chunk stands here at the chunk's offsets.
        """
        await self.catalog.get_membership(workspace_id, vector_store_id, file_id)
        return document_text(await self.index.chunks(workspace_id, vector_store_id, file_id))
