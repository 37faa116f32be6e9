"""How ingestion is doing: what whoever watches the service asks every few seconds."""

import asyncio
import logging
import time
from dataclasses import dataclass, field

from sherlock.rag.domain.errors import Unavailable
from sherlock.rag.domain.models import QueueActivity
from sherlock.rag.domain.ports import IngestQueue

log = logging.getLogger(__name__)

GOOD_FOR_S = 2.0
"""Those who ask more often get the same answer again."""
TIMEOUT_S = 3.0


@dataclass(slots=True)
class Activity:
    queue: IngestQueue
    good_for_s: float = GOOD_FOR_S
    _asking: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _asked_at: float = field(default=float("-inf"), init=False)
    _found: QueueActivity | None = field(default=None, init=False)

    async def __call__(self) -> QueueActivity | None:
        """The queue now, or up to `good_for_s` ago; `None` where it does not answer."""
        async with self._asking:
            if time.monotonic() - self._asked_at >= self.good_for_s:
                try:
                    async with asyncio.timeout(TIMEOUT_S):
                        self._found = await self.queue.activity()
                except (Unavailable, TimeoutError):
                    self._found = None
                except Exception as error:  # as of a schema that is not up to date yet
                    log.warning("the ingest queue cannot be read", extra={"error": type(error).__name__})
                    self._found = None
                self._asked_at = time.monotonic()
            return self._found
