"""OpenDocument: text (odt), spreadsheets (ods) and presentations (odp), from the XML of `content.xml`."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path
from typing import Final
from xml.etree.ElementTree import Element

from sherlock.rag.domain.errors import InvalidFile
from sherlock.rag.domain.models import Section
from sherlock.rag.parsers import text
from sherlock.rag.parsers.package import Package, attribute, name_of, opened
from sherlock.rag.parsers.rows import Row, Table, count_in, row_lines

_CONTENT: Final = "content.xml"
_BLOCKS: Final = frozenset({"h", "p", "table", "page", "tracked-changes", "forms"})
_LEFT_OUT: Final = frozenset({"tracked-changes", "forms", "creator", "date", "note-citation", "ruby-text"})
_BLANKS: Final = {"tab": "\t", "line-break": "\n"}
_LARGEST_COLUMN: Final = 16_384
_MOST_REPEATED: Final = 64  # cells with the same text
_MOST_SPACES: Final = 1_000
_BLOCK_PARAGRAPHS: Final = 500


def parse(path: Path) -> Iterator[Section]:
    """A section for each heading, sheet or slide, whose number is its `page`. Raises `InvalidFile`."""
    with opened(path, "document") as package:
        if _is_encrypted(package):
            raise InvalidFile("The document is encrypted and cannot be opened without its password.")
        if _kind(package).endswith("spreadsheet"):
            yield from _sheets(package)
        else:
            yield from _sections(package)


def _is_encrypted(package: Package) -> bool:
    manifest = "META-INF/manifest.xml"
    return manifest in package.names and any(
        True for _ in package.each(manifest, {"encryption-data", "encrypted-key"})
    )


def _sections(package: Package) -> Iterator[Section]:
    headings: list[tuple[int, str]] = []
    block: list[str] = []
    slides = 0

    def under_heading() -> Iterator[Section]:
        yield from text.gather(block, " > ".join(words for _, words in headings) or None)
        block.clear()

    for element in package.each(_CONTENT, _BLOCKS):
        match name_of(element):
            case "page":
                slides += 1
                yield from _slide(element, slides)
            case "table":
                block += _table(element)
            case "h":
                words = _words(element)
                if words.strip():
                    yield from under_heading()
                    level = count_in(attribute(element, "outline-level"), 1)
                    headings = [kept for kept in headings if kept[0] < level]
                    headings.append((level, " ".join(words.split())))
                    block.append(words + "\n\n")
            case "p" if (words := _words(element)).strip():
                block.append(words + "\n\n")
        if len(block) >= _BLOCK_PARAGRAPHS:
            yield from under_heading()
    yield from under_heading()


def _kind(package: Package) -> str:
    return (
        b"".join(package.pieces("mimetype")).decode("ascii", "replace") if "mimetype" in package.names else ""
    )


def _slide(page: Element, number: int) -> Iterator[Section]:
    titles: list[str] = []
    body: list[str] = []
    for frame in page:
        into = titles if attribute(frame, "class") == "title" else body
        into += _paragraphs(frame)
    heading = " ".join(" ".join(titles).split()) or None
    for section in text.gather([*titles, *body], heading):
        yield replace(section, page=number)


def _paragraphs(element: Element) -> Iterator[str]:
    waiting = [element]
    while waiting:
        child = waiting.pop()
        if name_of(child) in ("p", "h"):
            if (words := _words(child)).strip():
                yield words + "\n\n"
        elif name_of(child) == "table":
            yield from _table(child)
        elif name_of(child) not in _LEFT_OUT:
            waiting += reversed(child)


def _sheets(package: Package) -> Iterator[Section]:
    for (_, name), found in groupby(_sheet_rows(package), key=itemgetter(0)):
        lines = row_lines(row for _, row in found)
        titled = chain.from_iterable(
            (f"{name}\n\n", line) if at == 0 else (line,) for at, line in enumerate(lines)
        )
        yield from text.gather(chain(titled, ["\n"]), name or None, records=True)


def _sheet_rows(package: Package) -> Iterator[tuple[tuple[int, str], Row]]:
    """Number and name of the sheet, and a row of it, row by row: a sheet may be too large to be held."""
    number, name = 0, ""
    path: list[Element] = []
    rows = 0
    for event, element in package.elements(_CONTENT):
        kind = name_of(element)
        if event == "start":
            if kind == "table" and not rows:
                number, name = number + 1, " ".join(attribute(element, "name").split())
            rows += kind == "table-row"
            path.append(element)
            continue
        path.pop()
        rows -= kind == "table-row"
        if not rows:
            if kind == "table-row":
                yield (number, name), _row(element)
            if path:
                path[-1].clear()
            package.held = 0


def _table(element: Element) -> Iterator[str]:
    table = Table()
    marked = {id(row) for part in element if name_of(part) == "table-header-rows" for row in part}
    for row in element.iter():
        if name_of(row) == "table-row":
            shown = _row(row)
            yield from table.add(shown, names=shown if id(row) in marked else None)
    yield from table.end()
    yield text.Record("\n")


def _row(element: Element) -> Row:
    """What the cells show; a row that is repeated comes once."""
    row: Row = {}
    column = 0
    for cell in element:
        if name_of(cell) in ("table-cell", "covered-table-cell"):
            shown = " ".join(" ".join(_paragraphs(cell)).split())
            repeated = min(count_in(attribute(cell, "number-columns-repeated"), 1), _LARGEST_COLUMN)
            if shown:
                row.update((column + at, shown) for at in range(min(repeated, _MOST_REPEATED)))
            column += repeated
    return row


def _words(element: Element) -> str:
    """The text of a paragraph, with notes and comments where they hang; as in XML, blanks run together."""
    words: list[str] = []
    waiting: list[Element | str] = [element]
    while waiting:
        child = waiting.pop()
        if isinstance(child, str):
            words.append(child)
            continue
        name = name_of(child)
        if name in _LEFT_OUT:
            continue
        if name == "s":
            words.append(" " * min(count_in(attribute(child, "c"), 1), _MOST_SPACES))
        elif name in _BLANKS:
            words.append(_BLANKS[name])
        elif name in ("note", "annotation"):
            words.append(" ")
        elif name in ("p", "h") and words:
            words.append("\n")  # of a note or a text box
        for inner in reversed(child):
            if inner.tail:
                waiting.append(_run_together(inner.tail))
            waiting.append(inner)
        if child.text:
            waiting.append(_run_together(child.text))
    return "".join(words)


def _run_together(words: str) -> str:
    joined = " ".join(words.split())
    if not joined:
        return " " if words else ""
    return (" " if words[0].isspace() else "") + joined + (" " if words[-1].isspace() else "")
