"""The text of a document, put together again from its chunks, each character at its offset."""

from collections.abc import Iterable

from sherlock.rag.domain.models import Chunk


def document_text(chunks: Iterable[Chunk]) -> str:
    """The document's text up to its last character that is not blank, from its chunks in order.

    `document_text(chunks)[chunk.start : chunk.end] == chunk.text` for every one of them.
    """
    parts: list[str] = []
    done = 0
    for chunk in chunks:
        if chunk.start > done:
            parts.append(blanks(chunk.gap, chunk.start - done))
        parts.append(chunk.text[max(0, done - chunk.start) :])
        done = max(done, chunk.end)
    return "".join(parts)


def blanks(known: str, length: int) -> str:
    """As many blanks as stand between two chunks, of which the first may be known.

    Chunks that were stored before gaps were know none: line ends stand for them.
    """
    known = known or "\n\n"[:length]
    return known[:length].ljust(length)
