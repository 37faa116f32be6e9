"""Sentences of any script, with the terms in them."""

import re
from dataclasses import dataclass

from sherlock.rag.terms import terms

SENTENCE_END = re.compile(r"[.!?…]+[\"'”’»)\]]*(?=\s|$)|[。！？]+[”’」』）]*|\n\s*|$")


@dataclass(frozen=True, slots=True)
class Span:
    """`text[start:end]`, without blanks around it, and the terms in it."""

    start: int
    end: int
    terms: frozenset[str]


def sentences(text: str) -> list[Span]:
    """In order; together they hold every character that is not blank."""
    found, start = [], 0
    for match in SENTENCE_END.finditer(text):
        piece = text[start : match.end()]
        if piece.strip():
            begin = start + len(piece) - len(piece.lstrip())
            end = start + len(piece.rstrip())
            found.append(Span(begin, end, frozenset(terms(text[begin:end]))))
        start = match.end()
    return found
