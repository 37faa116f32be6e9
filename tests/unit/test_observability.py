"""What a log line holds of a request, and what it does not."""

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from tests.serving import settings_for

from sherlock.main import create_app
from sherlock.observability import JsonFormatter, RequestContext, request_id
from sherlock.rag.domain.errors import DatabaseUnavailable


class Route:
    path = "/v1/files/{file_id}"


class HealthRoute:
    path = "/health/ready"


async def healthy(scope: Scope, _: Receive, send: Send) -> None:
    scope["route"] = HealthRoute()
    await send({"type": "http.response.start", "status": 200, "headers": []})


async def answer(scope: Scope, _: Receive, send: Send) -> None:
    scope["route"] = Route()
    logging.getLogger("sherlock").info("inside")
    await send({"type": "http.response.start", "status": 404, "headers": []})
    await send({"type": "http.response.body", "body": b""})


async def ask(headers: dict[str, str], app: ASGIApp = answer) -> list[Message]:
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
    await RequestContext(app)(scope, receive, send)
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


def test_whoever_polls_the_health_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        asyncio.run(ask({}, healthy))
    lines = [record for record in caplog.records if record.name == "sherlock.observability"]
    assert [(line.levelno, line.message) for line in lines] == [(logging.DEBUG, "request")]


SECRET = "the text of a document"


def shown(name: str, level: int, message: str, module: str = "x", **more: Any) -> dict[str, Any]:
    record = logging.LogRecord(name, level, f"{module}.py", 1, message, None, more.pop("exc_info", None))
    record.__dict__.update(more)
    line: dict[str, Any] = json.loads(JsonFormatter().format(record))
    return line


def test_other_libraries_say_only_who_and_how_grave() -> None:
    error = ValueError(SECRET)
    for name in ("asyncio", "urllib3.connectionpool", "sqlalchemy.engine", "sherlocked", "uvicorn.error"):
        line = shown(name, logging.ERROR, SECRET, exc_info=(ValueError, error, None), statement=SECRET)
        del line["time"]
        assert line == {"level": "error", "logger": name, "error": "ValueError"}


def test_our_own_lines_and_those_of_start_and_stop_are_whole() -> None:
    assert shown("sherlock.worker", logging.INFO, "claimed", job_id=5)["job_id"] == 5
    assert shown("sherlock.worker", logging.INFO, "claimed")["message"] == "claimed"
    assert shown("uvicorn.error", logging.INFO, "Shutting down", "server")["message"] == "Shutting down"
    assert "message" in shown("uvicorn.error", logging.ERROR, "address already in use", "server")
    assert "message" in shown("uvicorn.error", logging.INFO, "Application startup complete.", "on")
    assert "message" not in shown("uvicorn.error", logging.ERROR, f"Traceback: {SECRET}", "on")


async def test_what_uvicorn_says_is_recognised(caplog: pytest.LogCaptureFixture) -> None:
    """By the modules it says it in, which are uvicorn's own affair."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "lifespan.startup.failed", "message": SECRET})

    with caplog.at_level(logging.INFO, "uvicorn.error"):
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="on", port=0))
        with pytest.raises(SystemExit):
            await server.serve()
    lines = [json.loads(JsonFormatter().format(record)) for record in caplog.records]
    assert any("Started server process" in line.get("message", "") for line in lines)
    assert any("Waiting for application startup" in line.get("message", "") for line in lines)
    assert SECRET in caplog.text
    assert SECRET not in json.dumps(lines)


async def test_a_start_that_fails_says_why(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """uvicorn's own line holds the whole traceback, and is cut for that."""
    in_the_way = tmp_path / "data"
    in_the_way.write_text("not a folder")
    app = create_app(settings_for(in_the_way, rag_enabled=True))
    with caplog.at_level(logging.ERROR), pytest.raises(DatabaseUnavailable) as raised:
        async with app.router.lifespan_context(app):
            pass
    lines = [json.loads(JsonFormatter().format(record)) for record in caplog.records]
    assert {"DatabaseUnavailable": raised.value.message} in [
        {line.get("error"): line.get("reason")} for line in lines
    ]
