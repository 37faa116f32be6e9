"""A small, fast OpenAI-compatible server in a process of its own: `python -m tests.paced_upstream PORT`.

A request says how many `pieces` it wants, and how many seconds apart (`pace_s`); piece number `i` is the text
`"i "`. It does so little that what is measured in front of it is what stands in front of it.
"""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
from tests.integration.processes import free_port

REPO = Path(__file__).resolve().parents[1]
USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
MODELS = {"object": "list", "data": [{"id": "paced", "object": "model", "created": 1, "owned_by": "x"}]}


def chunk(delta: dict[str, str], reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "paced"}
    return b"data: " + json.dumps(head | {"choices": [choice]}).encode() + b"\n\n"


def text(pieces: int) -> str:
    return "".join(f"{piece} " for piece in range(pieces))


async def events(pieces: int, pace_s: float) -> AsyncIterator[bytes]:
    for piece in range(pieces):
        yield chunk({"content": f"{piece} "})
        if pace_s:
            await asyncio.sleep(pace_s)
    yield chunk({}, "stop")
    yield b'data: {"id":"c","choices":[],"usage":%b}\n\n' % json.dumps(USAGE).encode()
    yield b"data: [DONE]\n\n"


def whole(pieces: int) -> bytes:
    message = {"role": "assistant", "content": text(pieces), "refusal": None}
    choice = {"index": 0, "finish_reason": "stop", "logprobs": None, "message": message}
    head = {"id": "c", "object": "chat.completion", "created": 1, "model": "paced"}
    return json.dumps(head | {"choices": [choice], "usage": USAGE}).encode()


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One connection: requests with a `content-length`, one after the other."""
    with suppress(ConnectionError, asyncio.IncompleteReadError):
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = next(
                (line[16:] for line in head.split(b"\r\n") if line[:15] == b"content-length:"), b"0"
            )
            body = json.loads(await reader.readexactly(int(length)) or "{}")
            await answer(body, head.startswith(b"get"), writer)
    writer.close()


async def answer(body: dict[str, object], models: bool, writer: asyncio.StreamWriter) -> None:
    pieces, pace_s = int(str(body.get("pieces", 10))), float(str(body.get("pace_s", 0)))
    if models or not body.get("stream"):
        said = json.dumps(MODELS).encode() if models else whole(pieces)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n")
        writer.write(b"content-length: %d\r\n\r\n%b" % (len(said), said))
        await writer.drain()
        return
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
    async for event in events(pieces, pace_s):
        writer.write(b"%x\r\n%b\r\n" % (len(event), event))
        await writer.drain()
    writer.write(b"0\r\n\r\n")
    await writer.drain()


async def main(port: int) -> None:
    server = await asyncio.start_server(serve, "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


@contextmanager
def paced_upstream() -> Iterator[str]:
    """Its address, while it runs."""
    port = free_port()
    environ = os.environ | {"PYTHONPATH": f"{REPO}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    running = subprocess.Popen(
        [sys.executable, "-m", "tests.paced_upstream", str(port)], env=environ, cwd=REPO
    )
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and running.poll() is None:
            with suppress(httpx.TransportError):
                httpx.get(f"{url}/v1/models", trust_env=False)
                break
            time.sleep(0.05)
        yield url
    finally:
        running.terminate()
        running.wait(10)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
