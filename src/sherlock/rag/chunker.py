"""Document -> chunks: words are packed up to the token limit, and cuts fall at natural places.

Time is linear in the text, and about one section and one chunk are held at a time, so a document of any
length can be chunked while it is parsed.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Final, NamedTuple

import regex

from sherlock.rag.domain.models import Chunk, ChunkingStrategy, PageBreaks, Section
from sherlock.rag.domain.ports import TokenCounter

# How good a place to cut is; the higher, the better.
_INSIDE_WORD: Final = 0
_WORD: Final = 1
_SENTENCE: Final = 2
_LINE: Final = 3
_PARAGRAPH: Final = 4
_HEADING: Final = 5

_STOPS = frozenset(".!?…۔؟।։。！？｡")
_STOPS_WITHOUT_BLANK = frozenset("。！？｡।")
_COMMAS_WITHOUT_BLANK = frozenset("，、；：")
_CLOSING = "'\"”’»)]）」』"

_LONGEST_WORD: Final = 64  # characters; a longer run without blanks is cut into pieces
_PIECE: Final = 16  # characters; at most 64 tokens, since a token is at least one byte of UTF-8
_RUN: Final = 1_024  # characters; graphemes are looked for in so many at once
_LONGEST_GAP: Final = 2_000  # blanks; a chunk ends at more of them, so that they need not be kept

_NOT_BLANK = re.compile(r"\S+")
_GRAPHEME = regex.compile(r"\X")
# Graphemes of a run without blanks (Chinese, Thai, base64, ...), up to a stop or comma where there is one.
_GRAPHEMES = regex.compile(rf"\X{{1,{_PIECE}}}?(?<=[。！？｡।，、；：])|\X{{1,{_PIECE}}}")


class _Unit(NamedTuple):
    """A word, or a piece of a long one, with the blanks before it."""

    gap: str
    text: str
    start: int
    gap_tokens: int
    tokens: int
    cut: int
    """How good it is to cut before it."""
    section: Section


def chunk(sections: Iterable[Section], strategy: ChunkingStrategy, counter: TokenCounter) -> Iterator[Chunk]:
    """Cut a document into chunks while its sections come.

    Chunks are exact substrings of the sections' joined text, in order; each begins and ends with a character
    that is not blank, and together they hold every such character. None exceeds `max_chunk_size_tokens`;
    neighbours share at most `chunk_overlap_tokens`, and nothing where a new heading begins.

    A cut falls at the best place in the chunk's second half: heading, paragraph, line, sentence, word,
    grapheme. Where it would cut a symbol of source code that fits by itself, it falls before that, wherever
    in the chunk. So it does between two records: only a record that does not fit by itself is cut, and
    neighbours share whole ones. The limit must be at least 64 tokens (the API asks for 100), so that any 16
    characters fit.
    """
    packer = _Packer(strategy, counter)
    for unit in _units(sections, counter):
        yield from packer.add(unit)
    yield from packer.flush()


def _units(sections: Iterable[Section], counter: TokenCounter) -> Iterator[_Unit]:
    count: Callable[[str], int] = lru_cache(maxsize=1 << 16)(counter.count)  # most words come again and again
    section_start = 0
    gap = before = ""
    heading: str | None = None
    for section in sections:
        end = 0
        for match in _NOT_BLANK.finditer(section.text):
            gap = (gap + section.text[end : match.start()])[: _LONGEST_GAP + 1]
            start = section_start + match.start()
            for piece in _pieces(match.group(), count):
                cut = _HEADING if section.heading != heading else _cut(before, gap)
                # A single blank and the word after it are one token.
                gap_tokens, tokens = (0, count(gap + piece)) if gap == " " else (count(gap), count(piece))
                yield _Unit(gap, piece, start, gap_tokens, tokens, cut, section)
                start += len(piece)
                heading, before, gap = section.heading, piece, ""
            end = match.end()
        gap = (gap + section.text[end:])[: _LONGEST_GAP + 1]
        section_start += len(section.text)


def _pieces(word: str, count: Callable[[str], int]) -> Iterator[str]:
    """The word itself, or pieces of at most `_PIECE` characters where it is too long to be packed whole."""
    if len(word) <= _PIECE or (len(word) <= _LONGEST_WORD and count(word) <= _PIECE):
        yield word
        return
    for graphemes in _graphemes(word):
        if len(graphemes) <= _PIECE:
            yield graphemes
            continue
        for grapheme in _GRAPHEME.findall(graphemes):
            for at in range(0, len(grapheme), _PIECE):
                yield grapheme[at : at + _PIECE]


def _graphemes(word: str) -> Iterator[str]:
    """Groups of graphemes, found in one run after another: for a flag, all flags before it are counted."""
    start = 0
    while start < len(word):
        run = word[start : start + _RUN]
        groups = _GRAPHEMES.findall(run)
        if len(groups) > 1 and start + _RUN < len(word):
            groups.pop()  # the end of the run may have cut it
        yield from groups
        start += sum(map(len, groups))


def _cut(before: str, gap: str) -> int:
    """How good it is to cut between `before` and what follows the blanks `gap`."""
    if not gap:
        if before[-1:] in _STOPS_WITHOUT_BLANK:
            return _SENTENCE
        return _WORD if before[-1:] in _COMMAS_WITHOUT_BLANK else _INSIDE_WORD
    lines = 0 if gap == " " else len(f"{gap}.".splitlines()) - 1
    if lines:
        return _LINE if lines == 1 else _PARAGRAPH
    return _SENTENCE if before.rstrip(_CLOSING)[-1:] in _STOPS else _WORD


def _join(units: Sequence[_Unit]) -> str:
    return units[0].text + "".join(unit.gap + unit.text for unit in units[1:])


def _tokens(units: Sequence[_Unit]) -> int:
    """Tokens of the units joined, as the sum of their parts: cheap, and seldom too low."""
    return sum(unit.gap_tokens + unit.tokens for unit in units) - units[0].gap_tokens if units else 0


def _page_breaks(units: Sequence[_Unit]) -> PageBreaks:
    """Where the units go on to another page."""
    return tuple(
        (unit.start, unit.section.page)
        for before, unit in pairwise(units)
        if unit.section.page != before.section.page
    )


class _Packer:
    """Collects units and hands out a chunk whenever the next unit does not fit."""

    def __init__(self, strategy: ChunkingStrategy, counter: TokenCounter) -> None:
        self._limit = strategy.max_chunk_size_tokens
        self._overlap = strategy.chunk_overlap_tokens
        self._count = counter.count
        self._window: list[_Unit] = []
        self._shared = 0
        """How many units at the front of the window stand in the last chunk too."""
        self._tokens = 0
        self._index = 0
        self._end = 0
        """Where the last chunk ended."""

    def add(self, unit: _Unit) -> Iterator[Chunk]:
        if len(unit.gap) > _LONGEST_GAP:
            yield from self.flush()
        while self._window and self._tokens + unit.gap_tokens + unit.tokens > self._limit:
            if self._record_needs_room(unit.cut):
                self._begin_without_overlap()
            else:
                yield self._emit(self._before_symbol(unit) or self._best_cut(unit.cut), unit)
        self._tokens += unit.tokens + (unit.gap_tokens if self._window else 0)
        self._window.append(unit)

    def flush(self) -> Iterator[Chunk]:
        """What is left; then the packer is empty."""
        while len(self._window) > self._shared:
            yield self._emit(len(self._window))
        self._window, self._shared, self._tokens = [], 0, 0

    def _best_cut(self, last: int) -> int:
        """How many units of the window make the next chunk; a cut after all of them is worth `last`."""
        best, worth = len(self._window), last
        left = self._tokens
        for at in range(len(self._window) - 1, self._shared, -1):
            left -= self._window[at].gap_tokens + self._window[at].tokens
            if left * 2 < self._limit:
                break
            if self._window[at].cut > worth:
                best, worth = at, self._window[at].cut
        return best

    def _before_symbol(self, waiting: _Unit) -> int | None:
        """How many units stand before the symbol that `waiting` is amid, where that fits by itself."""
        if not waiting.section.whole or waiting.cut == _HEADING:
            return None
        behind = range(len(self._window) - 1, self._shared, -1)
        begin = next((at for at in behind if self._window[at].cut == _HEADING), None)
        if begin is None:
            return None
        sections = {id(unit.section): unit.section.text for unit in [*self._window[begin:], waiting]}
        size = sum(self._count(text.strip()) for text in sections.values())
        return begin if size <= self._limit else None

    def _record_needs_room(self, last: int) -> bool:
        """Whether a record does not fit beside those shared with the last chunk, but may by itself."""
        return (
            self._shared > 0
            and self._window[-1].section.records
            and self._between_records(len(self._window), last) is None
        )

    def _begin_without_overlap(self) -> None:
        del self._window[: self._shared]
        self._shared = 0
        self._tokens = _tokens(self._window)

    def _between_records(self, most: int, last: int) -> int | None:
        """The last cut between records within `most` units that leaves something new in the chunk."""
        if most == len(self._window) and last >= _LINE:
            return most
        longest = min(most, len(self._window) - 1)
        return next((at for at in range(longest, self._shared, -1) if self._window[at].cut >= _LINE), None)

    def _emit(self, size: int, waiting: _Unit | None = None) -> Chunk:
        """Take the first `size` units as a chunk, fewer where they count more joined than one by one.

        What stays leaves room for the unit that is `waiting`.
        """
        while self._count(text := _join(self._window[:size])) > self._limit:
            if size > self._shared + 1:
                size -= 1
            else:
                del self._window[0]
                self._shared -= 1
                size -= 1
        if self._window[size - 1].section.records:
            size = self._between_records(size, waiting.cut if waiting else _HEADING) or size
            text = _join(self._window[:size])
        first, rest = self._window[0], self._window[size:]
        made = Chunk(
            index=self._index,
            text=text,
            start=first.start,
            end=first.start + len(text),
            page=first.section.page,
            heading=first.section.heading,
            gap=first.gap[:_LONGEST_GAP] if first.start > self._end else "",
            page_breaks=_page_breaks(self._window[:size]),
        )
        self._index += 1
        self._end = made.end
        coming = [*rest, waiting] if waiting else rest
        room = self._limit - sum(unit.gap_tokens + unit.tokens for unit in coming)
        shared = []
        if coming and coming[0].cut != _HEADING:
            shared = self._tail(size, min(self._overlap, room))
        self._window = [*shared, *rest]
        self._shared = len(shared)
        self._tokens = _tokens(self._window)
        return made

    def _tail(self, size: int, budget: int) -> list[_Unit]:
        """The units before `size` that the next chunk begins with: from the best place within `budget` on."""
        start = best = size
        tokens = 0
        while start > 1:
            start -= 1
            tokens += self._window[start].tokens
            if tokens > budget:
                break
            if best == size or self._window[start].cut >= self._window[best].cut:
                best = start
            tokens += self._window[start].gap_tokens
        while best < size and self._count(_join(self._window[best:size])) > budget:
            best += 1
        if best < size and self._window[best].section.records and self._window[best].cut < _LINE:
            return []
        return self._window[best:size]
