"""`UploadRecords` in memory; passes the port's behaviour suite in `tests/ports/test_upload_records.py`."""

import time
from collections.abc import Collection, Sequence
from dataclasses import replace

from tests.fakes import MemoryObject, MemoryState, check_text, has_expired

from sherlock.rag.domain.errors import Conflict, InvalidRequest, NotFound, UploadNotPending
from sherlock.rag.domain.models import StoredFile, Upload, UploadPart, WorkspaceId


class InMemoryUploadRecords:
    """`UploadRecords` over a `MemoryState`, which the catalog shares."""

    def __init__(self, state: MemoryState, *, max_objects: int = 10_000) -> None:
        self.state = state
        self.max_objects = max_objects

    async def add(self, upload: Upload) -> None:
        check_text(upload.filename, "filename")
        if (upload.workspace_id, upload.id) in self.state.uploads:
            raise Conflict("An upload with this id exists already.")
        self.state.uploads[upload.workspace_id, upload.id] = upload

    async def get(self, workspace_id: WorkspaceId, upload_id: str) -> Upload:
        return self._upload(workspace_id, upload_id)

    async def reserve(self, workspace_id: WorkspaceId, upload_id: str, object_id: str) -> int:
        upload = self._pending(workspace_id, upload_id)
        if len(self._objects(workspace_id, upload_id)) >= self.max_objects:
            raise InvalidRequest("The upload has too many parts.")
        self.state.upload_objects[workspace_id, object_id] = MemoryObject(
            workspace_id, upload_id, object_id, reserved_at=time.time()
        )
        return upload.bytes

    async def add_part(
        self, workspace_id: WorkspaceId, upload_id: str, part_id: str, size: int
    ) -> UploadPart:
        self._pending(workspace_id, upload_id)
        reserved = self.state.upload_objects.get((workspace_id, part_id))
        if reserved is None or reserved.upload_id != upload_id:
            raise NotFound("UploadPart", part_id)
        reserved.bytes = size
        return part_of(reserved)

    async def parts(
        self, workspace_id: WorkspaceId, upload_id: str, part_ids: Collection[str]
    ) -> dict[str, UploadPart]:
        return {
            known.id: part_of(known)
            for known in self._objects(workspace_id, upload_id)
            if known.id in part_ids and known.bytes is not None
        }

    async def complete(
        self, workspace_id: WorkspaceId, upload_id: str, part_ids: Sequence[str], file: StoredFile
    ) -> Upload:
        upload = self._pending(workspace_id, upload_id)
        if (workspace_id, file.id) in self.state.files:
            raise Conflict("A file with this id exists already.")
        self.state.files[workspace_id, file.id] = file
        self.state.upload_objects.pop((workspace_id, file.id), None)
        done = replace(upload, status="completed", part_ids=tuple(part_ids), file=file)
        self.state.uploads[workspace_id, upload_id] = done
        return self._upload(workspace_id, upload_id)

    async def cancel(self, workspace_id: WorkspaceId, upload_id: str) -> Upload:
        if self._upload(workspace_id, upload_id).status != "cancelled":
            cancelled = replace(self._pending(workspace_id, upload_id), status="cancelled")
            self.state.uploads[workspace_id, upload_id] = cancelled
        return self._upload(workspace_id, upload_id)

    async def objects(self, workspace_id: WorkspaceId, upload_id: str, limit: int) -> list[str]:
        return [o.id for o in self._objects(workspace_id, upload_id) if o.bytes is not None][:limit]

    async def left_over(self, limit: int, abandoned_after_s: float) -> list[tuple[WorkspaceId, str]]:
        abandoned = time.time() - abandoned_after_s
        return [
            (o.workspace_id, o.id)
            for o in self.state.upload_objects.values()
            if self._upload(o.workspace_id, o.upload_id).status != "pending"
            and (o.bytes is not None or o.reserved_at <= abandoned)
        ][:limit]

    async def forget(self, workspace_id: WorkspaceId, object_ids: Collection[str]) -> None:
        for object_id in object_ids:
            self.state.upload_objects.pop((workspace_id, object_id), None)

    async def forget_uploads(self, limit: int, older_than_s: float) -> int:
        old = [
            key
            for key, upload in self.state.uploads.items()
            if upload.expires_at <= time.time() - older_than_s and not self._objects(*key)
        ][:limit]
        for key in old:
            del self.state.uploads[key]
        return len(old)

    def _objects(self, workspace_id: WorkspaceId, upload_id: str) -> list[MemoryObject]:
        return [
            known
            for known in self.state.upload_objects.values()
            if (known.workspace_id, known.upload_id) == (workspace_id, upload_id)
        ]

    def _upload(self, workspace_id: WorkspaceId, upload_id: str) -> Upload:
        if (workspace_id, upload_id) not in self.state.uploads:
            raise NotFound("Upload", upload_id)
        upload = self.state.uploads[workspace_id, upload_id]
        if upload.status == "pending" and upload.expires_at <= time.time():
            return replace(upload, status="expired")
        if upload.file is not None:
            file = self.state.files.get((workspace_id, upload.file.id))
            return replace(upload, file=None if file is None or has_expired(file) else file)
        return upload

    def _pending(self, workspace_id: WorkspaceId, upload_id: str) -> Upload:
        upload = self._upload(workspace_id, upload_id)
        if upload.status != "pending":
            raise UploadNotPending(upload.status)
        return upload


def part_of(known: MemoryObject) -> UploadPart:
    assert known.bytes is not None
    return UploadPart(
        id=known.id,
        workspace_id=known.workspace_id,
        upload_id=known.upload_id,
        bytes=known.bytes,
        created_at=int(known.reserved_at),
    )
