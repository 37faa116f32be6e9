"""`UploadRecords` in memory; passes the port's behaviour suite in `tests/ports/test_upload_records.py`."""

import time
from collections.abc import Collection, Sequence
from dataclasses import replace

from tests.fakes import LooseObject, MemoryState, check_text, has_expired

from sherlock.rag.domain.errors import Conflict, InvalidRequest, NotFound, UploadNotPending
from sherlock.rag.domain.models import StoredFile, Upload, UploadPart, WorkspaceId


class InMemoryUploadRecords:
    """`UploadRecords` over a `MemoryState`, which the catalog shares."""

    def __init__(self, state: MemoryState, *, max_parts: int = 10_000) -> None:
        self.state = state
        self.max_parts = max_parts

    async def add(self, upload: Upload) -> None:
        check_text(upload.filename, "filename")
        if (upload.workspace_id, upload.id) in self.state.uploads:
            raise Conflict("An upload with this id exists already.")
        self.state.uploads[upload.workspace_id, upload.id] = upload

    async def get(self, workspace_id: WorkspaceId, upload_id: str) -> Upload:
        return self._upload(workspace_id, upload_id)

    async def reserve(self, workspace_id: WorkspaceId, upload_id: str, part_id: str, for_s: float) -> int:
        upload = self._pending(workspace_id, upload_id)
        if len(self._parts(workspace_id, upload_id)) >= self.max_parts:
            raise InvalidRequest("The upload has too many parts.")
        self.state.loose_objects[workspace_id, part_id] = LooseObject(time.monotonic() + for_s)
        return upload.bytes

    async def add_part(
        self, workspace_id: WorkspaceId, upload_id: str, part_id: str, size: int
    ) -> UploadPart:
        self._pending(workspace_id, upload_id)
        self.state.end_reservation((workspace_id, part_id))
        part = UploadPart(part_id, workspace_id, upload_id, size, int(time.time()))
        self.state.parts[workspace_id, part_id] = part
        return part

    async def parts(
        self, workspace_id: WorkspaceId, upload_id: str, part_ids: Collection[str]
    ) -> dict[str, UploadPart]:
        return {part.id: part for part in self._parts(workspace_id, upload_id) if part.id in part_ids}

    async def complete(
        self, workspace_id: WorkspaceId, upload_id: str, part_ids: Sequence[str], file: StoredFile
    ) -> Upload:
        upload = self._pending(workspace_id, upload_id)
        if (workspace_id, file.id) in self.state.files:
            raise Conflict("A file with this id exists already.")
        self.state.end_reservation((workspace_id, file.id))
        self.state.files[workspace_id, file.id] = file
        done = replace(upload, status="completed", part_ids=tuple(part_ids), file=file)
        self.state.uploads[workspace_id, upload_id] = done
        return self._upload(workspace_id, upload_id)

    async def cancel(self, workspace_id: WorkspaceId, upload_id: str) -> Upload:
        if self._upload(workspace_id, upload_id).status != "cancelled":
            cancelled = replace(self._pending(workspace_id, upload_id), status="cancelled")
            self.state.uploads[workspace_id, upload_id] = cancelled
        return self._upload(workspace_id, upload_id)

    async def objects(self, workspace_id: WorkspaceId, upload_id: str, limit: int) -> list[str]:
        return [part.id for part in self._parts(workspace_id, upload_id)][:limit]

    async def left_over(self, limit: int) -> list[tuple[WorkspaceId, str]]:
        return [
            key
            for key, part in self.state.parts.items()
            if self._upload(part.workspace_id, part.upload_id).status != "pending"
        ][:limit]

    async def forget(self, workspace_id: WorkspaceId, part_ids: Collection[str]) -> None:
        for part_id in part_ids:
            self.state.parts.pop((workspace_id, part_id), None)

    async def forget_uploads(self, limit: int, older_than_s: float) -> int:
        old = [
            key
            for key, upload in self.state.uploads.items()
            if upload.expires_at <= time.time() - older_than_s and not self._parts(*key)
        ][:limit]
        for key in old:
            del self.state.uploads[key]
        return len(old)

    def _parts(self, workspace_id: WorkspaceId, upload_id: str) -> list[UploadPart]:
        return [
            part
            for part in self.state.parts.values()
            if (part.workspace_id, part.upload_id) == (workspace_id, upload_id)
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
