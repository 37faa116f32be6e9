"""HTML by the standard library's parser: the words a reader sees, a section for each heading."""

import codecs
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Final

from sherlock.rag.domain.models import Section
from sherlock.rag.parsers import text

_UNSEEN: Final = frozenset({"script", "style", "template", "noscript", "svg"})
_PARAGRAPHS: Final = """
    title p div section article main aside header footer nav ul ol dl table blockquote pre form fieldset
    figure hr h1 h2 h3 h4 h5 h6
"""
_LINES: Final = "br li tr dt dd option caption figcaption legend"
_BREAKS: Final = dict.fromkeys(_LINES.split(), "\n") | dict.fromkeys(_PARAGRAPHS.split(), "\n\n")
_HEADING: Final = re.compile("h[1-6]")
_DECLARED: Final = re.compile(
    rb"<(?:meta|\?xml)[^>]{0,200}?(?:charset|encoding)\s*=\s*[\"']?\s*([\w-]{2,40})", re.IGNORECASE
)


def parse(path: Path) -> Iterator[Section]:
    """Scripts and styles are left out; the cells of a table row are set apart by `|`."""
    reader = _Reader()
    with text.open_text(path, declared=_declared_encoding(path)) as file:
        while block := file.read(text.BLOCK_CHARS):
            reader.feed(block)
            yield from reader.take()
    reader.close()
    reader.end_section()
    yield from reader.take()


def _declared_encoding(path: Path) -> str | None:
    with path.open("rb") as file:
        found = _DECLARED.search(file.read(4096))
    try:
        return codecs.lookup(found[1].decode("ascii", "replace")).name if found else None
    except LookupError:
        return None


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
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

    def take(self) -> list[Section]:
        """The sections that are complete."""
        done, self._done = self._done, []
        return done

    def end_section(self) -> None:
        heading = " > ".join(words for _, words in self._headings) or None
        self._done += text.gather(self._text, heading)
        self._text, self._size = [], 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._unseen += tag in _UNSEEN
        self._preformatted += tag == "pre"
        self._set_apart(_BREAKS.get(tag, ""))
        if _HEADING.fullmatch(tag):
            self.end_section()
            self._heading = []
        elif tag in ("td", "th") and self._break != "\n" and self._text:
            self.handle_data(" | ")
        elif tag == "img" and (alternative := dict(attrs).get("alt")):
            self.handle_data(f" {alternative} ")

    def handle_endtag(self, tag: str) -> None:
        self._unseen = max(0, self._unseen - (tag in _UNSEEN))
        self._preformatted = max(0, self._preformatted - (tag == "pre"))
        if _HEADING.fullmatch(tag) and self._heading is not None:
            level, words = int(tag[1]), " ".join("".join(self._heading).split())
            self._heading = None
            if words:
                self._headings = [kept for kept in self._headings if kept[0] < level] + [(level, words)]
        self._set_apart(_BREAKS.get(tag, ""))

    def handle_data(self, data: str) -> None:
        if self._unseen:
            return
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
        self._text.append((self._break if self._text or self._done else "") + words)
        self._size += len(self._text[-1])
        self._break = after
        if self._size > text.BLOCK_CHARS and self._heading is None:
            self.end_section()

    def _set_apart(self, blanks: str) -> None:
        self._break = max(self._break, blanks, key=lambda candidate: (candidate.count("\n"), len(candidate)))
