"""The gate in front of everything that needs retrieval, for a server that runs without it."""

import re
from collections.abc import Sequence

from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Receive, Scope, Send

from sherlock import http_errors
from sherlock.rag.domain.errors import RagDisabled

CLOSED = re.compile(r"/v1/(files|uploads|vector_stores|embeddings|conversations)(/|$)")
CLOSED_TO_READ = re.compile(r"/v1/responses/.")
"""Without retrieval responses are made and not stored, so there are none to read or delete."""


class RagGate:
    """Answers 503, code `rag_disabled`, before routing: alike for routes that exist and for those to come.

    `routes` are those that exist, so that logs and metrics name the one that was asked for.
    """

    def __init__(self, app: ASGIApp, routes: Sequence[BaseRoute] = ()) -> None:
        self.app = app
        self.routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path = scope["path"].removeprefix(scope.get("root_path", ""))
            reads = scope["method"] in ("GET", "HEAD", "DELETE")
            if CLOSED.match(path) or (reads and CLOSED_TO_READ.match(path)):
                asked = (route for route in self.routes if route.matches(scope)[0] is not Match.NONE)
                scope["route"] = next(asked, None)
                await http_errors.error_response(RagDisabled())(scope, receive, send)
                return
        await self.app(scope, receive, send)
