"""`DocumentReader` in a thread of this process: no bound holds a file that means harm."""

from collections.abc import AsyncGenerator, Callable
from pathlib import Path

from sherlock.rag import parsers
from sherlock.rag.domain.errors import InvalidFile
from sherlock.rag.domain.models import Chunk, ChunkingStrategy, ReadingNotes
from sherlock.rag.reading import Parse, read
from sherlock.rag.threads import run_in_thread
from sherlock.rag.tokens import Cl100kCounter


class InThreadReader:
    def __init__(self, parse: Parse = parsers.parse) -> None:
        self.parse = parse
        self.read_by = "in a thread"
        self._counter = Cl100kCounter()

    async def version(self) -> str:
        return self.read_by

    async def chunks(
        self,
        path: Path,
        filename: str,
        chunking: ChunkingStrategy,
        noted: Callable[[ReadingNotes], None] | None = None,
    ) -> AsyncGenerator[list[Chunk], None]:
        batches = read(path, filename, chunking, self._counter, self.parse, noted)
        try:
            while batch := await run_in_thread(None, next, batches, []):
                yield batch
        except MemoryError:
            raise InvalidFile("Reading the file takes more memory than there is.") from None
