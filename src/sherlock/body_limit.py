"""How long the body of a request may be."""

import re

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_BODY_BYTES = 64 * 1024 * 1024
"""JSON is read into memory as a whole. The longest is meant to be a chat with images: OpenAI takes 50 MB."""

MEASURED_BY_ITS_ROUTE = re.compile(r"/v1/files|/v1/uploads/[^/]+/parts")
"""What is posted there is read as a stream, with a limit and an error of its own."""


class BodyLimit:
    """Refuses a longer body with status 413: at once where its length is announced, else while it comes."""

    def __init__(self, app: ASGIApp, max_bytes: int = MAX_BODY_BYTES) -> None:
        self.app = app
        self.max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or is_measured_by_its_route(scope):
            await self.app(scope, receive, send)
            return
        announced = int(Headers(scope=scope).get("content-length") or 0)
        read = 0

        async def receive_within_limit() -> Message:
            nonlocal read
            if announced > self.max_bytes:
                raise self.too_large()
            message = await receive()
            read += len(message.get("body", b""))
            if read > self.max_bytes:
                raise self.too_large()
            return message

        await self.app(scope, receive_within_limit, send)

    def too_large(self) -> HTTPException:
        return HTTPException(413, f"The body is too large. Maximum size is {self.max_bytes} bytes.")


def is_measured_by_its_route(scope: Scope) -> bool:
    path = scope["path"].removeprefix(scope.get("root_path", ""))
    return scope["method"] == "POST" and MEASURED_BY_ITS_ROUTE.fullmatch(path) is not None
