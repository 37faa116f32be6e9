"""Objects of the file store that are on their way in or out: what no file and no upload has.

1. `reserve` puts the object on record, before its bytes.
2. While they are stored the reservation is renewed.
3. The transaction that records the file, or the part, ends the reservation; without one it fails.
4. The transaction that deletes a file leaves its object here again.
5. What is due is claimed, its bytes are removed, and then its row.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from sherlock.rag.domain.errors import FileStoreUnavailable, Unavailable
from sherlock.rag.domain.models import WorkspaceId, blob_key
from sherlock.rag.domain.ports import FileStore, LooseObjects

log = logging.getLogger(__name__)

HELD_S = 180.0
"""How long a reservation outlives its last renewal. So long after a kill the bytes go; and an upload that
cannot reach the database for so long may have to be sent again."""
_RENEWALS = 6
"""While a reservation would last."""

TRY_AGAIN_S = 60.0
"""After a removal that did not come to its end, say because the file store is down."""


@dataclass(frozen=True, slots=True)
class Objects:
    loose: LooseObjects
    store: FileStore
    held_s: float = HELD_S

    @asynccontextmanager
    async def reserved(self, workspace_id: WorkspaceId, object_id: str) -> AsyncIterator[None]:
        """Reserve the object for the block, as `held` says."""
        await self.loose.reserve(workspace_id, object_id, self.held_s)
        async with self.held(workspace_id, object_id):
            yield

    @asynccontextmanager
    async def held(self, workspace_id: WorkspaceId, object_id: str) -> AsyncIterator[None]:
        """Renew the reservation while the block stores the object and puts it on record.

        When the block fails or is cancelled the object is removed, unless a file has it all the same. What a
        file store that did not answer may still be storing goes when the reservation runs out.
        """
        renewing = asyncio.ensure_future(self._keep_renewing(workspace_id, object_id))
        try:
            yield
        except FileStoreUnavailable:
            raise
        except BaseException:
            # A task of its own, so that it also ends when this one is cancelled once more.
            await asyncio.shield(asyncio.ensure_future(self._discard(workspace_id, object_id)))
            raise
        finally:
            renewing.cancel()

    async def claim_due(self, limit: int) -> list[tuple[WorkspaceId, str]]:
        """`(workspace, object)` of up to `limit` that are due; the caller is to `remove` them."""
        return await self.loose.claim_due(limit, TRY_AGAIN_S)

    async def remove(self, workspace_id: WorkspaceId, object_id: str) -> None:
        """The bytes of an object that was claimed, then its row: as long as there are any, it stands."""
        await self.store.delete(blob_key(workspace_id, object_id))
        await self.loose.forget(workspace_id, object_id)

    async def _keep_renewing(self, workspace_id: WorkspaceId, object_id: str) -> None:
        while True:
            await asyncio.sleep(self.held_s / _RENEWALS)
            try:
                await self.loose.renew(workspace_id, object_id, self.held_s)
            except Unavailable:
                pass
            except Exception as error:
                # Nobody awaits this task: were it to end here, a long upload would lose its reservation.
                log.error("a reservation was not renewed", extra={"error": type(error).__name__})

    async def _discard(self, workspace_id: WorkspaceId, object_id: str) -> None:
        try:
            if await self.loose.claim(workspace_id, object_id):
                await self.remove(workspace_id, object_id)
        except Unavailable:
            log.warning("an object that came to nothing is left to housekeeping")
