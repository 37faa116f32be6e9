"""File -> batches of chunks: parse and cut, with the errors of every parsing library made ours.

`python -m sherlock.rag.reading` does it in a process of its own; `messages` is what that process and its
parent tell each other.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from sherlock.rag import parsers
from sherlock.rag.chunker import chunk
from sherlock.rag.domain.errors import InvalidFile, SherlockError, Unavailable
from sherlock.rag.domain.models import Chunk, ChunkingStrategy, ReadingNotes, Section
from sherlock.rag.domain.ports import TokenCounter
from sherlock.rag.reading.notes import NoteTaker

BATCH_CHUNKS: Final = 64
"""Chunks that are read, embedded and staged together: what a worker loses that is killed meanwhile.

One that is killed between publishing and completing leaves the whole job to be done again.
"""

BATCH_CHARS: Final = 1 << 20
"""A batch with this much text ends early: chunks of many blanks are long."""

Parse = Callable[[Path, str], Iterator[Section]]


def read(
    path: Path,
    filename: str,
    chunking: ChunkingStrategy,
    counter: TokenCounter,
    parse: Parse = parsers.parse,
    noted: Callable[[ReadingNotes], None] | None = None,
) -> Iterator[list[Chunk]]:
    """The chunks of a file in batches, none of them empty; each is made when it is asked for.

    `noted` is called after the last one. Raises `IngestError` where the file is at fault, `Unavailable` where
    the copy of it cannot be read, and `MemoryError`.
    """
    taker = NoteTaker()
    chunks = chunk(taker.listen(parse(path, filename)), chunking, counter)
    while batch := _next_batch(chunks):
        yield batch
    if noted is not None:
        noted(taker.notes)


def _next_batch(chunks: Iterator[Chunk]) -> list[Chunk]:
    batch: list[Chunk] = []
    chars = 0
    try:
        for made in chunks:
            batch.append(made)
            chars += len(made.text)
            if len(batch) == BATCH_CHUNKS or chars >= BATCH_CHARS:
                break
    except (SherlockError, MemoryError):
        raise
    except OSError:
        raise Unavailable("The worker cannot read its copy of the file.") from None
    except Exception:
        # Its text may quote the document, so nothing of it is passed on.
        raise InvalidFile("The file is damaged and cannot be read.") from None
    return batch
