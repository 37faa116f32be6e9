"""PDF by PDFium: a section for each page, and for each bookmark in it."""

import contextlib
import ctypes
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

import pypdfium2
import pypdfium2.raw

from sherlock.rag.domain.errors import InvalidFile
from sherlock.rag.domain.models import Section
from sherlock.rag.parsers.bidi import as_read
from sherlock.rag.parsers.ocr import Ocr, Picture, scale_for
from sherlock.rag.parsers.pdf_tables import Line, Word, may_hold_table, named_rows
from sherlock.rag.parsers.running_lines import RunningLines
from sherlock.rag.parsers.text import Record, gather

# PDFium keeps global state: no two of its functions may run at once, whatever documents they work on.
_PDFIUM: Final = threading.Lock()

_MOST_PAGES: Final = 10_000
_MOST_BOOKMARKS: Final = 20_000
_SAMPLE_PAGES: Final = 24
"""Pages that tell which lines repeat, spread over the document."""
_TITLE_WORDS: Final = re.compile(r"^[\d.\s]+|\s+")

# PDFium's sign for a hyphen at a line's end whose word it has joined to the rest in the next line.
_JOINED: Final = re.compile("[\x02\ufffe](?=([a-zà-öø-ÿ])?)")


class _PageText(NamedTuple):
    text: str
    rows: frozenset[str]
    """Lines of it that are rows of tables, each beside its columns' names."""


def is_pdf(head: bytes) -> bool:
    """The mark may stand anywhere in the first 1,024 bytes (ISO 32000-1, annex H, note 13)."""
    return b"%PDF-" in head[:1024]


