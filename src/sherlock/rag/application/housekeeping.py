"""What has to be done from time to time, whoever asks for it: things expire, and are cleared away."""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from sherlock.rag.application.objects import Objects
from sherlock.rag.application.uploads import Uploads
from sherlock.rag.domain.errors import NotFound
from sherlock.rag.domain.messages import IngestRequests
from sherlock.rag.domain.models import StoredFile, WorkspaceId
from sherlock.rag.domain.ports import Catalog, ChunkIndex, FileStore, ResponseStore

log = logging.getLogger(__name__)

BATCH = 100
"""What one duty does in one round: no lock is held for long."""

T = TypeVar("T")

Duty = Callable[[], Awaitable[int]]
"""Does up to `BATCH` things and returns how many it did."""


@dataclass(frozen=True, slots=True)
class Housekeeper:
    """Any number of them may be at work: what another has done is done."""

    catalog: Catalog
    store: FileStore
    uploads: Uploads
    responses: ResponseStore
    ingest_requests: IngestRequests
    index: ChunkIndex
    objects: Objects

    @property
    def duties(self) -> Mapping[str, Duty]:
        """By name, in the order in which one makes work for the next."""
        return {
            "expired vector stores": self.expire_vector_stores,
            "expired memberships": self.detach_expired,
            "expired files": self.remove_expired_files,
            "left-over parts of uploads": self.remove_left_over,
            "loose objects": self.remove_loose_objects,
            "ended uploads": self.forget_ended_uploads,
            "expired responses": self.forget_expired_responses,
            "settled ingest requests": self.forget_settled_requests,
            "unpublished chunks": self.clear_unpublished,
        }

    async def run_once(self) -> bool:
        """Do one round of every duty; returns whether there may be more to do at once.

        A duty that fails is logged, and left to the next round.
        """
        more = False
        for name, duty in self.duties.items():
            try:
                more |= await duty() >= BATCH
            except Exception as error:
                log.warning("housekeeping failed", extra={"duty": name, "error": type(error).__name__})
        return more

    async def expire_vector_stores(self) -> int:
        return await self.catalog.expire_vector_stores(BATCH)

    async def detach_expired(self) -> int:
        """What was ingested of expired files, and into expired vector stores, goes."""

        async def detach(membership: tuple[WorkspaceId, str, str]) -> None:
            with suppress(NotFound):
                await self.catalog.detach_file(*membership)

        return await _each(await self.catalog.expired_memberships(BATCH), detach)

    async def remove_expired_files(self) -> int:
        """The bytes first: nobody can ask for them any more, and none are left without a record."""

        async def remove(file: StoredFile) -> None:
            await self.store.delete(file.blob_key)
            await self.catalog.remove_expired_file(file.workspace_id, file.id)

        return await _each(await self.catalog.expired_files(BATCH), remove)

    async def remove_left_over(self) -> int:
        return await self.uploads.remove_left_over(BATCH)

    async def remove_loose_objects(self) -> int:
        """What killed uploads left, and what was to be removed while the file store was down."""

        async def remove(loose: tuple[WorkspaceId, str]) -> None:
            await self.objects.remove(*loose)

        return await _each(await self.objects.claim_due(BATCH), remove)

    async def forget_ended_uploads(self) -> int:
        return await self.uploads.forget_ended(BATCH)

    async def forget_expired_responses(self) -> int:
        return await self.responses.delete_expired(BATCH)

    async def forget_settled_requests(self) -> int:
        return await self.ingest_requests.forget_settled(BATCH)

    async def clear_unpublished(self) -> int:
        """What files left in the index that were cancelled, or failed, while or after they were published."""
        return BATCH if await self.index.clear_unpublished() else 0


async def _each(things: Sequence[T], do: Callable[[T], Awaitable[None]]) -> int:
    """How many of them it was done to: one that fails, the oldest perhaps, must not hold up the others."""
    done = 0
    for thing in things:
        try:
            await do(thing)
            done += 1
        except Exception as error:
            log.warning("housekeeping failed", extra={"duty": "one of many", "error": type(error).__name__})
    return done
