"""Zip packages of XML parts, as office documents and e-books are: read as a stream, within limits."""

import contextlib
import errno
import posixpath
import struct
import zipfile
import zlib
from collections.abc import Iterator, Set
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from sherlock.rag.domain.errors import InvalidFile

# A small file may unpack to anything. 900 pages have some 5 MB of XML; at worst, 64 MiB take 40 s and 200 MB.
_MAX_UNPACKED_BYTES: Final = 1 << 26
_MAX_ELEMENTS: Final = 1 << 19  # held at once: of a paragraph, a row, a note, or all relations; some 60 MB
_PIECE_BYTES: Final = 1 << 20

FOREIGN: Final = (
    zipfile.BadZipFile, zlib.error, struct.error, ElementTree.ParseError, EOFError, ArithmeticError,
    LookupError, RuntimeError, ValueError,
)  # fmt: skip
"""What the standard library raises for archives and XML that are damaged."""


class Relation(NamedTuple):
    """That a part needs another one (Open Packaging Conventions)."""

    id: str
    kind: str
    part: str


@contextlib.contextmanager
def opened(path: Path, what: str) -> Iterator["Package"]:
    """The package in a file; whatever is damaged while it is read is `InvalidFile`, naming `what` it is."""
    try:
        with unzipped(path) as package:
            yield package
    except FOREIGN:
        raise InvalidFile(f"The {what} is damaged and cannot be opened.") from None


@contextlib.contextmanager
def unzipped(path: Path) -> Iterator["Package"]:
    """As `opened`, but what is damaged raises one of `FOREIGN`."""
    try:
        with zipfile.ZipFile(path) as archive:
            yield Package(archive)
    except OSError as error:
        if error.errno == errno.EINVAL:  # the archive says that a part begins before the file does
            raise zipfile.BadZipFile from None
        raise


class Package:
    """An archive by its parts. Links that lead out of it are not followed."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        self._left = _MAX_UNPACKED_BYTES
        self.names: Final = frozenset(archive.namelist())
        self.held = 0
        """Elements of a part that are in memory; who forgets them counts anew."""

    @cached_property
    def main(self) -> str | None:
        """The part that is the office document itself."""
        return next((to.part for to in self.related("") if to.kind == "officeDocument"), None)

    @cached_property
    def _of_main(self) -> list[Relation]:
        return self.related(self.main) if self.main else []

    def parts(self, kind: str) -> list[str]:
        """Parts of a kind that the main part needs, each once."""
        return [*dict.fromkeys(to.part for to in self._of_main if to.kind == kind)]

    def pieces(self, part: str) -> Iterator[bytes]:
        """The bytes of a part. Raises `InvalidFile` when the package unpacks to too much."""
        with self._archive.open(part) as stream:
            # Large pieces: at every one, expat before 2.6 starts again with a token it has not seen all of.
            while piece := stream.read(_PIECE_BYTES):
                self._left -= len(piece)
                if self._left < 0:
                    raise InvalidFile("The document unpacks to more than can be read.")
                yield piece

    def elements(self, part: str) -> Iterator[tuple[str, Element]]:
        """`("start" | "end", element)` in document order, as `ElementTree.iterparse`."""
        self.held = 0
        # expat itself refuses entities that multiply, and fetches none.
        parser: ElementTree.XMLPullParser[Element] = ElementTree.XMLPullParser(("start", "end"))
        for piece in self.pieces(part):
            parser.feed(piece)
            yield from self._counted(parser.read_events())
        parser.close()
        yield from self._counted(parser.read_events())

    def each(self, part: str, wanted: Set[str]) -> Iterator[Element]:
        """The wanted elements of a part, none within another; each is forgotten after its turn."""
        path: list[Element] = []
        inside = 0
        for event, element in self.elements(part):
            if event == "start":
                inside += inside > 0 or name_of(element) in wanted
                path.append(element)
                continue
            path.pop()
            inside -= inside > 0
            if not inside:
                if name_of(element) in wanted:
                    yield element
                if path:
                    path[-1].clear()
                self.held = 0

    def _counted(self, events: Iterator[Any]) -> Iterator[tuple[str, Element]]:
        for event, element in events:
            self.held += event == "start"
            if self.held > _MAX_ELEMENTS:
                raise InvalidFile("The document holds something too large to be read.")
            yield event, element

    def related(self, part: str) -> list[Relation]:
        """The parts that `part` needs and the archive holds."""
        folder, name = posixpath.split(part)
        relations = posixpath.join(folder, "_rels", f"{name}.rels")
        found = []
        for event, relation in self.elements(relations) if relations in self.names else ():
            if event == "end" and name_of(relation) == "Relationship":
                target = self.resolve(folder, relation.get("Target", ""))
                if target in self.names:
                    kind = relation.get("Type", "").rpartition("/")[2]
                    found.append(Relation(relation.get("Id", ""), kind, target))
        return found

    @staticmethod
    def resolve(folder: str, target: str) -> str:
        """The name of a part as it is meant by one that lies in `folder`."""
        return posixpath.normpath(posixpath.join("/", folder, target)).lstrip("/")


def name_of(element: Element) -> str:
    """Without the namespace, for Strict and Transitional documents differ in nothing else here."""
    return element.tag.rpartition("}")[2]


def attribute(element: Element, name: str) -> str:
    return next((value for key, value in element.items() if key.rpartition("}")[2] == name), "")


def relation_id(element: Element) -> str:
    """The `r:id` of an element, which may have an `id` of its own beside it."""
    return next((value for key, value in element.items() if key.endswith("}id")), "")
