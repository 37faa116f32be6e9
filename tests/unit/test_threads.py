"""Blocking work in threads, and callers that go away meanwhile."""

import asyncio
import threading

import pytest

from sherlock.rag.threads import run_in_thread


async def test_what_a_cancelled_caller_never_sees_is_undone():
    begun, go, undone = asyncio.Event(), threading.Event(), list[str]()
    loop = asyncio.get_running_loop()

    def work(made: str) -> str:
        loop.call_soon_threadsafe(begun.set)
        go.wait(20)
        return made

    running = asyncio.create_task(run_in_thread(None, work, "a file", undo=undone.append))
    await begun.wait()
    running.cancel()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert undone == ["a file"]


@pytest.mark.parametrize("fails", [False, True])
async def test_nothing_is_undone_for_a_caller_that_stays(fails: bool):
    undone: list[int] = []

    def work() -> int:
        return 1 // (0 if fails else 1)

    if fails:
        with pytest.raises(ZeroDivisionError):
            await run_in_thread(None, work, undo=undone.append)
    else:
        assert await run_in_thread(None, work, undo=undone.append) == 1
    assert undone == []
