"""Bodies that are longer than memory should have to hold."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request

from sherlock import http_errors
from sherlock.body_limit import BodyLimit

app = FastAPI()
app.add_middleware(BodyLimit, max_bytes=100)
http_errors.install(app)


@app.post("/v1/vector_stores")
async def create(body: dict[str, Any]) -> int:
    return len(body)


@app.post("/v1/files")
async def upload(request: Request) -> int:
    return sum([len(piece) async for piece in request.stream()])


def body(size: int) -> bytes:
    return b'{"a": "%b"}' % (b"x" * (size - 9))


async def in_pieces(content: bytes) -> AsyncIterator[bytes]:
    for at in range(0, len(content), 30):
        yield content[at : at + 30]


def client(root_path: str = "") -> httpx.AsyncClient:
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app=app, root_path=root_path), base_url="http://sherlock"
    )


@pytest.mark.parametrize("announced", [True, False])
async def test_the_limit_is_the_longest_that_is_read(announced: bool) -> None:
    headers = {"content-type": "application/json"}
    async with client() as http:
        for size, status in ((100, 200), (101, 413)):
            content = body(size) if announced else in_pieces(body(size))
            answer = await http.post("/v1/vector_stores", content=content, headers=headers)
            assert answer.status_code == status, answer.text
    assert answer.json() == {
        "error": {
            "message": "The body is too large. Maximum size is 100 bytes.",
            "type": "invalid_request_error",
            "param": None,
            "code": None,
        }
    }


async def test_an_announced_body_is_refused_unread() -> None:
    async def unread() -> AsyncIterator[bytes]:
        raise AssertionError("it was read")
        yield b""

    async with client() as http:
        headers = {"content-type": "application/json", "content-length": "101"}
        answer = await http.post("/v1/vector_stores", content=unread(), headers=headers)
    assert answer.status_code == 413


@pytest.mark.parametrize("root_path", ["", "/behind"])
async def test_uploads_are_measured_elsewhere(root_path: str) -> None:
    async with client(root_path) as http:
        answer = await http.post(f"{root_path}/v1/files", content=b"x" * 1000)
    assert (answer.status_code, answer.json()) == (200, 1000)
