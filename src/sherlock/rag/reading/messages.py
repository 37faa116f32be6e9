"""What a reading process and its parent tell each other: JSON behind its length, over pipes.

The parent trusts nothing that comes out: the process reads files of strangers, and might have been taken over
by one. So no pickle, a bound on every message, and each value is looked at.

    parent -> child   read       {"path", "filename", "chunking": [chunk tokens, overlap tokens]}
    child -> parent   ready      {"ready": true}, once
                      batch      {"chunks": [[index, text, start, end, page, heading, gap, page breaks], ...]}
                      end        {"end": [encoding, page count, skipped pages, OCR pages]}
                      failure    {"failure": kind, "message"}
"""

import json
import re
import struct
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

from sherlock.rag.domain.errors import IngestError, InvalidFile, SherlockError, Unavailable, UnsupportedFile
from sherlock.rag.domain.models import Chunk, ChunkingStrategy, ReadingNotes

HEADER: Final = struct.Struct(">I")
"""The length of what follows, in bytes."""

LONGEST: Final = 32 << 20
"""Bytes of a message: a batch of the largest chunks, each of their characters escaped, is shorter."""

_NAME: Final = re.compile(r"[a-z0-9_-]{0,40}")
_PAGES: Final = re.compile(r"[0-9, -]{0,100000}")

_FAILURES: Final[dict[str, type[SherlockError]]] = {
    "server_error": IngestError,
    "unsupported_file": UnsupportedFile,
    "invalid_file": InvalidFile,
    "unavailable": Unavailable,
}


class Garbled(Exception):
    """Not a message that the other side could have meant."""


class Read(NamedTuple):
    """Read this file."""

    path: Path
    filename: str
    chunking: ChunkingStrategy


class Ready(NamedTuple):
    """Everything is loaded."""


class Batch(NamedTuple):
    chunks: list[Chunk]


class End(NamedTuple):
    """The file is read."""

    notes: ReadingNotes


class Failure(NamedTuple):
    """The file cannot be read; another one may be asked for."""

    error: SherlockError


class OutOfMemory(NamedTuple):
    """A piece of memory was refused; the process is in no state to read on."""


Answer = Ready | Batch | End | Failure | OutOfMemory


def pack_read(read: Read) -> bytes:
    chunking = [read.chunking.max_chunk_size_tokens, read.chunking.chunk_overlap_tokens]
    return _pack({"path": str(read.path), "filename": read.filename, "chunking": chunking})


def pack_answer(answer: Answer) -> bytes:
    match answer:
        case Batch(chunks):
            return _pack({"chunks": [_row(one) for one in chunks]})
        case Failure(error):
            kind = error.code if isinstance(error, IngestError) else "unavailable"
            return _pack({"failure": kind, "message": error.message})
        case OutOfMemory():
            return _pack({"failure": "memory", "message": ""})
        case Ready():
            return _pack({"ready": True})
        case End(notes):
            return _pack({"end": [notes.encoding, notes.page_count, notes.skipped_pages, notes.ocr_pages]})


def body_length(header: bytes) -> int:
    """Raises `Garbled` for more than any message has."""
    (length,) = HEADER.unpack(header)
    if length > LONGEST:
        raise Garbled
    return int(length)


def unpack_read(body: bytes) -> Read:
    match _load(body):
        case {"path": str(path), "filename": str(filename), "chunking": [int(size), int(overlap)]}:
            return Read(Path(path), filename, ChunkingStrategy(size, overlap))
    raise Garbled


def unpack_answer(body: bytes) -> Answer:
    """Raises `Garbled`."""
    match _load(body):
        case {"chunks": [_, *_] as rows}:
            return Batch([_chunk(row) for row in rows])
        case {"failure": "memory"}:
            return OutOfMemory()
        case {"failure": str(kind), "message": str(message)} if kind in _FAILURES:
            return Failure(_FAILURES[kind](message))
        case {"ready": True}:
            return Ready()
        case {"end": [str() | None as encoding, int() | None as pages, str(skipped), str(recognized)]} if (
            _NAME.fullmatch(encoding or "") and _PAGES.fullmatch(skipped) and _PAGES.fullmatch(recognized)
        ):
            return End(ReadingNotes(encoding, pages, skipped, recognized))
    raise Garbled


def receive(stream: BinaryIO) -> bytes | None:
    """The body of the next message; `None` when the other side has gone. Blocks."""
    header = stream.read(HEADER.size)
    if len(header) < HEADER.size:
        return None
    length = body_length(header)
    body = stream.read(length)
    return body if len(body) == length else None


def _row(one: Chunk) -> tuple[Any, ...]:
    return one.index, one.text, one.start, one.end, one.page, one.heading, one.gap, one.page_breaks


def _chunk(row: Any) -> Chunk:
    match row:
        case [
            int(index), str(text), int(start), int(end), int() | None as page, str() | None as heading,
            str(gap), list(breaks),
        ] if not gap.strip():  # fmt: skip
            return Chunk(index, text, start, end, page, heading, gap, tuple(map(_page_break, breaks)))
    raise Garbled


def _page_break(pair: Any) -> tuple[int, int | None]:
    match pair:
        case [int(start), int() | None as page]:
            return start, page
    raise Garbled


def _pack(value: dict[str, Any]) -> bytes:
    body = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
    return HEADER.pack(len(body)) + body


def _load(body: bytes) -> Any:
    try:
        return json.loads(body.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError):
        raise Garbled from None
