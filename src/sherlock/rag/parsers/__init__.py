"""File -> document: the table of formats, and nothing else."""

from collections.abc import Callable, Iterator
from pathlib import Path, PurePath
from typing import Final

from sherlock.rag.domain.errors import InvalidFile, UnsupportedFile
from sherlock.rag.domain.models import Section
from sherlock.rag.parsers import html, office, pdf, tabular, text
from sherlock.rag.surrogates import whole_characters

Parser = Callable[[Path], Iterator[Section]]

# By the last extension of the name. Content comes first: a PDF under the name .txt is read as a PDF.
_PARSERS: Final[dict[str, Parser]] = {
    ".pdf": pdf.parse,
    ".docx": office.parse_docx,
    ".csv": tabular.parse_csv,
    ".tsv": tabular.parse_csv,
    ".json": tabular.parse_json,
    ".ipynb": tabular.parse_json,
    ".geojson": tabular.parse_json,
    ".jsonl": tabular.parse_jsonl,
    ".ndjson": tabular.parse_jsonl,
    ".html": html.parse,
    ".htm": html.parse,
    ".xhtml": html.parse,
    ".md": text.parse_markdown,
    ".markdown": text.parse_markdown,
    ".mdx": text.parse_markdown,
    ".rst": text.parse_rst,
    **dict.fromkeys(text.EXTENSIONS, text.parse),
}

SUPPORTED_EXTENSIONS: Final = frozenset(_PARSERS)

_HEAD_BYTES: Final = 4096
_LONGEST_HEADING: Final = 1_000  # characters, of all levels together; every chunk below carries it


def is_supported(filename: str, head: bytes) -> bool:
    """Whether the name or the file's first bytes (some 4 kB) are of a kind that `parse` reads."""
    if _extension(filename) in SUPPORTED_EXTENSIONS:
        return True
    return pdf.is_pdf(head) or office.is_docx(head) or (head != b"" and text.is_text(head))


def parse(path: Path, filename: str) -> Iterator[Section]:
    """The document in `path`, section by section; `filename` is its name as it was uploaded.

    No section holds NUL or a lone surrogate, so its text can be stored and encoded anywhere. Raises
    `UnsupportedFile`, and `InvalidFile` for a file that is damaged, locked by a password or has no text;
    sections may have come before an error.
    """
    blank = True
    for section in _parser(path, filename)(path):
        clean = _storable(section.text)
        blank = blank and not clean.strip()
        heading = _storable(section.heading[:_LONGEST_HEADING]) if section.heading else None
        yield Section(clean, section.page, heading)
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
    if office.is_container(head):
        return office.parser_of(path, extension)
    if extension in (".pdf", ".docx"):
        raise InvalidFile(f"The file is damaged: it is not a {extension[1:].upper()} document.")
    if extension not in _PARSERS and not text.is_text(head):
        raise UnsupportedFile("The file type is not supported.")
    return _PARSERS.get(extension, text.parse)


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
