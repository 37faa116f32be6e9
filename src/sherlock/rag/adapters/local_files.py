"""`FileStore` in a folder."""

import asyncio
import contextlib
import os
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Final, TypeVar, TypeVarTuple
from urllib.parse import quote, unquote

from sherlock.rag.domain.errors import FileStoreUnavailable, NotFound
from sherlock.rag.threads import run_in_thread

_PIECE_BYTES: Final = 1 << 18
_THREADS: Final = 4
_UNFINISHED: Final = ".unfinished"  # no workspace has this name, see _safe()
_ABANDONED_AFTER_S: Final = 24 * 3600.0

T = TypeVar("T")
Args = TypeVarTuple("Args")


class LocalFileStore:
    """Files at `folder/workspace/file id`, readable by their owner only.

    A file is written elsewhere in the folder, brought to the disk and renamed: it is there whole or not at
    all. What a killed process left unfinished is never visible, and is removed after a day.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="local-files")

    async def close(self) -> None:
        await asyncio.to_thread(self._threads.shutdown)  # waits for calls that are under way

    async def put(self, key: str, data: AsyncIterator[bytes]) -> None:
        path = self._path(key)
        file = await self._run(key, self._begin, undo=_discard)
        try:
            async for piece in data:
                await self._run(key, file.write, piece)
            await self._run(key, _finish, file, path)
        except BaseException:
            await self._run(key, _discard, file)
            raise

    async def size(self, key: str) -> int:
        return (await self._run(key, os.stat, self._path(key))).st_size

    async def read(self, key: str, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        file = await self._run(key, _open, self._path(key), undo=_close)
        try:
            left = await self._run(key, _seek, file, start, end)
            while left > 0 and (piece := await self._run(key, file.read, min(left, _PIECE_BYTES))):
                left -= len(piece)
                yield piece
        finally:
            _close(file)

    async def delete(self, key: str) -> None:
        await self._run(key, _remove, self._path(key))

    async def keys(self) -> AsyncIterator[str]:
        for key in await self._run("", self._stored):
            yield key

    async def check(self) -> None:
        file = await self._run("", self._begin, undo=_discard)
        await self._run("", _discard, file)

    async def _run(
        self, key: str, work: Callable[[*Args], T], *args: *Args, undo: Callable[[T], None] | None = None
    ) -> T:
        """Blocking work in a thread; its errors become the port's."""
        try:
            return await run_in_thread(self._threads, work, *args, undo=undo)
        except FileNotFoundError:
            raise NotFound("File", key.rpartition("/")[2]) from None
        except OSError:
            raise FileStoreUnavailable from None

    def _path(self, key: str) -> Path:
        workspace, _, file_id = key.partition("/")
        return self._folder / _safe(workspace) / _safe(file_id)

    def _begin(self) -> IO[bytes]:
        folder = self._folder / _UNFINISHED
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for left in folder.iterdir():
            with contextlib.suppress(FileNotFoundError):  # another process tidies up too
                if left.stat().st_mtime < time.time() - _ABANDONED_AFTER_S:
                    left.unlink()
        return tempfile.NamedTemporaryFile(dir=folder, delete=False)  # with mode 0600

    def _stored(self) -> list[str]:
        workspaces = [*self._folder.iterdir()] if self._folder.exists() else []
        return [
            f"{unquote(workspace.name)}/{unquote(file.name)}"
            for workspace in workspaces
            if workspace.is_dir() and workspace.name != _UNFINISHED
            for file in workspace.iterdir()
        ]


def _safe(name: str) -> str:
    """The name as one path part: no separator, no dot in front, nothing a file system reads specially."""
    if not name:
        raise ValueError("a key has a workspace and a file id")
    quoted = quote(name, safe="")
    return f"%2E{quoted[1:]}" if quoted.startswith(".") else quoted


def _finish(file: IO[bytes], path: Path) -> None:
    file.flush()
    os.fsync(file.fileno())
    file.close()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    Path(file.name).replace(path)
    if os.name == "posix":  # elsewhere folders cannot be opened, to bring the new name to the disk too
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _discard(file: IO[bytes]) -> None:
    with contextlib.suppress(OSError):  # a full disk fails once more when the rest of the buffer is written
        file.close()
    Path(file.name).unlink(missing_ok=True)


def _seek(file: IO[bytes], start: int, end: int | None) -> int:
    """Go to `start`; return how many bytes are to be read from there."""
    size = os.fstat(file.fileno()).st_size
    file.seek(start)
    return min(size, size if end is None else end) - start


def _open(path: Path) -> IO[bytes]:
    return path.open("rb")


def _close(file: IO[bytes]) -> None:
    file.close()


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
