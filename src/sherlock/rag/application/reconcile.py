"""Whether the file store and the records tell of the same files.

They drift apart where a database or a bucket is restored from a backup, or where somebody removes objects by
hand. What is killed, or cannot be removed at once, is on record (`objects.py`) and no drift.
"""

import asyncio
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass

from sherlock.rag import instruments
from sherlock.rag.application.files import Files
from sherlock.rag.domain.errors import NotFound, Unavailable
from sherlock.rag.domain.models import ComponentStatus, Orphans, WorkspaceId, blob_key
from sherlock.rag.domain.ports import ReconciliationRecords

_PAGE = 1_000
_LATEST_TIMEOUT_S = 1.0


@dataclass(frozen=True, slots=True)
class Reconciler:
    """Finds and counts; a person removes: two databases may share a file store, or one be an old backup."""

    files: Files
    records: ReconciliationRecords
    every_s: float
    """Listing the objects of a large file store takes minutes."""
    grace_s: float
    """What seems to have no record is looked at once more after so long: it may just have been removed."""

    async def run_if_due(self) -> Orphans | None:
        """Compare, if no worker has done so for `every_s`; tell what was found last, `None` if never."""
        if await self.records.begin(self.every_s):
            stored = await self._stored()
            missing = await self._without_bytes(stored)
            if unrecorded := await self.files.unrecorded(stored):
                await asyncio.sleep(self.grace_s)
                still = await self.files.unrecorded(unrecorded)
                unrecorded = [key for key in still if await self._is_stored(key)]
            await self.records.end(Orphans(len(unrecorded), len(missing)))
        found = await self.records.latest()
        if found is not None:
            instruments.orphans.set(found.bytes_without_record, {"kind": "bytes"})
            instruments.orphans.set(found.records_without_bytes, {"kind": "record"})
        return found

    async def count(self) -> Orphans:
        """What there is now, and what was removed while it was listed."""
        stored = await self._stored()
        return Orphans(len(await self.files.unrecorded(stored)), len(await self._without_bytes(stored)))

    async def remove(self, *, records: bool) -> Orphans:
        """Remove bytes without a record and, with `records`, files without bytes; returns how many."""
        removed = await self.files.sweep(self.grace_s)
        missing = await self._without_bytes(await self._stored())
        if records:
            for workspace_id, file_id in missing:
                with suppress(NotFound):
                    await self.files.delete(workspace_id, file_id)
        await self.records.end(Orphans(0, 0 if records else len(missing)))
        return Orphans(removed, len(missing) if records else 0)

    async def file_store_status(self) -> ComponentStatus:
        """Ready when it can be written to, with what was found last where that is not nothing."""
        await self.files.store.check()
        found = None
        with suppress(Unavailable, TimeoutError):  # the database has a status of its own
            async with asyncio.timeout(_LATEST_TIMEOUT_S):
                found = await self.records.latest()
        reason = None
        if found is not None and found != Orphans(0, 0):
            reason = (
                f"It holds {found.bytes_without_record} objects without a file, and "
                f"{found.records_without_bytes} files have no bytes in it; see `sherlock gc --dry-run`."
            )
        return ComponentStatus("ready", since=int(time.time()), reason=reason)

    async def _stored(self) -> set[str]:
        return {key async for key in self.files.store.keys()}  # noqa: SIM118

    async def _without_bytes(self, stored: Collection[str]) -> list[tuple[WorkspaceId, str]]:
        """`(workspace, file)` of every file that is not stored, now that it is looked for by itself."""
        missing: list[tuple[WorkspaceId, str]] = []
        after = 0
        while page := await self.records.files(after, _PAGE):
            after = page[-1][0]
            unlisted = [(space, file) for _, space, file in page if blob_key(space, file) not in stored]
            missing += [one for one in unlisted if await self._is_gone(*one)]
        return missing

    async def _is_gone(self, workspace_id: WorkspaceId, file_id: str) -> bool:
        """Not uploaded since the list was made, and not deleted since the record was read."""
        if await self._is_stored(blob_key(workspace_id, file_id)):
            return False
        with suppress(NotFound):
            await self.files.catalog.get_file(workspace_id, file_id)
            return True
        return False

    async def _is_stored(self, key: str) -> bool:
        try:
            await self.files.store.size(key)
        except NotFound:
            return False
        return True
