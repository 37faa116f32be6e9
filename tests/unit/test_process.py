"""No task is left behind, whoever is cancelled and when."""

import asyncio

import pytest

from sherlock.process import cancelled, until


async def stubborn(started: asyncio.Event, may_end: asyncio.Event) -> None:
    try:
        started.set()
        await asyncio.Event().wait()
    finally:
        await may_end.wait()


async def test_a_caller_that_is_cancelled_while_it_cleans_up_leaves_nothing_running() -> None:
    before = asyncio.all_tasks()
    stop, started, may_end = asyncio.Event(), asyncio.Event(), asyncio.Event()
    caller = asyncio.create_task(until(stop, stubborn(started, may_end)))
    await started.wait()
    caller.cancel()
    for _ in range(5):  # it waits for the stubborn one by now
        await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    may_end.set()
    for _ in range(5):
        await asyncio.sleep(0)
    assert asyncio.all_tasks() <= before  # other tests' may end meanwhile


async def test_all_are_cancelled_before_any_is_waited_for() -> None:
    started, may_end = asyncio.Event(), asyncio.Event()
    first = asyncio.create_task(stubborn(started, may_end))
    await started.wait()
    second = asyncio.create_task(asyncio.Event().wait())
    second.add_done_callback(lambda _: may_end.set())  # the first ends only after the second
    await asyncio.wait_for(cancelled(first, second), 5)
    assert first.cancelled()
    assert second.cancelled()


async def test_errors_of_what_is_waited_for_are_raised() -> None:
    async def failing() -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await until(asyncio.Event(), failing())
