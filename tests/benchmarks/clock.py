"""Wall time and the database's processor time of one call after another."""

import statistics
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

import psutil

T = TypeVar("T")


@dataclass(frozen=True)
class Times:
    wall_ms: list[float]
    cpu_ms: float
    """The database's, on average; what other processes do to the wall time hardly shows in it."""

    @property
    def p50(self) -> float:
        return statistics.median(self.wall_ms)

    @property
    def p95(self) -> float:
        return sorted(self.wall_ms)[int(0.95 * (len(self.wall_ms) - 1))]

    def __str__(self) -> str:
        return f"p50 {self.p50:.1f}, p95 {self.p95:.1f}, CPU {self.cpu_ms:.1f} ms"


class Clock:
    """`backend` is the process of any connection to a PostgreSQL on this machine."""

    def __init__(self, backend: int) -> None:
        server = psutil.Process(backend).parent()
        assert server is not None
        self._server = server

    async def times(self, work: Callable[[T], Awaitable[object]], arguments: Iterable[T]) -> Times:
        took, before = [], self._cpu_s()
        for argument in arguments:
            began = time.perf_counter()
            await work(argument)
            took.append((time.perf_counter() - began) * 1000)
        return Times(took, (self._cpu_s() - before) / len(took) * 1000)

    def _cpu_s(self) -> float:
        spent = 0.0
        for process in self._server.children():
            times = process.cpu_times()
            spent += times.user + times.system
        return spent
