"""How many jobs may wait before no more files are taken on."""

from dataclasses import dataclass

from sherlock.rag.domain.errors import QueueFull
from sherlock.rag.domain.ports import IngestQueue


@dataclass(frozen=True, slots=True)
class QueueLimit:
    queue: IngestQueue
    max_jobs: int

    async def check(self) -> None:
        """Raises `QueueFull`. The jobs of one request are let in together, so it may be passed by them."""
        if await self.queue.waiting(self.max_jobs) >= self.max_jobs:
            raise QueueFull
