"""What is left behind when a client goes: nothing that runs, nothing in the log."""

import asyncio
import gc
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message

from sherlock.chat_schemas import ChunkWriter
from sherlock.event_stream import EventStream, kept_alive, while_connected
from sherlock.openai_router import frames
from sherlock.rag.domain.models import AnswerEvent, TextDelta

WRITER = ChunkWriter("m", choices=1, include_usage=False, base_url="")


@asynccontextmanager
async def complaints_of_the_loop() -> AsyncIterator[list[dict[str, Any]]]:
    """What asyncio would log, with the texts of exceptions that nobody looked at."""
    loop = asyncio.get_running_loop()
    found: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: found.append(context))
    try:
        yield found
        await asyncio.sleep(0)  # the loop itself holds the task that woke us
        gc.collect()
    finally:
        loop.set_exception_handler(None)


async def gone() -> Message:
    return {"type": "http.disconnect"}


async def failing_when_left() -> None:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        raise ValueError("the text of a document") from None


async def test_work_that_is_left_and_fails() -> None:
    async with complaints_of_the_loop() as complaints:
        request = Request({"type": "http"}, gone)
        assert await while_connected(request, failing_when_left()) is None
    assert not complaints


async def test_a_stream_that_is_left_and_fails() -> None:
    waiting = asyncio.Event()

    async def source() -> AsyncGenerator[bytes]:
        yield b"a"
        waiting.set()
        await failing_when_left()

    async with complaints_of_the_loop() as complaints:
        stream = kept_alive(source())
        assert await anext(stream) == b"a"
        reading = asyncio.ensure_future(anext(stream))
        await waiting.wait()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        del stream, reading
    assert not complaints


@pytest.mark.parametrize("spec_version", ["2.3", "2.4"])
async def test_a_client_that_goes_before_the_first_byte(spec_version: str) -> None:
    """The stream is not begun then; the answer is closed nevertheless, and with it the model."""
    closed = False

    async def answer() -> AsyncGenerator[AnswerEvent]:
        nonlocal closed
        try:
            yield TextDelta("one")
            yield TextDelta("two")
        finally:
            closed = True

    async def send(message: Message) -> None:
        assert message["type"] == "http.response.start"
        if spec_version == "2.4":
            raise OSError
        await asyncio.Event().wait()

    events = answer()
    stream = EventStream(frames([await anext(events)], events, WRITER), events, headers={})
    scope = {"type": "http", "asgi": {"spec_version": spec_version}}
    if spec_version == "2.4":
        with pytest.raises(ClientDisconnect):
            await stream(scope, gone, send)
    else:
        await stream(scope, gone, send)
    assert closed


async def test_a_stream_that_is_cancelled_over_and_over_ends_before_it_returns() -> None:
    """When a client goes, the scope of Starlette cancels whatever is awaited while the stream ends."""
    waiting = asyncio.Event()
    ended = False

    async def source() -> AsyncGenerator[bytes]:
        nonlocal ended
        yield b"a"
        waiting.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)  # the loop turns more than once
            ended = True

    async def read() -> None:
        async for _ in stream:
            pass

    stream = kept_alive(source())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        await waiting.wait()
        tasks.cancel_scope.cancel()
    assert ended
