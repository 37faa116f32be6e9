"""`DocumentReader` in processes of their own, with bounds on memory and time.

A file can make a library hang, crash or take all memory; here it takes a process along that holds nothing
else, and fails alone. Processes are kept warm from file to file (a new one takes some 0.7 s) and replaced
before anything can gather in them. The pipe between is bounded, so a slow encoder holds the parser back.
"""

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from pathlib import Path
from time import monotonic
from typing import Final

from sherlock.rag.adapters.reading_process.child import Cause, Child, Died
from sherlock.rag.domain.errors import IngestError, InvalidFile, SherlockError
from sherlock.rag.domain.models import Chunk, ChunkingStrategy, ReadingNotes
from sherlock.rag.reading import messages
from sherlock.rag.reading.fingerprint import fingerprint
from sherlock.rag.threads import run_in_thread

MOST_FILES: Final = 500
MOST_BYTES: Final = 1 << 30
MOST_RESIDENT_BYTES: Final = 256 << 20
"""A process that has read as much, or holds as much between two files, is replaced (it begins with 80 MB)."""

log = logging.getLogger(__name__)


class ProcessReader:
    """As many processes as files are read at once.

    `memory_bytes` is what one may hold; `timeout_s` bounds both its processor time for one file and the time
    that the caller spends waiting for it. With `ocr_languages`, as Tesseract names them (`deu+eng`), pages of
    a PDF that are pictures are read, up to `ocr_pages` of a file. `module` is run as the process (see
    `sherlock.rag.reading`).
    """

    def __init__(
        self,
        *,
        memory_bytes: int,
        timeout_s: float,
        ocr_languages: str = "",
        ocr_pages: int = 0,
        module: str = "sherlock.rag.reading",
    ) -> None:
        self._memory_bytes = memory_bytes
        self._timeout_s = timeout_s
        self._module = module
        self._limits = (str(timeout_s), ocr_languages, str(ocr_pages))
        self._idle: list[Child] = []
        self._closed = False

    async def version(self) -> str:
        return await run_in_thread(None, fingerprint, *self._limits[1:])

    async def chunks(
        self,
        path: Path,
        filename: str,
        chunking: ChunkingStrategy,
        noted: Callable[[ReadingNotes], None] | None = None,
    ) -> AsyncGenerator[list[Chunk], None]:
        request = messages.Read(path, filename, chunking)
        next_index = 0
        for last_try in (False, True):
            child = await self._take()
            try:
                async with aclosing(self._batches(child, request, noted)) as batches:
                    async for batch in batches:
                        if batch[0].index == next_index:  # a second try begins with what is known already
                            next_index += len(batch)
                            yield batch
                await self._put_back(child)
                return
            except Died as death:
                if last_try or not _may_be_innocent(child, death.cause):
                    raise self._verdict(death.cause) from None
                log.warning("a file is read once more", extra={"cause": death.cause})
            except SherlockError:
                await self._put_back(child)
                raise
            finally:
                if child not in self._idle:
                    await child.end()

    async def close(self) -> None:
        """End the processes that read nothing; the others end with their files."""
        self._closed = True
        while self._idle:
            await self._idle.pop().end()

    async def _batches(
        self, child: Child, request: messages.Read, noted: Callable[[ReadingNotes], None] | None
    ) -> AsyncGenerator[list[Chunk], None]:
        """Raises `Died`, and what the process says is wrong with the file."""
        await child.ask(request, await run_in_thread(None, _size, request.path))
        left_s = self._timeout_s
        while True:
            began = monotonic()
            answer = await child.answer(left_s)
            left_s -= monotonic() - began  # the time between two questions is the caller's
            match answer:
                case messages.Batch(chunks):
                    yield chunks
                case messages.Failure(error):
                    raise error
                case messages.OutOfMemory():
                    raise Died("memory")
                case messages.End(notes):
                    if noted is not None:
                        noted(notes)
                    return
                case messages.Ready():
                    raise Died("crash")

    async def _take(self) -> Child:
        while self._idle:
            child = self._idle.pop()
            if child.alive:
                return child
            await child.end()
        return await Child.start(self._module, self._memory_bytes, *self._limits)

    async def _put_back(self, child: Child) -> None:
        resident = await child.rest()
        worn = child.files >= MOST_FILES or child.bytes >= MOST_BYTES or resident >= MOST_RESIDENT_BYTES
        if not (worn or self._closed):
            self._idle.append(child)

    def _verdict(self, cause: Cause) -> IngestError:
        match cause:
            case "memory":
                allowed = self._memory_bytes >> 20
                return InvalidFile(f"Reading the file takes more memory than the {allowed} MiB it may take.")
            case "time":
                return InvalidFile(
                    f"Reading the file takes longer than the {self._timeout_s:g} s it may take."
                )
            case "crash":
                return InvalidFile("The parser crashed on the file.")
            case "killed":
                return InvalidFile("The parser was killed while it read the file, twice.")


def _may_be_innocent(child: Child, cause: Cause) -> bool:
    """Whether a file may be read in another process: this one was killed, or had read other files before."""
    return cause == "killed" or (cause != "time" and child.files > 1)


def _size(path: Path) -> int:
    """0 for a file that is not there: the process that reads it will say so."""
    try:
        return path.stat().st_size
    except OSError:
        return 0