def parse(path: Path, ocr: Ocr | None = None) -> Iterator[Section]:
    """Text in the page's own order, with the values of form fields, under the bookmarks.

    Where a page has none but shows something, `ocr` tells its words, or the page is passed over.

    Headers and footers that pages repeat are kept where they come first. Raises `InvalidFile`.
    """
    blank = True
    seen = 0
    """Pages that were given to `ocr`."""
    document = _open(path)
    try:
        with _PDFIUM:
            pages = len(document)
        if pages > _MOST_PAGES:
            raise InvalidFile(f"The PDF has {pages} pages; at most {_MOST_PAGES} are read.")
        sample = sorted({at * pages // _SAMPLE_PAGES for at in range(_SAMPLE_PAGES)}) if pages else []
        running = RunningLines((at + 1, _page_text(document, at).text) for at in sample)
        bookmarks = _bookmarks(document)
        headings: list[tuple[int, str]] = []
        for at in range(pages):
            text, rows = _page_text(document, at)
            page = running.dropped(text, at + 1)
            scan = not page.strip() and _shows_something(document, at)
            if scan and ocr and seen < ocr.most_pages and (picture := _picture(document, at)):
                seen += 1
                page = ocr.words(picture)
            if scan:
                yield Section("", at + 1, scan=True, ocr=page.strip() != "")
            blank = blank and not page.strip()
            for words in _under_bookmarks(page + "\n\n", bookmarks.get(at, []), headings):
                heading = " > ".join(title for _, title in headings) or None
                pieces = words.splitlines(keepends=True) if rows else [words]
                for section in gather(
                    (Record(one) if one.rstrip("\n") in rows else one for one in pieces), heading
                ):
                    yield replace(section, page=at + 1)
    finally:
        with _PDFIUM:
            document.close()
    if blank:
        told = f"OCR found none on the {seen} it looked at" if ocr else "OCR is off"
        raise InvalidFile(
            f"The PDF contains no text: its pages ({pages}) are scanned images or empty, and {told}."
        )


def _bookmarks(document: Any) -> dict[int, list[tuple[int, str]]]:
    """Page, counted from 0 -> levels and titles of its bookmarks; those after a broken one are lost."""
    found: dict[int, list[tuple[int, str]]] = {}
    with _PDFIUM, contextlib.suppress(pypdfium2.PdfiumError, ValueError, AttributeError):
        for bookmark in islice(document.get_toc(), _MOST_BOOKMARKS):
            title = " ".join(bookmark.get_title().split())
            target = bookmark.get_dest()
            page = target.get_index() if target else None
            if title and page is not None:
                found.setdefault(page, []).append((bookmark.level, title))
    return found


def _under_bookmarks(
    page: str, bookmarks: list[tuple[int, str]], headings: list[tuple[int, str]]
) -> Iterator[str]:
    """The page in pieces, each begun by the line that a bookmark names; `headings` are those in force then.

    A bookmark whose line is not found holds from where the last one began.
    """
    begun = 0
    for level, title in bookmarks:
        at = _line_of(title, page, begun)
        if at is not None and at > begun:
            yield page[begun:at]
            begun = at
        headings[:] = [kept for kept in headings if kept[0] < level] + [(level, title)]
    yield page[begun:]


def _line_of(title: str, page: str, start: int) -> int | None:
    """Where the line begins that says what the title says, blanks and numbers before it apart."""
    wanted = _TITLE_WORDS.sub("", title).casefold()
    at = start
    for line in page[start:].splitlines(keepends=True):
        if wanted and _TITLE_WORDS.sub("", line).casefold().startswith(wanted):
            return at
        at += len(line)
    return None


def _open(path: Path) -> Any:
    with _PDFIUM:
        try:
            document = pypdfium2.PdfDocument(path)
        except pypdfium2.PdfiumError as error:
            if error.err_code == pypdfium2.raw.FPDF_ERR_PASSWORD:
                raise InvalidFile("The PDF is encrypted and cannot be opened without its password.") from None
            raise InvalidFile("The PDF is damaged and cannot be opened.") from None
        document.init_forms()
        return document


def _shows_something(document: Any, at: int) -> bool:
    """Whether anything but text is drawn on the page."""
    with (
        _PDFIUM,
        contextlib.suppress(pypdfium2.PdfiumError),
        contextlib.closing(document[at]) as page,
    ):
        return any(drawn.type != pypdfium2.raw.FPDF_PAGEOBJ_TEXT for drawn in page.get_objects(max_depth=1))
    return False


def _picture(document: Any, at: int) -> Picture | None:
    """`None` for a page that cannot be drawn."""
    with (
        _PDFIUM,
        contextlib.suppress(pypdfium2.PdfiumError),
        contextlib.closing(document[at]) as page,
    ):
        scale = scale_for(*page.get_size())
        with contextlib.closing(page.render(scale=scale, grayscale=True)) as drawn:
            return Picture(bytes(drawn.buffer), drawn.width, drawn.height, drawn.stride, round(scale * 72))
    return None


def _page_text(document: Any, at: int) -> _PageText:
    """Empty for a page that is broken, so that it does not take the others along."""
    with _PDFIUM, contextlib.suppress(pypdfium2.PdfiumError):
        if document.formenv:
            with contextlib.closing(document[at]) as page:
                page.flatten()  # values of form fields become part of the page, when it is loaded anew
        with contextlib.closing(document[at]) as page, contextlib.closing(page.get_textpage()) as text_page:
            words = text_page.get_text_bounded().replace("\r\n", "\n")
            words, rows = (
                _with_named_rows(words, text_page) if may_hold_table(words) else (words, frozenset())
            )
            words = _JOINED.sub(lambda sign: "" if sign[1] else "-", words)
            return _PageText(as_read(words), rows)
    return _PageText("", frozenset())


def _with_named_rows(page: str, text_page: Any) -> _PageText:
    """The page with the rows of its tables as records; as it is where their lines are not found in it."""
    lines = _lines(text_page)
    named = named_rows(lines)
    waiting = [(lines[at].text, row) for at, row in sorted(named.items(), reverse=True)]
    made = []
    for line in page.split("\n"):
        made.append(waiting.pop()[1].rstrip("\n") if waiting and waiting[-1][0] == line else line)
    if waiting or not named:
        return _PageText(page, frozenset())
    return _PageText("\n".join(made), frozenset(row.rstrip("\n") for row in named.values()))


def _lines(text_page: Any) -> list[Line]:
    """The lines of a page with the positions of their words."""
    edges = [ctypes.c_double() for _ in range(4)]
    left, right, bottom, top = edges
    references = [ctypes.byref(edge) for edge in edges]
    lines: list[Line] = []
    text, words, height, apart = "", list[Word](), 0.0, True
    for at in range(pypdfium2.raw.FPDFText_CountChars(text_page)):
        character = chr(pypdfium2.raw.FPDFText_GetUnicode(text_page, at))
        if character == "\n":
            lines.append(Line(text, words, height))
            text, words, height, apart = "", [], 0.0, True
        elif character != "\r":
            text += character
            if character.isspace():
                apart = True
                continue
            pypdfium2.raw.FPDFText_GetCharBox(text_page, at, *references)
            height = max(height, top.value - bottom.value)
            if apart or left.value - words[-1].right > height:
                words.append(Word(character, left.value, right.value))
            else:
                words[-1] = Word(
                    words[-1].text + character, words[-1].left, max(words[-1].right, right.value)
                )
            apart = False
    return [*lines, Line(text, words, height)]
