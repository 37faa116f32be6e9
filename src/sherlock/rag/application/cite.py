"""The answer and the passages it was given -> citations, as pure functions."""

import bisect
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sherlock.rag.application.agreement import SUPPORT_THRESHOLD, agree, support, words
from sherlock.rag.application.markers import MARKER, markers, numbers
from sherlock.rag.application.sentences import Span, sentences
from sherlock.rag.domain.models import Citation, Passage

QUOTE_SENTENCES = 3
"""Longest quote, in sentences."""
MOST_COMPARED = 16
"""Quotes that are compared with one statement clause by clause, those with most of its words first."""


def citations(answer: str, found: Sequence[Passage]) -> tuple[Citation, ...]:
    """What the answer rests on, in the order of the text.

    Markers count where there are any with the number of a passage. A small model writes none, or only wrong
    ones; then each sentence is attributed to the passage that says it, and one that none says to nothing.
    """
    if not answer.strip() or not found:
        return ()
    candidates = {passage.number: Quotable(passage, quotes(passage)) for passage in found}
    return tuple(marked_citations(answer, candidates) or attributed_citations(answer, candidates))


@dataclass(frozen=True, slots=True)
class Quotable:
    """A passage, and what can be quoted of it."""

    passage: Passage
    spans: Sequence[Span]

    def text(self, span: Span) -> str:
        return self.passage.text[span.start : span.end]


def quotes(passage: Passage) -> list[Span]:
    """Every run of one to `QUOTE_SENTENCES` neighbouring sentences of the passage, the shorter ones first."""
    single = sentences(passage.text)
    return [
        Span(run[0].start, run[-1].end, frozenset().union(*(sentence.words for sentence in run)))
        for length in range(1, QUOTE_SENTENCES + 1)
        for run in (single[at : at + length] for at in range(len(single) - length + 1))
    ]


# ── with markers ────────────────────────────────────────────────────────────


def marked_citations(answer: str, candidates: dict[int, Quotable]) -> list[Citation]:
    """One citation for each number of each marker, at the marker's place."""
    statements = sentences(answer)
    found = []
    for marker in markers(answer):
        said = statement_before(marker, answer, statements)
        for number in numbers(marker[0]):
            quotable = candidates.get(number)
            if quotable and quotable.spans:
                found.append(citation(*marker.span(), quotable.passage, best_quote(said, quotable)))
    return found


def statement_before(marker: re.Match[str], answer: str, statements: Sequence[Span]) -> str:
    """What a marker stands behind, also where a full stop stands between: `It is blue. [1]`."""
    at = bisect.bisect_right(statements, marker.start(), key=lambda statement: statement.start) - 1
    while at >= 0:
        said = MARKER.sub(" ", answer[statements[at].start : marker.start()])
        if words(said):
            return said
        at -= 1
    return ""


def best_quote(said: str, quotable: Quotable) -> Span:
    """The shortest of the spans that hold most of what is said; one that agrees, where there is one."""
    of_statement = words(said)
    best = sorted(quotable.spans, key=lambda span: (-len(of_statement & span.words), span.end - span.start))
    agreeing = (
        span
        for span in best[:MOST_COMPARED]
        if of_statement & span.words and agree(said, quotable.text(span))
    )
    return next(agreeing, best[0])


# ── without markers ─────────────────────────────────────────────────────────


def attributed_citations(answer: str, candidates: dict[int, Quotable]) -> Iterator[Citation]:
    """One citation for each sentence that a quote supports, at the sentence's place."""
    for statement in sentences(answer):
        said = MARKER.sub(" ", answer[statement.start : statement.end])
        if best := supporting(said, candidates):
            quotable, span = best
            yield citation(statement.start, statement.end, quotable.passage, span)


def supporting(said: str, candidates: dict[int, Quotable]) -> tuple[Quotable, Span] | None:
    """The quote that holds most of the statement's words and agrees with it; the shortest of equals."""
    of_statement = words(said)
    able = [
        (-share, span.end - span.start, quotable, span)
        for quotable in candidates.values()
        for span in quotable.spans
        if (share := support(of_statement, span.words)) >= SUPPORT_THRESHOLD
    ]
    able.sort(key=lambda entry: entry[:2])
    agreeing = (
        (quotable, span) for _, _, quotable, span in able[:MOST_COMPARED] if agree(said, quotable.text(span))
    )
    return next(agreeing, None)


def citation(start: int, end: int, passage: Passage, quote: Span) -> Citation:
    quote_start = passage.start + quote.start
    part = passage.part_at(quote_start, passage.start + quote.end)
    found = part.candidate
    return Citation(
        start=start,
        end=end,
        file_id=found.file_id,
        filename=found.filename,
        vector_store_id=found.vector_store_id,
        chunk_index=found.chunk_index,
        quote=passage.text[quote.start : quote.end],
        quote_start=quote_start,
        page=found.page_at(quote_start),
        score=part.score,
    )
