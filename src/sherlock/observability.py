"""Request ids and JSON logs, which carry the trace they belong to.

Logged of a request: its id, method, route template, status and duration. Never a body, a query string or an
id out of the path. Of other libraries' lines only level and logger are written, since their messages may hold
any of that: object names, statements, texts of exceptions.
"""

import json
import logging
import re
import secrets
import sys
import time
from datetime import UTC, datetime
from typing import Any

from opentelemetry import trace
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sherlock.rag.domain.correlation import request_id

log = logging.getLogger(__name__)

ACCEPTED_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
"""A caller's own `x-request-id` is kept when it is harmless in headers and logs."""

HEALTH_ROUTES = "/health"
"""Asked every few seconds by whatever watches the process, so their lines are for debugging only."""

CONVERTER = re.compile(r":\w+(?=\})")
"""What Starlette's templates say of a value: `{model:path}` is the document's `{model}`."""

PLAIN_RECORD = set(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "color_message"}
"""What every log record has; the rest came with `extra`."""


class RequestContext:
    """Gives every request an id, answers with it in `x-request-id`, and logs one line at the answer's end.

    Plain ASGI, so that streams and cancellation pass through untouched.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        identifier = given if ACCEPTED_ID.fullmatch(given) else f"req_{secrets.token_hex(16)}"
        began, status = time.perf_counter(), 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = identifier
            await send(message)

        token = request_id.set(identifier)
        trace.get_current_span().set_attribute("request_id", identifier)
        try:
            await self.app(scope, receive, send_with_id)
        finally:
            route = route_of(scope)
            log.log(
                logging.DEBUG if route.startswith(HEALTH_ROUTES) else logging.INFO,
                "request",
                extra={
                    "method": scope["method"],
                    "route": route,
                    "status": status,
                    "duration_ms": round((time.perf_counter() - began) * 1000, 1),
                },
            )
            request_id.reset(token)


def route_of(scope: Scope) -> str:
    """The template of the route that answered, as the API's document has it: without what the path holds."""
    return CONVERTER.sub("", getattr(scope.get("route"), "path", "unmatched"))


class JsonFormatter(logging.Formatter):
    """One JSON object a line. Of an exception only its kind is written: its text may quote a document."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        if is_harmless(record):
            line["message"] = record.getMessage()
            line |= {name: value for name, value in record.__dict__.items() if name not in PLAIN_RECORD}
        if identifier := request_id.get():
            line["request_id"] = identifier
        if (context := trace.get_current_span().get_span_context()).is_valid:
            line["trace_id"] = trace.format_trace_id(context.trace_id)
            line["span_id"] = trace.format_span_id(context.span_id)
        if record.exc_info and record.exc_info[0]:
            line["error"] = record.exc_info[0].__name__
        return json.dumps(line, ensure_ascii=False, default=str)


def is_harmless(record: logging.LogRecord) -> bool:
    """Whether the message is one of our own, or of uvicorn's about its start, its address and its stop."""
    if record.name.partition(".")[0] == "sherlock":
        return True
    # What an application raises at start or stop is an error of `lifespan/on.py`, with the traceback in it.
    return record.name == "uvicorn.error" and (
        record.module == "server" or (record.module == "on" and record.levelno == logging.INFO)
    )


def configure(level: str) -> None:
    """Send the logs of the process, uvicorn's included, to standard error as JSON lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("sherlock").setLevel(level.upper())
    for name in ("uvicorn", "uvicorn.error"):
        logging.getLogger(name).handlers = []
        logging.getLogger(name).propagate = True
    logging.getLogger("uvicorn.error").setLevel(level.upper())
