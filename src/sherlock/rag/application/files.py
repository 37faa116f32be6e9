"""Files: what users upload, before and beside any vector store."""

import asyncio
import hashlib
import logging
import re
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby, islice

from sherlock.rag import instruments, parsers
from sherlock.rag.application.objects import Objects
from sherlock.rag.domain.errors import FileTooLarge, NotFound, Unavailable, UnsupportedFileType
from sherlock.rag.domain.models import Page, PageRequest, Purpose, StoredFile, WorkspaceId, blob_key
from sherlock.rag.domain.ports import Catalog, FileStore

log = logging.getLogger(__name__)

MUST_BE_READABLE: frozenset[Purpose] = frozenset({"assistants", "user_data"})
"""Purposes whose files are meant to be ingested; others may be anything."""

BATCH_LIFE_S = 30 * 86_400
"""Batch files are kept for 30 days where nothing else is asked, other files for good."""

_HEAD_BYTES = 4096
_SWEEP_PAGE = 1_000
_KEY = re.compile("[^/]+/(?:file-|part_)[0-9a-f]{24}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class UploadDetails:
    """What an upload says of itself beside its bytes."""

    purpose: Purpose
    expires_after_s: int | None = None
    """Seconds from the upload on; `None`: what is usual for the purpose."""

    def expires_at(self, now: int) -> int | None:
        life_s = self.expires_after_s
        if life_s is None and self.purpose == "batch":
            life_s = BATCH_LIFE_S
        return None if life_s is None else now + life_s


@dataclass(frozen=True, slots=True)
class Files:
    catalog: Catalog
    store: FileStore
    objects: Objects
    max_file_bytes: int

    async def upload(
        self,
        workspace_id: WorkspaceId,
        filename: str,
        data: AsyncIterator[bytes],
        details: Callable[[], Awaitable[UploadDetails]],
    ) -> StoredFile:
        """Store the bytes, then the record, so that no record points at nothing; leaves neither on failure.

        `details` is asked when `data` is exhausted: a client may send them after the file. Raises
        `FileTooLarge` while reading, `UnsupportedFileType`, and whatever `data` and `details` raise.
        """
        file_id = new_file_id()
        async with self.objects.reserved(workspace_id, file_id):
            file = await self.put(workspace_id, file_id, filename, data, details)
            try:
                await self.catalog.add_file(file, reserved=True)
            except BaseException:
                # It may be on record and only the answer was lost; nobody has heard of it.
                await asyncio.shield(asyncio.ensure_future(self._take_back(file)))
                raise
        count_upload(file)
        return file

    async def put(
        self,
        workspace_id: WorkspaceId,
        file_id: str,
        filename: str,
        data: AsyncIterator[bytes],
        details: Callable[[], Awaitable[UploadDetails]],
    ) -> StoredFile:
        """Store the bytes and return the record to be made of them, as `upload` does; raises as it does.

        The object is reserved, and on failure the caller's to remove.
        """
        name = clean_filename(filename)
        stream = _Measured(data, self.max_file_bytes)
        await self.store.put(blob_key(workspace_id, file_id), stream.pieces())
        given = await details()
        if given.purpose in MUST_BE_READABLE and not parsers.is_supported(name, stream.head):
            raise UnsupportedFileType(name)
        now = int(time.time())
        return StoredFile(
            id=file_id,
            workspace_id=workspace_id,
            filename=name,
            purpose=given.purpose,
            bytes=stream.size,
            sha256=stream.digest.hexdigest(),
            created_at=now,
            expires_at=given.expires_at(now),
        )

    async def get(self, workspace_id: WorkspaceId, file_id: str) -> StoredFile:
        return await self.catalog.get_file(workspace_id, file_id)

    async def list(
        self, workspace_id: WorkspaceId, page: PageRequest, purpose: Purpose | None = None
    ) -> Page[StoredFile]:
        return await self.catalog.list_files(workspace_id, page, purpose)

    async def delete(self, workspace_id: WorkspaceId, file_id: str) -> StoredFile:
        """Remove the record, with all that was ingested from the file, then the bytes.

        The file is gone with its record; bytes that cannot be removed now are left to housekeeping.
        """
        file = await self.catalog.delete_file(workspace_id, file_id)
        try:
            await self.objects.remove(workspace_id, file_id)
        except Unavailable:
            log.warning("the bytes of a deleted file are left to housekeeping")
        return file

    async def content(
        self, workspace_id: WorkspaceId, file_id: str, start: int = 0, end: int | None = None
    ) -> tuple[StoredFile, AsyncIterator[bytes]]:
        """The file, and its bytes from `start` up to but not including `end`."""
        file = await self.catalog.get_file(workspace_id, file_id)
        return file, self.store.read(file.blob_key, start, end)

    async def sweep(self, grace_s: float) -> int:
        """Remove stored bytes without a record, seen twice `grace_s` apart; return how many.

        Nothing of ours leaves such bytes: this is for restored backups and what was done by hand.
        """
        found = await self.orphans()
        if not found:
            return 0
        await asyncio.sleep(grace_s)
        orphans = await self.unrecorded(found)
        for key in orphans:
            await self.store.delete(key)
        return len(orphans)

    async def orphans(self) -> Sequence[str]:
        """Keys of stored bytes without a record; some may have been removed since they were listed."""
        return await self.unrecorded([key async for key in self.store.keys()])  # noqa: SIM118

    async def unrecorded(self, keys: Iterable[str]) -> Sequence[str]:
        """Those of the keys that nothing on record tells of, sorted.

        What is not named as a file or a part of one is not ours, and not among them.
        """
        keys = filter(_KEY.fullmatch, keys)
        unrecorded = []
        for workspace_id, group in groupby(sorted(keys), lambda key: key.partition("/")[0]):
            while page := [*islice(group, _SWEEP_PAGE)]:
                ids = [key.partition("/")[2] for key in page]
                recorded = await self.catalog.recorded(WorkspaceId(workspace_id), ids)
                unrecorded += [key for key, id in zip(page, ids, strict=True) if id not in recorded]
        return unrecorded

    async def _take_back(self, file: StoredFile) -> None:
        with suppress(NotFound, Unavailable):
            await self.catalog.delete_file(file.workspace_id, file.id)


class _Measured:
    """A stream that is counted and hashed as it passes, and stopped when it grows too long."""

    def __init__(self, data: AsyncIterator[bytes], max_bytes: int) -> None:
        self._data = data
        self._max_bytes = max_bytes
        self.size = 0
        self.digest = hashlib.sha256()
        self.head = b""

    async def pieces(self) -> AsyncIterator[bytes]:
        async for piece in self._data:
            self.size += len(piece)
            if self.size > self._max_bytes:
                raise FileTooLarge(self._max_bytes)
            self.digest.update(piece)
            if len(self.head) < _HEAD_BYTES:
                self.head += piece[: _HEAD_BYTES - len(self.head)]
            yield piece


def count_upload(file: StoredFile) -> None:
    """One more file is stored and on record."""
    instruments.uploads.add(1, {"extension": parsers.known_extension(file.filename)})


def new_file_id() -> str:
    return f"file-{secrets.token_hex(12)}"


def clean_filename(sent: str) -> str:
    """The name as it was sent, without folders and control characters; `upload` where nothing is left."""
    name = _CONTROL.sub("", re.split(r"[/\\]", sent)[-1]).strip()
    return name if name.strip(".") else "upload"
