"""Uploads in parts: a file that is sent in pieces, in parallel, and put together when all are there."""

import asyncio
import hashlib
import logging
import secrets
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from sherlock.rag.application.files import Files, UploadDetails, clean_filename, count_upload, new_file_id
from sherlock.rag.domain.errors import (
    FileStoreUnavailable,
    FileTooLarge,
    InvalidRequest,
    NotFound,
    Unavailable,
    UploadNotPending,
    abridged,
)
from sherlock.rag.domain.models import Purpose, Upload, UploadPart, WorkspaceId, blob_key
from sherlock.rag.domain.ports import FileStore, UploadRecords

log = logging.getLogger(__name__)

UPLOAD_LIFE_S = 3600
"""How long parts may come."""
MAX_PART_BYTES = 64 * 1024 * 1024

REMEMBERED_S = 7 * 86_400.0
"""How long an ended upload can be asked about, say by a client that lost the answer."""

_REMOVED_AT_ONCE = 100
"""Parts that are removed while the client waits; more are left to `remove_left_over`."""


@dataclass(frozen=True, slots=True)
class Uploads:
    records: UploadRecords
    files: Files
    store: FileStore

    async def create(
        self,
        workspace_id: WorkspaceId,
        *,
        filename: str,
        purpose: Purpose,
        size: int,
        expires_after_s: int | None = None,
    ) -> Upload:
        """An upload that takes parts for an hour. Raises `FileTooLarge` for a `size` no file may have."""
        if size > self.files.max_file_bytes:
            raise FileTooLarge(self.files.max_file_bytes, param="bytes")
        now = int(time.time())
        upload = Upload(
            id=f"upload_{secrets.token_hex(12)}",
            workspace_id=workspace_id,
            filename=clean_filename(filename),
            purpose=purpose,
            bytes=size,
            created_at=now,
            expires_at=now + UPLOAD_LIFE_S,
            file_expires_after_s=expires_after_s,
        )
        await self.records.add(upload)
        return upload

    async def add_part(
        self, workspace_id: WorkspaceId, upload_id: str, data: AsyncIterator[bytes]
    ) -> UploadPart:
        """Store a part as it comes; leaves nothing on failure.

        Raises `NotFound`, `UploadNotPending`, `FileTooLarge` while reading, and whatever `data` raises.
        """
        part_id = f"part_{secrets.token_hex(12)}"
        size = 0

        async def counted() -> AsyncIterator[bytes]:
            nonlocal size
            async for piece in data:
                size += len(piece)
                if size > most:
                    raise FileTooLarge(most, param="data")
                yield piece

        objects = self.files.objects
        declared = await self.records.reserve(workspace_id, upload_id, part_id, objects.held_s)
        # A larger part could never be used, but would fill the store until the upload ends.
        most = min(MAX_PART_BYTES, declared)
        # When only an answer is lost, a part without bytes, of which nobody has heard, stays until the end.
        async with objects.held(workspace_id, part_id):
            await self.store.put(blob_key(workspace_id, part_id), counted())
            return await self.records.add_part(workspace_id, upload_id, part_id, size)

    async def complete(
        self, workspace_id: WorkspaceId, upload_id: str, part_ids: Sequence[str], md5: str | None = None
    ) -> Upload:
        """Put the parts together, in this order, to the upload's file.

        Completing again with the same parts returns the same file. Raises `InvalidRequest` for parts that are
        unknown, named twice, do not add up to the declared size or do not have the `md5` (hexadecimal), and
        `UnsupportedFileType`: the upload stays pending and can be completed otherwise. Raises `NotFound`,
        `UploadNotPending`.
        """
        upload = await self.records.get(workspace_id, upload_id)
        if _was_completed_with(upload, part_ids):
            return upload
        if upload.status != "pending":
            raise UploadNotPending(upload.status)
        parts = await self._parts(upload, part_ids)
        # Each attempt writes a file of its own: of two at once the first to be recorded counts, and one that
        # is killed is in nobody's way.
        file_id = new_file_id()
        try:
            async with self.files.objects.reserved(workspace_id, file_id):
                completed = await self._put_together(upload, parts, file_id, md5)
        except UploadNotPending:
            upload = await self.records.get(workspace_id, upload_id)
            if _was_completed_with(upload, part_ids):
                return upload
            raise
        await self._remove_parts(workspace_id, upload_id)
        return completed

    async def cancel(self, workspace_id: WorkspaceId, upload_id: str) -> Upload:
        """Nothing more is taken, and what came is removed. Raises `NotFound`, `UploadNotPending`."""
        upload = await self.records.cancel(workspace_id, upload_id)
        await self._remove_parts(workspace_id, upload_id)
        return upload

    async def remove_left_over(self, limit: int) -> int:
        """Remove up to `limit` parts that ended uploads left in the file store; return how many."""
        found = await self.records.left_over(limit)
        for workspace_id, part_id in found:
            await self._remove(workspace_id, [part_id])
        return len(found)

    async def forget_ended(self, limit: int) -> int:
        """Forget up to `limit` uploads that ended long ago; return how many. Their files stay."""
        return await self.records.forget_uploads(limit, REMEMBERED_S)

    async def _parts(self, upload: Upload, part_ids: Sequence[str]) -> list[UploadPart]:
        """The parts asked for, in order. Raises `InvalidRequest`."""
        for part_id, times in Counter(part_ids).items():
            if times > 1:
                raise InvalidRequest(f"The part '{abridged(part_id)}' is named twice.", param="part_ids")
        known = await self.records.parts(upload.workspace_id, upload.id, part_ids)
        for part_id in part_ids:
            if part_id not in known:
                raise InvalidRequest(f"The upload has no part '{abridged(part_id)}'.", param="part_ids")
        parts = [known[part_id] for part_id in part_ids]
        size = sum(part.bytes for part in parts)
        if size != upload.bytes:
            raise InvalidRequest(
                f"The parts have {size} bytes in all, but {upload.bytes} were declared.", param="part_ids"
            )
        return parts

    async def _put_together(
        self, upload: Upload, parts: Sequence[UploadPart], file_id: str, md5: str | None
    ) -> Upload:
        digest = hashlib.md5(usedforsecurity=False)

        async def joined() -> AsyncGenerator[bytes, None]:
            for part in parts:
                left = part.bytes
                async for piece in self.store.read(blob_key(upload.workspace_id, part.id)):
                    left -= len(piece)
                    if md5 is not None:
                        digest.update(piece)
                    yield piece
                if left:
                    raise FileStoreUnavailable("The file store returned a part of the upload's bytes.")

        async def details() -> UploadDetails:
            if md5 is not None and digest.hexdigest() != md5.lower():
                raise InvalidRequest("The bytes that were received have another MD5.", param="md5")
            return UploadDetails(upload.purpose, upload.file_expires_after_s)

        try:
            async with aclosing(joined()) as data:
                file = await self.files.put(upload.workspace_id, file_id, upload.filename, data, details)
        except NotFound:
            # Somebody else completed the upload and is removing its parts; if not, they are lost.
            ended = await self.records.get(upload.workspace_id, upload.id)
            if ended.status != "pending":
                raise UploadNotPending(ended.status) from None
            raise InvalidRequest("A part is no longer stored; send it again.", param="part_ids") from None
        ids = [part.id for part in parts]
        completed = await self.records.complete(upload.workspace_id, upload.id, ids, file)
        count_upload(file)
        return completed

    async def _remove_parts(self, workspace_id: WorkspaceId, upload_id: str) -> None:
        """What cannot be removed now is left over, and on record. Ends even when the caller is cancelled."""

        async def remove() -> None:
            try:
                part_ids = await self.records.objects(workspace_id, upload_id, _REMOVED_AT_ONCE)
                await self._remove(workspace_id, part_ids)
            except Unavailable:
                log.warning("the parts of an ended upload are left for later")

        await asyncio.shield(asyncio.ensure_future(remove()))

    async def _remove(self, workspace_id: WorkspaceId, part_ids: Sequence[str]) -> None:
        """The bytes first: as long as there are any, their record stands."""
        for part_id in part_ids:
            await self.store.delete(blob_key(workspace_id, part_id))
        await self.records.forget(workspace_id, part_ids)


def _was_completed_with(upload: Upload, part_ids: Sequence[str]) -> bool:
    return upload.status == "completed" and upload.part_ids == tuple(part_ids)
