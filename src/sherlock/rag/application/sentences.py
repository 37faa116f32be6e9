"""Sentences of any script, with the words in them."""

from collections.abc import Iterator
from dataclasses import dataclass

import regex

from sherlock.rag.application.agreement import words

# A run of stops is taken whole and from its start or not at all: no part of it can end a sentence where the
# whole does not, and trying each takes the square of its length.
SENTENCE_END = regex.compile(
    r"""
    (?<![.!?…]) [.!?…]++ ["'”’»)\]]*+ (?=\s|$)
    | [。！？]+ [”’」』）]*
    | \n\s*\n\s* | \n\s* (?!\s|\p{Ll})      # what goes on small in the next line goes on
    | $
    """,
    regex.VERBOSE,
)
LONGEST_OVER_LINES = 400
"""Characters of a sentence that spans lines: what is longer is no prose, and its lines stand alone."""


@dataclass(frozen=True, slots=True)
class Span:
    """`text[start:end]`, without blanks around it, and its `words`."""

    start: int
    end: int
    words: frozenset[str]


def sentences(text: str) -> list[Span]:
    """In order; together they hold every character that is not blank."""
    return [Span(start, end, words(text[start:end])) for start, end in sentence_bounds(text)]


def sentence_bounds(text: str) -> Iterator[tuple[int, int]]:
    """Where each of the `sentences` starts and ends."""
    start = 0
    for match in SENTENCE_END.finditer(text):
        piece = text[start : match.end()]
        lines = piece.splitlines(keepends=True) if len(piece.strip()) > LONGEST_OVER_LINES else [piece]
        for line in lines:
            if line.strip():
                yield start + len(line) - len(line.lstrip()), start + len(line.rstrip())
            start += len(line)
