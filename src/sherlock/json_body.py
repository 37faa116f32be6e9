"""Bodies of JSON, read so that whatever is built from them can be written again.

Refused are halves of surrogate pairs, which UTF-8 and the database cannot write, `NaN` and `Infinity`, which
are no JSON, a nesting that no writer would follow, and more values than can be read while others wait.

Reading holds the interpreter, in a thread as on the event loop, and longest where a body is all small values:
27 MB of them took 2 s, a string of 60 MB 0.1 s (pydantic-core; json and orjson take twice as long).
"""

import asyncio
import codecs
import json
import re
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request
from fastapi.responses import Response
from fastapi.routing import APIRoute
from pydantic_core import from_json

MAX_VALUES = 500_000
"""Of one body: more than the most token ids that one request for embeddings may hold."""

TURN_BYTES = 1 << 20
TURN_TOKENS = 5_000
"""How much is looked at before the event loop has another turn: about a millisecond's work."""

_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?|[,\[{]', re.DOTALL)


class JsonRequest(Request):
    async def json(self) -> Any:
        """Raises `json.JSONDecodeError`, for which FastAPI has a handler."""
        body = await self.body()
        if len(body) > MAX_VALUES:
            await check_values(body)
        return parsed(body)


class JsonRoute(APIRoute):
    """The class of every route that takes a body of JSON."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_json(request: Request) -> Response:
            return await handle(JsonRequest(request.scope, request.receive))

        return handle_json


async def check_values(body: bytes) -> None:
    """Raises `json.JSONDecodeError` where the body holds more than `MAX_VALUES`; gives others their turns."""
    most = 0  # separators of values, and what looks like them in strings
    for start in range(0, len(body), TURN_BYTES):
        most += sum(body.count(mark, start, start + TURN_BYTES) for mark in (b",", b"[", b"{"))
        await asyncio.sleep(0)
    if most <= MAX_VALUES:
        return
    separators = 0
    for number, token in enumerate(_TOKEN.finditer(body)):
        separators += token[0] in (b",", b"[", b"{")
        if separators > MAX_VALUES:
            raise json.JSONDecodeError("it holds too many values", "", 0)
        if number % TURN_TOKENS == 0:
            await asyncio.sleep(0)


def parsed(body: bytes) -> Any:
    """The value, some 200 levels deep at most. Raises `json.JSONDecodeError`, which quotes nothing of it."""
    try:
        return from_json(body.removeprefix(codecs.BOM_UTF8), allow_inf_nan=False)
    except ValueError as error:
        reason = str(error).replace("recursion limit exceeded", "it is nested too deep")
        raise json.JSONDecodeError(reason, "", 0) from None
