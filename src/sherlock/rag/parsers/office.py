"""Word documents (docx), read from their XML as a stream.

python-docx finds nothing in documents with the Strict namespaces of ISO 29500, passes over text boxes, notes
and insertions, and holds the whole document. Here names are compared without their namespace, and a paragraph
is forgotten once it is read.
"""

import re
from collections.abc import Iterator, Set
from pathlib import Path
from typing import Final
from xml.etree.ElementTree import Element

from sherlock.rag.domain.models import Section
from sherlock.rag.parsers import text
from sherlock.rag.parsers.package import Package, attribute, name_of, opened
from sherlock.rag.parsers.rows import Row, Table, count_in

_BLOCK_PARAGRAPHS: Final = 500

_MOST_COLUMNS: Final = 63  # of a table in Word
_BLOCKS: Final = frozenset({"p", "tr"})
_LEFT_OUT: Final = frozenset({"del", "moveFrom", "delText", "instrText", "rPr", "pPr", "Fallback", "rt"})
_CHARACTERS: Final = {"tab": "\t", "br": "\n", "cr": "\n", "noBreakHyphen": "-", "ptab": "\t"}
_NOTES: Final = {
    "footnoteReference": "footnotes",
    "endnoteReference": "endnotes",
    "commentReference": "comments",
}
_LONGEST_CHAIN: Final = 32  # of styles that are based on each other
_HEADING_STYLE: Final = re.compile("heading ([1-9])", re.IGNORECASE)


def parse_docx(path: Path) -> Iterator[Section]:
    """Headers, body, footers, in document order; a section for each heading.

    Notes, comments and text boxes follow the paragraph that they hang on; the cells of a table row are set
    apart by `|`. Deleted text is left out, inserted text is read. Raises `InvalidFile`.
    """
    with opened(path, "Word document") as package:
        yield from _Document(package).sections()


_Block = tuple[str, int | None]
"""A paragraph's or table row's text, and its level if it is a heading."""


