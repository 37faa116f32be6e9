"""File -> document: the table of formats, and nothing else."""

import codecs
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Final

from sherlock.rag.domain.errors import InvalidFile, UnsupportedFile
from sherlock.rag.domain.models import Section
from sherlock.rag.parsers import (
    code,
    containers,
    html,
    mail,
    markup,
    notebook,
    pdf,
    rtf,
    tabular,
    text,
)
from sherlock.rag.parsers.ocr import Ocr
from sherlock.rag.surrogates import whole_characters

Parser = Callable[[Path], Iterator[Section]]

# By the last extension of the name. Content comes first: a PDF under the name .txt is read as a PDF.
_PARSERS: Final[dict[str, Parser]] = {
    **dict.fromkeys(text.EXTENSIONS, text.parse),
    **code.PARSERS,
    **containers.BY_EXTENSION,
    ".pdf": pdf.parse,
    ".rtf": rtf.parse,
    ".eml": mail.parse_eml,
    ".csv": tabular.parse_csv,
    ".tsv": tabular.parse_csv,
    ".json": tabular.parse_json,
    ".geojson": tabular.parse_json,
    ".jsonl": tabular.parse_jsonl,
    ".ndjson": tabular.parse_jsonl,
    ".ipynb": notebook.parse,
    ".xml": markup.parse_xml,
    ".rss": markup.parse_xml,
    ".atom": markup.parse_xml,
    ".html": html.parse,
    ".htm": html.parse,
    ".xhtml": html.parse,
    ".md": text.parse_markdown,
    ".markdown": text.parse_markdown,
    ".mdx": text.parse_markdown,
    ".rst": text.parse_rst,
}

SUPPORTED_EXTENSIONS: Final = frozenset(_PARSERS)

_HEAD_BYTES: Final = 4096
_LONGEST_HEADING: Final = 1_000  # characters, of all levels together; every chunk below carries it
_ARCHIVES: Final = (
    b"\x1f\x8b", b"7z\xbc\xaf\x27\x1c", b"Rar!\x1a\x07", b"BZh", b"\xfd7zXZ\x00",
    b"\x28\xb5\x2f\xfd", b"MSCF",
)  # fmt: skip
_TAR_MARK_AT: Final = 257
_HTML: Final = re.compile(
    rb"\s*(?:<!--.{0,500}?-->\s*)?<(?:!doctype\s+html|html[\s>])", re.IGNORECASE | re.DOTALL
)
# Names that promise one of these and hold text all the same: what programs write that "export to Excel".
_TEXT_AS_SHEET: Final = frozenset({".xls", ".xlsx", ".ods"})


def is_supported(filename: str, head: bytes) -> bool:
    """Whether the name or the file's first bytes (some 4 kB) are of a kind that `parse` reads."""
    if _extension(filename) in SUPPORTED_EXTENSIONS:
        return True
    if pdf.is_pdf(head) or containers.is_known(head):
        return True
    return head != b"" and not _is_archive(head) and text.is_text(head)


def known_extension(filename: str) -> str:
    """One of `SUPPORTED_EXTENSIONS`, or `other`: what may be counted by without counting names."""
    extension = _extension(filename)
    return extension if extension in SUPPORTED_EXTENSIONS else "other"


def parse(path: Path, filename: str, ocr: Ocr | None = None) -> Iterator[Section]:
    """The document in `path`, section by section; `filename` is its name as it was uploaded.

    `ocr` reads the pages that are pictures.

    No section holds NUL or a lone surrogate, so its text can be stored and encoded anywhere. Raises
    `UnsupportedFile`, and `InvalidFile` for a file that is damaged, locked by a password or has no text;
    sections may have come before an error.
    """
    blank = True
    parser = _parser(path, filename)
    for section in pdf.parse(path, ocr) if parser is pdf.parse else parser(path):
        clean = _storable(section.text)
        blank = blank and not clean.strip()
        heading = _storable(section.heading[:_LONGEST_HEADING]) if section.heading else None
        yield replace(section, text=clean, heading=heading)
    if blank:
        raise InvalidFile("The file contains no text.")


def _parser(path: Path, filename: str) -> Parser:
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    if not head:
        raise InvalidFile("The file is empty: it contains no text.")
    extension = _extension(filename)
    if pdf.is_pdf(head):
        return pdf.parse
    if containers.is_container(head):
        return containers.parser_of(path, extension)
    if _is_archive(head):
        raise UnsupportedFile("Archives are not unpacked: upload the files that are inside.")
    if rtf.is_rtf(head):
        return rtf.parse
    binary = extension in containers.BY_EXTENSION or extension == ".pdf"
    if (binary or extension in ("", ".txt")) and _HTML.match(head.removeprefix(codecs.BOM_UTF8)):
        return html.parse
    if extension in _TEXT_AS_SHEET and text.is_text(head):
        return tabular.parse_csv
    if binary:
        raise InvalidFile(f"The file is damaged: it is not a {extension[1:].upper()} document.")
    if extension not in _PARSERS and not text.is_text(head):
        raise UnsupportedFile("The file type is not supported.")
    parser = _PARSERS.get(extension, text.parse)
    return text.parse if parser is rtf.parse else parser


def _is_archive(head: bytes) -> bool:
    return head.startswith(_ARCHIVES) or head[_TAR_MARK_AT:].startswith(b"ustar")


def _extension(filename: str) -> str:
    return PurePath(filename.lower()).suffix


def _storable(value: str) -> str:
    """Without NUL, which PostgreSQL refuses, and without surrogates, which UTF-8 cannot hold."""
    if "\0" in value:
        value = value.replace("\0", "")
    try:
        value.encode()
    except UnicodeEncodeError:
        value = whole_characters(value)
    return value
