"""E-books (epub): the chapters in reading order, each read as the HTML it is."""

import posixpath
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from sherlock.rag.domain.errors import InvalidFile
from sherlock.rag.domain.models import Section
from sherlock.rag.parsers import html
from sherlock.rag.parsers.package import Package, attribute, name_of, opened

_PAGES: Final = (".xhtml", ".html", ".htm", ".xml")


def parse(path: Path) -> Iterator[Section]:
    """Sections under the headings of the chapters. Raises `InvalidFile`, also for a copy-protected book."""
    with opened(path, "e-book") as package:
        locked = _locked(package)
        for chapter in _spine(package):
            if chapter in locked:
                raise InvalidFile("The e-book is copy-protected and cannot be read.")
            yield from html.parse_pieces(package.pieces(chapter))
            yield Section("\n\n")


def _locked(package: Package) -> frozenset[str]:
    """Parts that are encrypted; fonts often are, in books that anybody may read."""
    part = "META-INF/encryption.xml"
    if part not in package.names:
        return frozenset()
    return frozenset(
        package.resolve("", unquote(attribute(reference, "URI")))
        for reference in package.each(part, {"CipherReference"})
    )


def _spine(package: Package) -> Iterator[str]:
    """The pages in reading order, each once (EPUB 3.3, section 5.7)."""
    roots = [attribute(root, "full-path") for root in package.each("META-INF/container.xml", {"rootfile"})]
    for root in roots[:1]:
        items: dict[str, str] = {}
        order: dict[str, None] = {}
        for element in package.each(root, {"item", "itemref"}):
            if name_of(element) == "itemref":
                order.setdefault(attribute(element, "idref"))
            else:
                target = unquote(attribute(element, "href"))
                items[attribute(element, "id")] = package.resolve(posixpath.dirname(root), target)
        for at in order:
            part = items.get(at, "")
            if part in package.names and part.lower().endswith(_PAGES):
                yield part
