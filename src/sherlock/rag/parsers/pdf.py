"""PDF by PDFium: a section for each page, and for each bookmark in it."""

import contextlib
import re
import threading
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final

import pypdfium2
import pypdfium2.raw

from sherlock.rag.domain.errors import InvalidFile
from sherlock.rag.domain.models import Section
from sherlock.rag.parsers.bidi import as_read
from sherlock.rag.parsers.ocr import Ocr, Picture, scale_for
from sherlock.rag.parsers.running_lines import RunningLines

# PDFium keeps global state: no two of its functions may run at once, whatever documents they work on.
_PDFIUM: Final = threading.Lock()

_MOST_PAGES: Final = 10_000
_MOST_BOOKMARKS: Final = 20_000
_SAMPLE_PAGES: Final = 24
"""Pages that tell which lines repeat, spread over the document."""
_TITLE_WORDS: Final = re.compile(r"^[\d.\s]+|\s+")

# PDFium's sign for a hyphen at a line's end whose word it has joined to the rest in the next line.
_JOINED: Final = re.compile("[\x02\ufffe](?=([a-zà-öø-ÿ])?)")


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
        running = RunningLines((at + 1, _page_text(document, at)) for at in sample)
        bookmarks = _bookmarks(document)
        headings: list[tuple[int, str]] = []
        for at in range(pages):
            page = running.dropped(_page_text(document, at), at + 1)
            scan = not page.strip() and _shows_something(document, at)
            if scan and ocr and seen < ocr.most_pages and (picture := _picture(document, at)):
                seen += 1
                page = ocr.words(picture)
            if scan:
                yield Section("", at + 1, scan=True, ocr=page.strip() != "")
            blank = blank and not page.strip()
            for words in _under_bookmarks(page + "\n\n", bookmarks.get(at, []), headings):
                yield Section(words, at + 1, " > ".join(title for _, title in headings) or None)
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


def _page_text(document: Any, at: int) -> str:
    """Empty for a page that is broken, so that it does not take the others along."""
    with _PDFIUM, contextlib.suppress(pypdfium2.PdfiumError):
        if document.formenv:
            with contextlib.closing(document[at]) as page:
                page.flatten()  # values of form fields become part of the page, when it is loaded anew
        with contextlib.closing(document[at]) as page, contextlib.closing(page.get_textpage()) as text_page:
            text: str = text_page.get_text_bounded()
            text = _JOINED.sub(lambda sign: "" if sign[1] else "-", text.replace("\r\n", "\n"))
            return as_read(text)
    return ""
