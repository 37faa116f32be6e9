"""The life of a process: stopping on signals, with its parent, and without tasks left behind."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

EX_CONFIG = 78
"""Exit status of a start that cannot succeed as configured (sysexits.h): not worth a restart."""

PARENT_CHECK_S = 0.5


async def stop_on_signals(run: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    """Run until done, or until SIGINT or SIGTERM sets the event handed to `run`."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    try:
        await run(stop)
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


@asynccontextmanager
async def watched_parent(parent: int, stop: asyncio.Event) -> AsyncIterator[None]:
    """Set `stop` when `parent` (0: nobody) has gone: one killed with -9 cannot end its children itself."""

    async def watch() -> None:
        while os.getppid() == parent:  # noqa: ASYNC110 - nothing tells us when a parent goes
            await asyncio.sleep(PARENT_CHECK_S)
        stop.set()

    watching = asyncio.ensure_future(watch()) if parent else None
    try:
        yield
    finally:
        if watching is not None:
            await cancelled(watching)


async def until(stop: asyncio.Event, waiting: Awaitable[None]) -> None:
    """Wait for `waiting`, but no longer than until `stop` is set; errors of `waiting` are raised."""
    task = asyncio.ensure_future(waiting)
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
    finally:
        await cancelled(task, stopping)


async def cancelled(*tasks: "asyncio.Future[Any]") -> None:
    """Cancel all and wait until they have really ended; their outcome is of no interest any more.

    All at once: whoever is cancelled while it waits leaves none of them running.
    """
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.exception()
