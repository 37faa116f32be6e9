"""PDF by PDFium: a section for each page."""

import contextlib
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pypdfium2
import pypdfium2.raw

from sherlock.rag.domain.errors import InvalidFile
from sherlock.rag.domain.models import Section

# PDFium keeps global state: no two of its functions may run at once, whatever documents they work on.
_PDFIUM: Final = threading.Lock()

# PDFium's sign for a hyphen at a line's end whose word it has joined to the rest in the next line.
_JOINED: Final = re.compile("[\x02\ufffe](?=([a-zà-öø-ÿ])?)")


def is_pdf(head: bytes) -> bool:
    """The mark may stand anywhere in the first 1,024 bytes (ISO 32000-1, annex H, note 13)."""
    return b"%PDF-" in head[:1024]


def parse(path: Path) -> Iterator[Section]:
    """Text in the page's own order, with the values of form fields. Raises `InvalidFile`."""
    blank = True
    document = _open(path)
    try:
        with _PDFIUM:
            pages = len(document)
        for at in range(pages):
            page = _page_text(document, at)
            blank = blank and not page.strip()
            yield Section(page + "\n\n", page=at + 1)
    finally:
        with _PDFIUM:
            document.close()
    if blank:
        raise InvalidFile("The PDF contains no text: its pages are scanned images or empty.")


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


def _page_text(document: Any, at: int) -> str:
    """Empty for a page that is broken, so that it does not take the others along."""
    with _PDFIUM, contextlib.suppress(pypdfium2.PdfiumError):
        if document.formenv:
            with contextlib.closing(document[at]) as page:
                page.flatten()  # values of form fields become part of the page, when it is loaded anew
        with contextlib.closing(document[at]) as page, contextlib.closing(page.get_textpage()) as text_page:
            text: str = text_page.get_text_bounded()
            return _JOINED.sub(lambda sign: "" if sign[1] else "-", text.replace("\r\n", "\n"))
    return ""
