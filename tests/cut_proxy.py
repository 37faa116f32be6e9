"""A TCP proxy on this machine whose line can be cut, and mended, as often as a test likes."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

_PIECE_BYTES = 1 << 16


class CutProxy:
    """Passes bytes between whoever connects and `target`; while it is cut, connections end at once."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._loop = asyncio.new_event_loop()
        self._open: set[asyncio.StreamWriter] = set()
        self._is_cut = False
        self.port = 0

    def cut(self) -> None:
        """Whatever is under way breaks off; new connections are accepted and closed."""
        self._call(self._cut)

    def mend(self) -> None:
        self._is_cut = False

    @contextmanager
    def running(self) -> Iterator["CutProxy"]:
        serving = threading.Thread(target=self._loop.run_forever, name="cut proxy")
        serving.start()
        listening = asyncio.start_server(self._connection, "127.0.0.1", 0)
        server = asyncio.run_coroutine_threadsafe(listening, self._loop).result()
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            self._call(server.close)
            self._call(self._cut)
            asyncio.run_coroutine_threadsafe(self._ended(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            serving.join()
            self._loop.close()

    def _call(self, do: Callable[[], None]) -> None:
        async def call() -> None:
            do()

        asyncio.run_coroutine_threadsafe(call(), self._loop).result()

    def _cut(self) -> None:
        self._is_cut = True
        for writer in self._open:
            writer.transport.abort()

    async def _ended(self) -> None:
        me = asyncio.current_task()
        await asyncio.gather(*(task for task in asyncio.all_tasks() if task is not me))

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut:
            writer.transport.abort()
            return
        there, back = await asyncio.open_connection(*self._target)
        ends = {writer, back}
        self._open |= ends
        await asyncio.gather(_pass_on(reader, back), _pass_on(there, writer))
        self._open -= ends


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while piece := await reader.read(_PIECE_BYTES):
            writer.write(piece)
            await writer.drain()
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
