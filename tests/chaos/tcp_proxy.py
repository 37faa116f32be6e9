"""The network between Sherlock and one dependency: it can be cut, fall silent, and come back."""

import asyncio
import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.chaos.background import Background

_PIECE_BYTES = 1 << 16


class TcpProxy:
    """Forwards connections to `port` of this machine to `target`, a port or a Unix socket.

    cut()      every connection is reset, and so is each new one
    stall()    nothing gets through, and nobody is told: what is sent waits
    restore()  what was stalled goes on; connections that were cut are the clients' to make anew
    """

    def __init__(self, target: int | Path, background: Background) -> None:
        self.port = 0
        self.stalls_after = math.inf
        """Bytes that get through, either way, before the network stalls by itself."""
        self._target = target
        self._background = background
        self._is_cut = False
        self._flows = asyncio.Event()
        self._flows.set()
        self._writers: set[asyncio.StreamWriter] = set()

    def cut(self) -> None:
        self._background.run(self._cut())

    def stall(self) -> None:
        self._background.run(self._stall())

    def restore(self) -> None:
        self._background.run(self._restore())

    async def _cut(self) -> None:
        self._is_cut = True
        for writer in self._writers:
            writer.transport.abort()
        self._flows.set()

    async def _stall(self) -> None:
        self._flows.clear()

    async def _restore(self) -> None:
        self._is_cut = False
        self.stalls_after = math.inf
        self._flows.set()

    async def listen(self) -> asyncio.Server:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        return server

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            await self._flows.wait()
            if not self._is_cut:
                await self._forward(reader, writer)
        except OSError:
            pass  # the target is down, or one side broke off: the other one hears of it
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if isinstance(self._target, Path):
            there, to = await asyncio.open_unix_connection(self._target)
        else:
            there, to = await asyncio.open_connection("127.0.0.1", self._target)
        self._writers.add(to)
        try:
            ways = [asyncio.ensure_future(self._pump(*way)) for way in ((reader, to), (there, writer))]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_EXCEPTION)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
        finally:
            self._writers.discard(to)
            to.transport.abort()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while piece := await source.read(_PIECE_BYTES):
            self.stalls_after -= len(piece)
            if self.stalls_after < 0:
                self._flows.clear()
            await self._flows.wait()
            sink.write(piece)
            await sink.drain()
        with suppress(OSError):
            sink.write_eof()


@contextmanager
def tcp_proxy(target: int | Path, background: Background) -> Iterator[TcpProxy]:
    proxy = TcpProxy(target, background)
    server = background.run(proxy.listen())
    try:
        yield proxy
    finally:
        background.loop.call_soon_threadsafe(server.close)
        proxy.cut()