class _Document:
    def __init__(self, package: Package) -> None:
        self._package = package
        self._notes: dict[str, dict[str, str]] = {kind: {} for kind in _NOTES.values()}
        self._levels = self._heading_levels()
        self._notes = {kind: self._note_texts(kind) for kind in _NOTES.values()}

    def sections(self) -> Iterator[Section]:
        yield from text.gather(self._margin("header"))
        headings: list[tuple[int, str]] = []
        block: list[str] = []
        table = Table()
        for element in self._outermost(self._package.main or "", {"body"}, _BLOCKS):
            name = name_of(element)
            if name == "tr":
                row = self._row(element)
                block += table.add(row, names=row if _is_marked_header(element) else None)
                continue
            if name == "tbl":
                block += [*table.end(), text.Record("\n")]
                table = Table()
                continue
            for words, level in self._blocks(element):
                if level:
                    yield from text.gather(block, _path(headings))
                    block.clear()
                    headings = [kept for kept in headings if kept[0] < level]
                    headings.append((level, " ".join(words.split())))
                block.append(words)
            if len(block) >= _BLOCK_PARAGRAPHS:
                yield from text.gather(block, _path(headings))
                block.clear()
        yield from text.gather(block, _path(headings))
        yield from text.gather(self._margin("footer"))

    def _margin(self, kind: str) -> list[str]:
        """Texts of headers or footers, each once however many parts of the document repeat it."""
        texts: dict[str, None] = {}
        for part in self._package.parts(kind):
            for element in self._outermost(part, {"hdr", "ftr"}, _BLOCKS):
                texts.update((words, None) for words, _ in self._blocks(element))
        return [*texts]

    def _outermost(self, part: str, parents: Set[str], wanted: Set[str]) -> Iterator[Element]:
        """The wanted elements below the first such parent, however deep but none within another.

        They come one by one, and each is forgotten after its turn. A table comes too, at its end, when its
        rows are forgotten already.
        """
        path: list[Element] = []
        """The parent, and what is open below it."""
        inside = 0
        for event, element in self._package.elements(part):
            name = name_of(element)
            if event == "start":
                if not path and name not in parents:
                    continue
                inside += bool(path) and (inside > 0 or name in wanted or name in _LEFT_OUT)
                path.append(element)
            elif path:
                path.pop()
                if not path:
                    return
                inside -= inside > 0
                if not inside:
                    if name in wanted or name == "tbl":
                        yield element
                    path[-1].clear()
                    self._package.held = 0

    def _blocks(self, element: Element) -> Iterator[_Block]:
        """Texts of the paragraphs and table rows in an element, line ends included; none is blank."""
        match name_of(element):
            case "p":
                yield from self._paragraph(element)
            case "tr":
                if row := self._row(element):
                    yield " | ".join(row.values()) + "\n", None
            case name if name not in _LEFT_OUT:
                for child in element:
                    yield from self._blocks(child)
                if name == "tbl":
                    yield "\n", None

    def _row(self, element: Element) -> Row:
        row: Row = {}
        column = 0
        for cell in self._cells(element):
            if words := " ".join("".join(words for words, _ in self._blocks(cell)).split()):
                row[column] = words
            column += _columns_spanned(cell)
        return row

    def _cells(self, element: Element) -> Iterator[Element]:
        """Those of a row, also within what is inserted or bound to data."""
        for child in element:
            name = name_of(child)
            if name == "tc":
                yield child
            elif name not in _LEFT_OUT:
                yield from self._cells(child)

    def _paragraph(self, paragraph: Element) -> Iterator[_Block]:
        words: list[str] = []
        hung: list[_Block] = []
        self._read_runs(paragraph, words, hung)
        if (line := "".join(words)).strip():
            yield line + "\n\n", self._level(paragraph)
        yield from hung

    def _read_runs(self, element: Element, words: list[str], hung: list[_Block]) -> None:
        """Collect an element's words, and what hangs on them: text boxes, notes, comments."""
        for child in element:
            name = name_of(child)
            if name == "t":
                words.append(child.text or "")
            elif name in _CHARACTERS:
                words.append(_CHARACTERS[name])
            elif name in _NOTES:
                # Given once: many references to a long note would make more text than anybody can store.
                if note := self._notes[_NOTES[name]].pop(attribute(child, "id"), None):
                    hung.append((note, None))
            elif name == "txbxContent":
                hung += ((box_words, None) for box_words, _ in self._blocks(child))
            elif name not in _LEFT_OUT:
                self._read_runs(child, words, hung)

    def _level(self, paragraph: Element) -> int | None:
        properties = next((child for child in paragraph if name_of(child) == "pPr"), ())
        level = None
        for setting in properties:
            if name_of(setting) == "outlineLvl":
                return _outline_level(setting)
            if name_of(setting) == "pStyle":
                level = self._levels.get(attribute(setting, "val"))
        return level

    def _heading_levels(self) -> dict[str, int]:
        """Style id -> heading level, from the style itself or the one it is based on."""
        levels: dict[str, int] = {}
        based_on: dict[str, str] = {}
        for part in self._package.parts("styles"):
            for style in self._outermost(part, {"styles"}, {"style"}):
                style_id = attribute(style, "styleId")
                for setting in style.iter():
                    name, value = name_of(setting), attribute(setting, "val")
                    if name == "outlineLvl" and (level := _outline_level(setting)):
                        levels[style_id] = level
                    elif name == "name" and (heading := _HEADING_STYLE.fullmatch(value)):
                        levels.setdefault(style_id, int(heading[1]))
                    elif name == "basedOn":
                        based_on[style_id] = value
        for style_id in based_on:
            base = style_id
            for _ in range(_LONGEST_CHAIN):
                if base in levels or base not in based_on:
                    break
                base = based_on[base]
            if base in levels:
                levels[style_id] = levels[base]
        return levels

    def _note_texts(self, kind: str) -> dict[str, str]:
        """Footnotes, endnotes or comments by id."""
        return {
            attribute(note, "id"): "".join(words for child in note for words, _ in self._blocks(child))
            for part in self._package.parts(kind)
            for note in self._outermost(part, {kind}, {kind.removesuffix("s")})
        }


def _columns_spanned(cell: Element) -> int:
    properties = next((child for child in cell if name_of(child) == "tcPr"), ())
    span = next((attribute(child, "val") for child in properties if name_of(child) == "gridSpan"), "")
    return min(max(count_in(span, 1), 1), _MOST_COLUMNS)


def _is_marked_header(row: Element) -> bool:
    """Whether the row is repeated on each page that the table goes on to."""
    properties = next((child for child in row if name_of(child) == "trPr"), ())
    marks = [attribute(child, "val") for child in properties if name_of(child) == "tblHeader"]
    return any(mark not in ("0", "false", "off") for mark in marks)


def _outline_level(setting: Element) -> int | None:
    """Counted from 1; Word counts from 0, and 9 is body text."""
    value = attribute(setting, "val")
    return int(value) + 1 if value.isdecimal() and int(value) < 9 else None


def _path(headings: list[tuple[int, str]]) -> str | None:
    return " > ".join(words for _, words in headings) or None
