"""`LooseObjects` in memory; passes the port's behaviour suite in `tests/ports/test_loose_objects.py`."""

import time

from tests.fakes import LooseObject, MemoryState

from sherlock.rag.domain.errors import DatabaseUnavailable
from sherlock.rag.domain.models import WorkspaceId


class InMemoryLooseObjects:
    """`LooseObjects` over a `MemoryState`; `down = True` is a database that cannot be reached."""

    def __init__(self, state: MemoryState) -> None:
        self.state = state
        self.down = False

    async def reserve(self, workspace_id: WorkspaceId, object_id: str, for_s: float) -> None:
        self._reach()
        self.state.loose_objects[workspace_id, object_id] = LooseObject(time.monotonic() + for_s)

    async def renew(self, workspace_id: WorkspaceId, object_id: str, for_s: float) -> None:
        self._reach()
        known = self.state.loose_objects.get((workspace_id, object_id))
        if known is not None and not known.going:
            known.due_at = time.monotonic() + for_s

    async def claim(self, workspace_id: WorkspaceId, object_id: str) -> bool:
        self._reach()
        if (workspace_id, object_id) in self.state.files:
            return False
        self.state.loose_objects[workspace_id, object_id] = LooseObject(time.monotonic(), going=True)
        return True

    async def claim_due(self, limit: int, again_after_s: float) -> list[tuple[WorkspaceId, str]]:
        self._reach()
        now = time.monotonic()
        due = [key for key, known in self.state.loose_objects.items() if known.due_at <= now]
        claimed = sorted(due, key=lambda key: self.state.loose_objects[key].due_at)[:limit]
        for key in claimed:
            self.state.loose_objects[key] = LooseObject(now + again_after_s, going=True)
        return claimed

    async def forget(self, workspace_id: WorkspaceId, object_id: str) -> None:
        self._reach()
        self.state.loose_objects.pop((workspace_id, object_id), None)

    def _reach(self) -> None:
        if self.down:
            raise DatabaseUnavailable
