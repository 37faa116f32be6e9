"""The checks themselves: what goes through the proxy is read as it was sent, and a fault in it is found."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp
from tests.conformance.recording import Exchange, Message, recording
from tests.conformance.schema import differences, faults
from tests.serving import served

USER = [{"role": "user", "content": "hello"}]
MODELS = {"object": "list", "data": [{"id": "m", "object": "model", "created": 1, "owned_by": "me"}]}


def exchange(
    method: str, path: str, answer: Any, asked: Any = None, status: int = 200, media_type: str = ""
) -> Exchange:
    headers = {"content-type": media_type or "application/json", "x-request-id": "req_1"}
    body = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
    request = Message(
        path, {"content-type": "application/json"}, json.dumps(asked).encode() if asked else b""
    )
    return Exchange(method, path, status, request, Message("", headers, body, whole=True))


def test_what_fits_the_schema_has_no_fault() -> None:
    assert faults(exchange("GET", "/v1/models", MODELS)) == []


def test_a_body_that_does_not_fit_is_a_fault() -> None:
    (fault,) = faults(exchange("GET", "/v1/models", {"object": "list"}))
    assert fault.startswith("GET /models 200: $: 'data' is a required")
    (fault,) = faults(exchange("GET", "/v1/models/unknown", {"detail": "Not Found"}, status=404))
    assert "'error' is a required" in fault


def test_a_stream_in_another_order_is_a_fault() -> None:
    chunk = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": []}
    stream = f"data: {json.dumps(chunk)}\n\n"
    asked = {"model": "m", "messages": USER, "stream": True}
    found = faults(exchange("POST", "/v1/chat/completions", stream, asked, media_type="text/event-stream"))
    assert found == ["POST /chat/completions 200: the stream does not end with data: [DONE]"]


def test_what_is_wrong_beside_the_body_is_a_fault() -> None:
    page = exchange("GET", "/v1/models", "<h1>Welcome</h1>", media_type="text/html")
    del page.response.headers["x-request-id"]
    assert len(faults(page)) == 2
    assert faults(exchange("GET", "/v1/unheard-of", MODELS)) != []


def test_an_accepted_difference_is_told_apart() -> None:
    file = {
        "id": "file-1",
        "object": "file",
        "bytes": 1,
        "created_at": 1,
        "filename": "a",
        "status": "processed",
    }
    evals = exchange("GET", "/v1/files/file-1", file | {"purpose": "evals"})
    assert faults(evals) == []
    assert len(differences(evals)) == 1
    assert len(faults(exchange("GET", "/v1/files/file-1", file | {"purpose": "fun"}))) == 1


async def test_the_proxy_reads_what_it_passes_on() -> None:
    async def echo(request: Request) -> Response:
        return JSONResponse({"path": request.url.path, "bytes": len(await request.body())})

    async def stream(_: Request) -> Response:
        def pieces() -> Iterator[bytes]:
            yield b"data: 1\n\n"
            yield b": a comment\n\n"

        return StreamingResponse(pieces(), media_type="text/event-stream")

    async def endless(_: Request) -> Response:
        async def pieces() -> AsyncIterator[bytes]:
            while True:
                yield b"data: 1\n\n"
                await asyncio.sleep(0.01)

        return StreamingResponse(pieces(), media_type="text/event-stream")

    @asynccontextmanager
    async def opened() -> AsyncIterator[ASGIApp]:
        yield Starlette(
            routes=[
                Route("/{path:path}/echo", echo, methods=["POST"]),
                Route("/stream", stream),
                Route("/endless", endless),
            ]
        )

    async def sent() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b"x" * 100_000

    with served(opened) as url:
        async with (
            recording(int(url.rpartition(":")[2])) as (port, recorder),
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client,
        ):
            answer = await client.post("/zoo%2Fowl/echo", content=sent())
            streamed = await client.get("/stream", headers={"x-name": "value"})
            async with client.stream("GET", "/endless") as left:
                await anext(left.aiter_bytes())
    assert answer.json() == {"path": "/zoo/owl/echo", "bytes": 300_000}
    first, second, third = recorder.exchanges()
    assert (first.method, first.path, first.status) == ("POST", "/zoo/owl/echo", 200)
    assert (first.request.body, first.response.body) == (b"x" * 300_000, answer.content)
    assert (second.request.headers["x-name"], second.response.media_type) == ("value", "text/event-stream")
    assert second.response.body == streamed.content == b"data: 1\n\n: a comment\n\n"
    assert [one.response.whole for one in (first, second, third)] == [True, True, False]
