"""`IngestRequests` in memory, over the state of the other fakes."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.fakes import MemoryState

from sherlock.rag.domain.messages import IngestRequest
from sherlock.rag.domain.models import WorkspaceId

_POLL_S = 0.01


@dataclass
class MemoryRequest:
    value: IngestRequest
    claimed_until: float = 0.0
    settled_at: float | None = None


@dataclass
class InMemoryIngestRequests:
    state: MemoryState
    requests: dict[tuple[WorkspaceId, str], MemoryRequest] = field(default_factory=dict)

    async def add(self, request: IngestRequest) -> None:
        self.requests.setdefault((request.workspace_id, request.message_id), MemoryRequest(request))

    async def known(self, workspace_id: WorkspaceId, message_id: str) -> bool:
        return (workspace_id, message_id) in self.requests

    async def claim_ended(self, limit: int, lease_s: float) -> list[IngestRequest]:
        now = time.time()
        ended = [one for one in self._ended() if one.claimed_until <= now][:limit]
        for one in ended:
            one.claimed_until = now + lease_s
        return [one.value for one in ended]

    async def settle(self, requests: Sequence[IngestRequest]) -> None:
        for request in requests:
            known = self.requests.get((request.workspace_id, request.message_id))
            if known is not None and known.settled_at is None:
                known.settled_at = time.time()

    async def forget_settled(self, limit: int) -> int:
        long_ago = time.time() - 86_400
        old = [key for key, one in self.requests.items() if (one.settled_at or long_ago) < long_ago][:limit]
        for key in old:
            del self.requests[key]
        return len(old)

    async def wait_for_ended(self, timeout_s: float) -> None:
        before = len(self._ended())
        deadline = time.monotonic() + timeout_s
        while len(self._ended()) == before and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_S)

    def _ended(self) -> list[MemoryRequest]:
        """Those that are owed a result, the oldest first."""
        return [one for one in self.requests.values() if one.settled_at is None and not self._goes_on(one)]

    def _goes_on(self, one: MemoryRequest) -> bool:
        key = (one.value.workspace_id, one.value.vector_store_id, one.value.file_id)
        membership = self.state.memberships.get(key)
        return membership is not None and membership.value.status == "in_progress"
