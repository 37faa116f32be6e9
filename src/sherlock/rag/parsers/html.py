"""HTML by libxml2: the words a reader sees, a section for each heading.

The standard library's parser starts over at every piece of an unclosed tag, so that 40 KB take half a minute.
"""

import codecs
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Final

from lxml import etree

from sherlock.rag.domain.errors import InvalidFile
from sherlock.rag.domain.models import Section
from sherlock.rag.parsers import text
from sherlock.rag.parsers.html_table import HtmlTable

_UNSEEN: Final = frozenset({"script", "style", "template", "noscript", "svg"})
_PARAGRAPHS: Final = """
    title p div section article main aside header footer nav ul ol dl table blockquote pre form fieldset
    figure hr h1 h2 h3 h4 h5 h6
"""
_LINES: Final = "br li tr dt dd option caption figcaption legend"
_BREAKS: Final = dict.fromkeys(_LINES.split(), "\n") | dict.fromkeys(_PARAGRAPHS.split(), "\n\n")
_HEADING: Final = re.compile("h[1-6]")
_LONGEST_HEADING: Final = 1_000  # characters; what goes on longer is a heading that was never closed
_LONGEST_TABLE: Final = 1 << 20  # characters held until its end; the rows of a longer one are not named
_DEEPEST: Final = 2_000  # libxml2 searches all open elements at every end tag; browsers go 512 deep
_DECLARED: Final = re.compile(
    rb"<(?:meta|\?xml)[^>]{0,200}?(?:charset|encoding)\s*=\s*[\"']?\s*([\w-]{2,40})", re.IGNORECASE
)


def parse(path: Path) -> Iterator[Section]:
    """Scripts and styles are left out; the cells of a table row are set apart by `|`."""
    with path.open("rb") as file:
        declared = _declared_encoding(file.read(4096))
    with text.open_text(path, declared=declared) as file:
        yield text.decoded_from(file)
        yield from parse_text(iter(partial(file.read, text.BLOCK_CHARS), ""))


def parse_pieces(pieces: Iterable[bytes]) -> Iterator[Section]:
    """A page that lies in another file; without a mark or declaration it is UTF-8, as XHTML is."""
    whole = iter(pieces)
    first = next(whole, b"")
    encoding = text.by_mark(first[:4096]) or _declared_encoding(first[:4096]) or "utf-8"
    yield from parse_text(codecs.iterdecode(chain([first], whole), encoding, errors="replace"))


def parse_text(blocks: Iterable[str]) -> Iterator[Section]:
    """A page that is decoded already."""
    reader = _Reader()
    parser = etree.HTMLParser(encoding="utf-8", target=reader)
    parser.feed(b"\n")  # so that a file without anything is no error of its own
    for block in blocks:
        parser.feed(block.encode(errors="replace"))
        if reader.depth > _DEEPEST:
            raise InvalidFile("The elements of the HTML page are nested too deeply.")
        yield from reader.take()
    parser.close()
    yield from reader.take()


def _declared_encoding(head: bytes) -> str | None:
    found = _DECLARED.search(head)
    try:
        name = codecs.lookup(found[1].decode("ascii", "replace")).name if found else None
        return name if name and codecs.lookup(name)._is_text_encoding else None
    except LookupError:
        return None


class _Reader:
    """What the parser tells its events to; every element that starts also ends."""

    def __init__(self) -> None:
        self.depth = 0
        """Elements that are open."""
        self._done: list[Section] = []
        self._text: list[str] = []
        self._size = 0
        self._break = ""
        """Blanks due before the next word."""
        self._headings: list[tuple[int, str]] = []
        self._heading: list[str] | None = None
        """Words of the heading that is being read."""
        self._unseen = 0
        self._preformatted = 0
        self._table: HtmlTable | None = None
        """The open table, while it may still be one of names and values."""
        self._tables = 0
        """How many are open."""
        self._table_at = 0
        """How many pieces of text stand before it."""

    def take(self) -> list[Section]:
        """The sections that are complete."""
        done, self._done = self._done, []
        return done

    def close(self) -> None:
        self._end_section()

    def _end_section(self) -> None:
        self._table = None  # too large a table, or one for the layout of a page
        heading = " > ".join(words for _, words in self._headings) or None
        self._done += text.gather(self._text, heading)
        self._text, self._size = [], 0

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        self.depth += 1
        self._unseen += tag in _UNSEEN
        self._preformatted += tag == "pre"
        self._set_apart(_BREAKS.get(tag, ""))
        if self._table:
            self._table.start(tag, attributes)
            self._table.data(_BREAKS.get(tag, ""))
        if _HEADING.fullmatch(tag):
            self._end_section()
            self._heading = []
        elif tag in ("td", "th") and self._break != "\n" and self._text and not self._unseen:
            self._write(" | ")
        elif tag == "table":
            self._tables += 1
            self._table, self._table_at = HtmlTable() if self._tables == 1 else None, len(self._text)
        elif tag == "img" and (alternative := attributes.get("alt")):
            self.data(f" {alternative} ")

    def end(self, tag: str) -> None:
        self.depth -= 1
        self._unseen -= tag in _UNSEEN
        self._preformatted -= tag == "pre"
        if _HEADING.fullmatch(tag) and self._heading is not None:
            level, words = int(tag[1]), " ".join("".join(self._heading).split())
            self._heading = None
            if words:
                self._headings = [kept for kept in self._headings if kept[0] < level] + [(level, words)]
        self._set_apart(_BREAKS.get(tag, ""))
        if self._table:
            self._table.data(_BREAKS.get(tag, ""))
            self._table.end(tag)
        if tag == "table":
            self._tables -= 1
            self._end_table()

    def _end_table(self) -> None:
        """Where it has a header, its rows take the place of its words as they came."""
        table, self._table = self._table, None
        if table and (lines := [*table.lines()]):
            before = "\n\n" if self._table_at or self._done else ""
            self._text[self._table_at :] = [before, *lines]
            self._break = "\n"

    def data(self, data: str) -> None:
        if self._unseen:
            return
        if self._table:
            self._table.data(data)
        self._write(data)

    def _write(self, data: str) -> None:
        if self._preformatted:
            words, before, after = data, "", ""
        else:
            words = " ".join(data.split())
            before = " " if data[0].isspace() else ""
            after = " " if data[-1].isspace() else ""
        self._set_apart(before)
        if not words:
            return
        if self._heading is not None:
            self._heading.append(before + words + after)
            if sum(map(len, self._heading)) > _LONGEST_HEADING:
                self._heading = None
        self._text.append((self._break if self._text or self._done else "") + words)
        self._size += len(self._text[-1])
        self._break = after
        most = text.BLOCK_CHARS if self._table is None else _LONGEST_TABLE
        if self._size > most and self._heading is None:
            self._end_section()

    def _set_apart(self, blanks: str) -> None:
        self._break = max(self._break, blanks, key=lambda candidate: (candidate.count("\n"), len(candidate)))
