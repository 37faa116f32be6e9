"""Rich Text Format by striprtf: the words, without their form."""

import codecs
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from striprtf.striprtf import rtf_to_text

from sherlock.rag.domain.errors import InvalidFile
from sherlock.rag.domain.models import Section
from sherlock.rag.parsers import text

_LARGEST_BYTES: Final = 32 << 20  # read whole
_HEAD_CHARS: Final = 4096
_CODE_PAGE: Final = re.compile(r"\\ansicpg(\d{1,5})")


def is_rtf(head: bytes) -> bool:
    return head.startswith(b"{\\rtf")


def parse(path: Path) -> Iterator[Section]:
    """Paragraphs as lines, the cells of a table row set apart by `|`. Raises `InvalidFile`."""
    if path.stat().st_size > _LARGEST_BYTES:
        raise InvalidFile("The RTF document is too large to be read.")
    # The format is ASCII; what is not is written by writers that know only their own code page.
    source = path.read_bytes().decode("cp1252", "replace")
    try:
        words: str = rtf_to_text(  # type: ignore[no-untyped-call]
            source, encoding="cp1252", errors="replace"
        )
    except Exception:  # striprtf trusts the numbers of control words, and raises nearly any
        raise InvalidFile("The RTF document is damaged and cannot be read.") from None
    yield Section("", encoding=_encoding(source[:_HEAD_CHARS]))
    yield from text.gather(words.splitlines(keepends=True))


def _encoding(head: str) -> str:
    """The code page that the document names, by which striprtf reads its bytes above ASCII."""
    named = _CODE_PAGE.search(head)
    try:
        return codecs.lookup(f"cp{named[1]}" if named else "cp1252").name
    except LookupError:
        return "utf-8"  # as striprtf has it then
