"""Whether each part can work now, and since when it has been so."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace

from sherlock.rag.domain.errors import SherlockError
from sherlock.rag.domain.models import ComponentStatus

log = logging.getLogger(__name__)

CHECK_TIMEOUT_S = 3.0

Check = Callable[[], Awaitable[ComponentStatus]]


def proven_by(check: Callable[[], Awaitable[None]]) -> Check:
    """The status of a part whose check returns nothing, or raises a `SherlockError` with the reason."""

    async def status() -> ComponentStatus:
        await check()
        return ComponentStatus("ready", since=int(time.time()))

    return status


async def off() -> ComponentStatus:
    return ComponentStatus("off", since=int(time.time()))


@dataclass(frozen=True, slots=True)
class Readiness:
    checks: Mapping[str, Check]
    _last: dict[str, ComponentStatus] = field(default_factory=dict)

    async def __call__(self) -> dict[str, ComponentStatus]:
        """The status of every component, asked at the same time; a check that hangs is `unavailable`."""
        found = await asyncio.gather(*(self._ask(name) for name in self.checks))
        return dict(zip(self.checks, found, strict=True))

    async def _ask(self, name: str) -> ComponentStatus:
        now = int(time.time())
        try:
            async with asyncio.timeout(CHECK_TIMEOUT_S):
                status = await self.checks[name]()
        except SherlockError as error:
            status = ComponentStatus("unavailable", since=now, reason=error.message)
        except TimeoutError:
            status = ComponentStatus("unavailable", since=now, reason="It does not answer in time.")
        except Exception as error:  # a fault of ours or a library's, whose text may hold anything
            log.error("a readiness check failed", extra={"component": name, "error": type(error).__name__})
            status = ComponentStatus("unavailable", since=now, reason="It failed unexpectedly.")
        last = self._last.get(name)
        if last is not None and last.state == status.state:
            status = replace(status, since=last.since)
        self._last[name] = status
        return status


def is_ready(components: Mapping[str, ComponentStatus]) -> bool:
    """Whether HTTP can be served. Messages that do not come are reported, but hold up nothing here."""
    return all(
        status.state in ("ready", "idle", "off") for name, status in components.items() if name != "nats"
    )
