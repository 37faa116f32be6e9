"""Bodies of JSON, read so that whatever is built from them can be written again.

Refused are halves of surrogate pairs, which UTF-8 and the database cannot write, `NaN` and `Infinity`, which
are no JSON, and a nesting that no writer would follow.
"""

import codecs
import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request
from fastapi.responses import Response
from fastapi.routing import APIRoute
from pydantic_core import from_json


class JsonRequest(Request):
    async def json(self) -> Any:
        """Raises `json.JSONDecodeError`, for which FastAPI has a handler."""
        return parsed(await self.body())


class JsonRoute(APIRoute):
    """The class of every route that takes a body of JSON."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_json(request: Request) -> Response:
            return await handle(JsonRequest(request.scope, request.receive))

        return handle_json


def parsed(body: bytes) -> Any:
    """The value, some 200 levels deep at most. Raises `json.JSONDecodeError`, which quotes nothing of it."""
    try:
        return from_json(body.removeprefix(codecs.BOM_UTF8), allow_inf_nan=False)
    except ValueError as error:
        reason = str(error).replace("recursion limit exceeded", "it is nested too deep")
        raise json.JSONDecodeError(reason, "", 0) from None
