"""A proxy that passes bytes on untouched and keeps what went through, read as HTTP/1.1 exchanges."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

import httptools

PIECE = 65_536


@dataclass
class Message:
    """One request, or one response."""

    target: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    """Names in lower case; of a repeated one the last stays."""
    body: bytes = b""
    whole: bool = False
    """Whether it came to its end; one side may have closed the connection before."""

    @property
    def media_type(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0]

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Exchange:
    method: str
    path: str
    """Decoded and without the query, as a server sees it."""
    status: int
    request: Message
    response: Message


class _Reader:
    """Reads one direction of one connection; httptools calls the methods that begin with `on_`."""

    def __init__(self, parser: type) -> None:
        self._parser = parser(self)
        self._message = Message()
        self.messages: list[tuple[str, int, Message]] = []
        """Method (of a request), status (of a response) and the message: each whose headers have come."""

    def feed(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self._message = Message()

    def on_url(self, url: bytes) -> None:
        self._message.target += url.decode()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._message.headers[name.decode().lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if isinstance(self._parser, httptools.HttpRequestParser):
            self.messages.append((self._parser.get_method().decode(), 0, self._message))
        else:
            self.messages.append(("", self._parser.get_status_code(), self._message))

    def on_body(self, body: bytes) -> None:
        self._message.body += body

    def on_message_complete(self) -> None:
        self._message.whole = True


class Recorder:
    """Everything that went over the proxy's connections."""

    def __init__(self) -> None:
        self._connections: list[tuple[_Reader, _Reader]] = []

    def exchanges(self) -> list[Exchange]:
        """Those whose response has begun, connection by connection."""
        found = []
        for requests, responses in self._connections:
            for (method, _, request), (_, status, response) in zip(
                requests.messages, responses.messages, strict=False
            ):
                path = unquote(urlsplit(request.target).path)
                found.append(Exchange(method, path, status, request, response))
        return found

    def connected(self) -> tuple[_Reader, _Reader]:
        readers = _Reader(httptools.HttpRequestParser), _Reader(httptools.HttpResponseParser)
        self._connections.append(readers)
        return readers


@asynccontextmanager
async def recording(upstream_port: int) -> AsyncIterator[tuple[int, Recorder]]:
    """The port of a proxy to a server on this machine, and what it records."""
    recorder = Recorder()
    running: set[asyncio.Task[Any]] = set()

    async def passed_on(source: asyncio.StreamReader, target: asyncio.StreamWriter, reader: _Reader) -> None:
        try:
            while piece := await source.read(PIECE):
                reader.feed(piece)
                target.write(piece)
                await target.drain()
            target.write_eof()
        except OSError:
            target.close()  # one end is gone: so is the other, then

    async def connection(client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        running.add(asyncio.current_task())  # type: ignore[arg-type]
        server, to_server = await asyncio.open_connection("127.0.0.1", upstream_port)
        requests, responses = recorder.connected()
        try:
            await asyncio.gather(
                passed_on(client, to_server, requests), passed_on(server, to_client, responses)
            )
        finally:
            to_server.close()
            to_client.close()

    proxy = await asyncio.start_server(connection, "127.0.0.1", 0)
    async with proxy:
        yield proxy.sockets[0].getsockname()[1], recorder
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
