"""The text of a document, put together again from its chunks, each character at its offset."""

from collections.abc import Iterable
from typing import Protocol


class Piece(Protocol):
    """`document_text[start:end] == text`, with the blanks before it as far as they are known."""

    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def text(self) -> str: ...
    @property
    def gap(self) -> str: ...


def document_text(pieces: Iterable[Piece], start: int = 0) -> str:
    """The document's text from `start` to the end of the last piece; pieces come in order, and may overlap.

    `document_text(pieces)[piece.start : piece.end] == piece.text` for every one of them.
    """
    parts: list[str] = []
    done = start
    for piece in pieces:
        if piece.start > done:
            parts.append(blanks(piece.gap, piece.start - done))
        parts.append(piece.text[max(0, done - piece.start) :])
        done = max(done, piece.end)
    return "".join(parts)


def blanks(known: str, length: int) -> str:
    """As many blanks as stand before a piece, of which the first may be known.

    Of chunks that were stored before gaps were, none are known: line ends stand for them.
    """
    known = known or "\n\n"[:length]
    return known[:length].ljust(length)
