"""Answers that take long: read ahead, streamed as server-sent events, and given up when the client goes."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping
from typing import Any, TypeVar

import anyio
from fastapi import Request
from fastapi.responses import StreamingResponse
from pydantic_core import to_json
from starlette.types import Receive, Scope, Send

from sherlock.process import cancelled

KEEP_ALIVE_S = 15.0
"""Longest silence of a stream; a comment line, which every client passes over, ends it."""

T = TypeVar("T")


# ── before the status is sent ───────────────────────────────────────────────


async def collected(events: AsyncIterator[T]) -> list[T]:
    return [event async for event in events]


async def opening(events: AsyncIterator[T], begun: Callable[[T], bool]) -> list[T]:
    """The events up to the first that `begun` holds of: up to there a failure has its own status."""
    head: list[T] = []
    async for event in events:
        head.append(event)
        if begun(event):
            break
    return head


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T | None:
    """The result of `work`; `None` when the client goes before: then `work` is cancelled."""
    working = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(disconnected(request))
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        await cancelled(working, gone)


async def disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


# ── the stream ──────────────────────────────────────────────────────────────


class EventStream(StreamingResponse):
    """`frames` as server-sent events. When the client goes, `answer` is closed before the request ends.

    Left to the garbage collector, the model would go on for as long as something refers to the stream.
    """

    media_type = "text/event-stream"

    def __init__(
        self, frames: AsyncGenerator[bytes], answer: AsyncGenerator[Any], headers: Mapping[str, str]
    ) -> None:
        self._answer = answer
        self._stream = kept_alive(frames)
        super().__init__(
            self._stream, headers={"cache-control": "no-cache", "x-accel-buffering": "no", **headers}
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._stream.aclose()
            await self._answer.aclose()  # a stream that was never begun closes nothing


def frame(data: object, *, event: str | None = None) -> bytes:
    """One server-sent event: a line that names it, where it has a name, and a line of JSON."""
    named = b"" if event is None else b"event: " + event.encode() + b"\n"
    return named + b"data: " + to_json(data) + b"\n\n"


async def kept_alive(source: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    """The same stream, with a comment line wherever nothing has come for `KEEP_ALIVE_S`.

    Pieces that come at once leave at once: a write for each would cost more than all that made them.
    """
    ready: asyncio.Queue[bytes | None] = asyncio.Queue()
    reading = asyncio.create_task(read_into(ready, source))
    try:
        while True:
            try:
                async with asyncio.timeout(KEEP_ALIVE_S):
                    pieces = [await ready.get()]
            except TimeoutError:
                yield b": keep-alive\n\n"
                continue
            while not ready.empty():
                pieces.append(ready.get_nowait())
            if together := b"".join(piece for piece in pieces if piece is not None):
                yield together
            if pieces[-1] is None:
                reading.result()
                return
    finally:
        # Starlette cancels through a scope that cancels whatever is awaited next, too.
        with anyio.CancelScope(shield=True):
            await cancelled(reading)  # the source ends in the task that reads it


async def read_into(ready: "asyncio.Queue[bytes | None]", source: AsyncGenerator[bytes]) -> None:
    """Put what the source brings into `ready`, and `None` at its end, however it ends."""
    try:
        async for piece in source:
            ready.put_nowait(piece)
    finally:
        ready.put_nowait(None)
        await source.aclose()
