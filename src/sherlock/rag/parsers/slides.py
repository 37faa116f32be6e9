"""Presentations (pptx): title, body, notes and comments of each slide.

Read from the XML as Word documents are: python-pptx brings Pillow and XlsxWriter into the image, holds the
whole package, and has no bound on what it unpacks to.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final
from xml.etree.ElementTree import Element

from sherlock.rag.domain.models import Section
from sherlock.rag.parsers import text
from sherlock.rag.parsers.package import Package, Relation, attribute, name_of, opened, relation_id
from sherlock.rag.parsers.rows import Table

_SHAPES: Final = frozenset({"sp", "graphicFrame", "cxnSp", "Fallback"})
_TITLES: Final = frozenset({"title", "ctrTitle"})
_FURNITURE: Final = frozenset({"sldNum", "dt", "ftr", "hdr", "sldImg"})  # the same on every slide


def parse_pptx(path: Path) -> Iterator[Section]:
    """A section for each slide, under its title; `page` is its number. Raises `InvalidFile`."""
    with opened(path, "presentation") as package:
        main = package.main or ""
        parts = {to.id: to.part for to in package.related(main)}
        order = [relation_id(slide) for slide in package.each(main, {"sldId"})]
        for number, slide in enumerate((parts[at] for at in order if at in parts), start=1):
            yield from _slide(package, slide, number)


def _slide(package: Package, slide: str, number: int) -> Iterator[Section]:
    titles: list[str] = []
    body: list[str] = []
    for shape in package.each(slide, _SHAPES):
        if (kind := _placeholder(shape)) not in _FURNITURE:
            (titles if kind in _TITLES else body).extend(_blocks(shape))
    for relation in package.related(slide):
        body += _attached(package, relation)
    heading = " ".join(" ".join(titles).split()) or None
    for section in text.gather([*titles, *body], heading):
        yield replace(section, page=number)


def _attached(package: Package, relation: Relation) -> Iterator[str]:
    match relation.kind:
        case "notesSlide":
            for shape in package.each(relation.part, _SHAPES):
                if _placeholder(shape) == "body":
                    yield from _blocks(shape)
        case "diagramData" | "comments":
            for block in package.each(relation.part, {"p", "text"}):
                if words := _words(block):
                    yield words + "\n\n"


def _placeholder(shape: Element) -> str:
    """What the layout means the shape for; blank for one that stands by itself."""
    if name_of(shape) in ("Fallback", "cxnSp"):
        return "sldImg"
    return next((attribute(child, "type") for child in shape.iter() if name_of(child) == "ph"), "")


def _blocks(element: Element) -> Iterator[str]:
    """Paragraphs and table rows, line ends included; none is blank."""
    rows = [child for child in element.iter() if name_of(child) == "tr"]
    if rows:
        header = any(
            attribute(child, "firstRow") in ("1", "true")
            for child in element.iter()
            if name_of(child) == "tblPr"
        )
        table = Table()
        for number, row in enumerate(rows):
            cells = (" ".join(_words(cell).split()) for cell in row if name_of(cell) == "tc")
            shown = {column: words for column, words in enumerate(cells) if words}
            yield from table.add(shown, names=shown if header and number == 0 else None)
        yield from table.end()
        yield text.Record("\n")
        return
    paragraphs = [words for child in element.iter() if name_of(child) == "p" and (words := _words(child))]
    yield from (words + "\n" for words in paragraphs)
    if paragraphs:
        yield "\n"


def _words(element: Element) -> str:
    """The text below an element; paragraphs end their lines."""
    words: list[str] = []
    for child in element.iter():
        match name_of(child):
            case "t" | "text":
                words.append(child.text or "")
            case "br":
                words.append("\n")
            case "p" if words:
                words.append("\n")
    return "".join(words).strip()
