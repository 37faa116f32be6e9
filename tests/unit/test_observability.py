"""What a log line holds of a request, and what it does not."""

import asyncio
import json
import logging
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from sherlock.observability import JsonFormatter, RequestContext, request_id


class Route:
    path = "/v1/files/{file_id}"


async def answer(scope: Scope, _: Receive, send: Send) -> None:
    scope["route"] = Route()
    logging.getLogger("sherlock").info("inside")
    await send({"type": "http.response.start", "status": 404, "headers": []})
    await send({"type": "http.response.body", "body": b""})


async def ask(headers: dict[str, str]) -> list[Message]:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "http.request", "body": b"the text of a document"}

    scope = {
        "type": "http",
        "method": "GET",
        "path": "/v1/files/file-secret",
        "query_string": b"after=file-secret",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }
    await RequestContext(answer)(scope, receive, send)
    return sent


def test_one_line_a_request_without_ids_or_queries(caplog: pytest.LogCaptureFixture) -> None:
    lines: list[dict[str, Any]] = []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(json.loads(JsonFormatter().format(record)))

    handler = Lines()
    logging.getLogger("sherlock").addHandler(handler)
    try:
        with caplog.at_level(logging.INFO):
            start = asyncio.run(ask({"x-request-id": "abc"}))[0]
    finally:
        logging.getLogger("sherlock").removeHandler(handler)
    assert (b"x-request-id", b"abc") in start["headers"]
    inside, line = lines
    assert inside["request_id"] == line["request_id"] == "abc"
    shown = {name: line[name] for name in ("method", "route", "status")}
    assert shown == {"method": "GET", "route": "/v1/files/{file_id}", "status": 404}
    assert line["duration_ms"] >= 0
    assert "secret" not in json.dumps(lines)
    assert request_id.get() is None


@pytest.mark.parametrize("given", ["", "a b", "ü", "x" * 129, "a\r\nset-cookie: b"])
def test_ids_that_would_do_harm_are_replaced(given: str) -> None:
    (start, _) = asyncio.run(ask({"x-request-id": given}))
    ((name, value),) = start["headers"]
    assert (name, value[:4]) == (b"x-request-id", b"req_")
