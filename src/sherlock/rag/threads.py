"""Blocking work in threads, seen from the event loop."""

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar, TypeVarTuple

T = TypeVar("T")
Args = TypeVarTuple("Args")


async def run_in_thread(
    threads: Executor | None,
    work: Callable[[*Args], T],
    *args: *Args,
    undo: Callable[[T], None] | None = None,
) -> T:
    """The result of `work(*args)`, in the event loop's own threads for `None`.

    A cancelled caller waits for the work to end before it is cancelled, for a thread cannot be stopped: what
    it does next (undo, close) never overtakes what still goes on. It never sees the result: what has to be
    closed, `undo` closes.
    """
    running = asyncio.get_running_loop().run_in_executor(threads, work, *args)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        while not running.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([running])
        # An exception is looked at, so that asyncio does not report it as lost.
        if not running.cancelled() and running.exception() is None and undo is not None:
            undo(running.result())
        raise
