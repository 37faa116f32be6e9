"""XML of any vocabulary: the text of its elements, each beside its name."""

import codecs
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from sherlock.rag.domain.models import Section
from sherlock.rag.parsers import text
from sherlock.rag.parsers.package import FOREIGN, name_of

_DECLARED: Final = re.compile(
    rb"<\?xml[^>]{0,200}?\sencoding\s*=\s*[\"']([A-Za-z][\w.-]{0,39})[\"']", re.ASCII
)
_PIECE_BYTES: Final = 1 << 20
_MAX_ELEMENTS: Final = 1 << 18  # held at once; some 60 MB with their texts
_LARGEST_BYTES: Final = 16 << 20
_DEEPEST: Final = 500
_DEEPEST_INDENT: Final = 8


def parse_xml(path: Path) -> Iterator[Section]:
    """`name: text` lines, indented by depth, attributes beside them; what is no sound XML, as it stands.

    An element with words among its elements is one line, as a paragraph with emphasis is. Entities of other
    files are never fetched, and expat refuses those that multiply.
    """
    try:
        root = _load(path)
    except FOREIGN:
        yield from text.parse(path)
        return
    yield Section("", encoding=_encoding(path))
    yield from text.gather(_lines(root))


def _encoding(path: Path) -> str:
    """What expat decoded by: the mark, the declaration, or else UTF-8."""
    with path.open("rb") as file:
        head = file.read(1024)
    declared = _DECLARED.match(head)
    return codecs.lookup(text.by_mark(head) or (declared[1].decode() if declared else "utf-8")).name


def _load(path: Path) -> Element:
    if path.stat().st_size > _LARGEST_BYTES:
        raise ValueError("more than can be held")
    parser: ElementTree.XMLPullParser[Element] = ElementTree.XMLPullParser(("start", "end"))
    count = depth = 0
    root: Element | None = None
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            parser.feed(piece)
            events: Iterator[Any] = parser.read_events()
            for event, element in events:
                root = element if root is None else root
                count += event == "start"
                depth += 1 if event == "start" else -1
                if count > _MAX_ELEMENTS or depth > _DEEPEST:
                    raise ValueError("more than can be held")
    parser.close()
    if root is None:
        raise ValueError("no element")
    return root


def _lines(root: Element) -> Iterator[str]:
    waiting = [(0, root)]
    while waiting:
        depth, element = waiting.pop()
        if depth == 1:
            yield "\n"
        lead = "  " * min(depth, _DEEPEST_INDENT) + name_of(element)
        attributes = "; ".join(
            f"{key.rpartition('}')[2]}: {value}" for key, value in element.items() if value
        )
        lead += f" ({' '.join(attributes.split())})" if attributes else ""
        if _is_mixed(element) or not len(element):
            words = " ".join("".join(element.itertext()).split())
            if words or attributes:
                yield f"{lead}: {words}\n" if words else f"{lead}\n"
        else:
            yield f"{lead}:\n"
            waiting += ((depth + 1, child) for child in reversed(element))


def _is_mixed(element: Element) -> bool:
    """Whether words stand among the elements inside."""
    own = [element.text, *(child.tail for child in element)]
    return len(element) > 0 and any(words and words.strip() for words in own)
