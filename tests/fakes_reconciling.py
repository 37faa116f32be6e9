"""`ReconciliationRecords` in memory, over the state of the other fakes."""

import time
from dataclasses import dataclass

from tests.fakes import MemoryState, has_expired

from sherlock.rag.domain.models import Orphans, WorkspaceId


@dataclass
class InMemoryReconciliation:
    state: MemoryState
    begun_at: float | None = None
    found: Orphans | None = None

    async def begin(self, every_s: float) -> bool:
        now = time.monotonic()
        if self.begun_at is not None and now - self.begun_at < every_s:
            return False
        self.begun_at = now
        return True

    async def files(self, after: int, limit: int) -> list[tuple[int, WorkspaceId, str]]:
        numbered = enumerate(self.state.files.items(), start=1)
        rows = [(n, *key) for n, (key, file) in numbered if n > after and not has_expired(file)]
        return rows[:limit]

    async def end(self, found: Orphans) -> None:
        self.found = found

    async def latest(self) -> Orphans | None:
        return self.found
