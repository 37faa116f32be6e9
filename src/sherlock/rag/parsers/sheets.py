"""Spreadsheets: xlsx from its XML, so that numbers and dates stand as shown; xls and xlsb by calamine."""

import contextlib
from collections.abc import Iterable, Iterator
from datetime import date, datetime, time, timedelta
from pathlib import Path
from typing import Any, Final
from xml.etree.ElementTree import Element

import python_calamine

from sherlock.rag.domain.errors import InvalidFile
from sherlock.rag.domain.models import Section
from sherlock.rag.parsers import text
from sherlock.rag.parsers.number_format import BUILT_IN, as_shown
from sherlock.rag.parsers.package import FOREIGN, Package, attribute, name_of, opened, relation_id
from sherlock.rag.parsers.rows import Row, count_in, row_lines

_LARGEST_COLUMN: Final = 16_384
_LARGEST_BINARY_BYTES: Final = 32 << 20  # calamine holds the sheet whole
_DAMAGED: Final = "The spreadsheet is damaged and cannot be opened."


def parse_xlsx(path: Path) -> Iterator[Section]:
    """A section for each sheet, under its name; see `row_lines`. Raises `InvalidFile`."""
    with opened(path, "spreadsheet") as package:
        workbook = _Workbook(package)
        for name, part in workbook.sheets:
            lines = row_lines(workbook.rows(part))
            yield from _sheet(name, lines, workbook.loose_texts(part))


def parse_binary(path: Path) -> Iterator[Section]:
    """xls and xlsb, as `parse_xlsx`; but numbers stand as they are stored, for calamine keeps no formats."""
    if path.stat().st_size > _LARGEST_BINARY_BYTES:
        raise InvalidFile("The spreadsheet is too large to be read.")
    with _calamine_errors():
        workbook = python_calamine.CalamineWorkbook.from_path(str(path))
        for name in workbook.sheet_names:
            with contextlib.suppress(python_calamine.WorksheetNotFound):
                rows = workbook.get_sheet_by_name(name).iter_rows()
                yield from _sheet(name, row_lines(_shown_row(row) for row in rows), [])


def _sheet(name: str, lines: Iterable[str], loose: Iterable[str]) -> Iterator[Section]:
    """The sheet's name stands before its first line, so that it is found by keywords, too."""
    written = False

    def titled() -> Iterator[str]:
        nonlocal written
        for source in (lines, loose):
            for line in source:
                if not written and line.strip():
                    yield f"{name}\n\n"
                    written = True
                yield line
        if written:
            yield "\n"

    return text.gather(titled(), name or None, records=True)


class _Workbook:
    def __init__(self, package: Package) -> None:
        self._package = package
        self._from_1904 = False
        self._parts = {to.id: to.part for to in package.related(package.main or "")}
        self._texts = [
            _string(entry) for part in package.parts("sharedStrings") for entry in package.each(part, {"si"})
        ]
        self._formats = self._read_formats()
        self.sheets: list[tuple[str, str]] = []
        """Name and part of each sheet, in the order of their tabs."""
        for element in package.each(package.main or "", {"sheet", "workbookPr"}):
            if name_of(element) == "workbookPr":
                self._from_1904 = attribute(element, "date1904") in ("1", "true")
            elif part := self._parts.get(relation_id(element)):
                self.sheets.append((" ".join(attribute(element, "name").split()), part))

    def rows(self, sheet: str) -> Iterator[Row]:
        """Rows in order; one that is blank for each gap between them."""
        if sheet.endswith(".bin"):
            return
        last = 0
        for element in self._package.each(sheet, {"row"}):
            number = count_in(attribute(element, "r"), last + 1)
            row: Row = {}
            column = -1
            for cell in element:
                if name_of(cell) == "c":
                    column = _column(attribute(cell, "r"), column + 1)
                    if column < _LARGEST_COLUMN and (shown := " ".join(self._shown(cell).split())):
                        row[column] = shown
            if number > last + 1:
                yield {}
            last = number
            yield row

    def loose_texts(self, sheet: str) -> Iterator[str]:
        """Text boxes and comments, which stand in no cell."""
        for relation in self._package.related(sheet):
            if relation.kind in ("drawing", "comments"):
                for block in self._package.each(relation.part, {"p", "comment"}):
                    if words := _string(block).strip():
                        yield words + "\n"

    def _shown(self, cell: Element) -> str:
        value = next((child.text or "" for child in cell if name_of(child) == "v"), "")
        match attribute(cell, "t"):
            case "s":
                at = count_in(value, -1)
                return self._texts[at] if 0 <= at < len(self._texts) else ""
            case "inlineStr":
                return _string(cell)
            case "b":
                return {"1": "TRUE", "0": "FALSE"}.get(value, value)
            case "str" | "e" | "d":
                return value
        style = count_in(attribute(cell, "s"), 0)
        code = self._formats[style] if style < len(self._formats) else ""
        return as_shown(value, code, from_1904=self._from_1904) if value else ""

    def _read_formats(self) -> list[str]:
        """The format of numbers in each cell style."""
        codes = dict(BUILT_IN)
        styles: list[int] = []
        for part in self._package.parts("styles"):
            for element in self._package.each(part, {"numFmts", "cellXfs"}):
                for entry in element:
                    number = count_in(attribute(entry, "numFmtId"), 0)
                    if name_of(entry) == "numFmt":
                        codes[number] = attribute(entry, "formatCode")
                    else:
                        styles.append(number)
        return [codes.get(number, "") for number in styles]


def _string(element: Element) -> str:
    """Rich text without its phonetic guides."""
    words: list[str] = []
    waiting = [element]
    while waiting:
        child = waiting.pop()
        if name_of(child) == "t":
            words.append(child.text or "")
        elif name_of(child) not in ("rPh", "f"):
            waiting += reversed(child)
    return "".join(words)


def _column(reference: str, default: int) -> int:
    """Counted from 0: `B7` is in column 1."""
    letters = reference.rstrip("0123456789").upper()
    if not (letters.isascii() and letters.isalpha() and len(letters) <= 3):
        return default
    column = 0
    for letter in letters:
        column = column * 26 + ord(letter) - ord("A") + 1
    return column - 1


# ── xls and xlsb ────────────────────────────────────────────────────────────


@contextlib.contextmanager
def _calamine_errors() -> Iterator[None]:
    try:
        yield
    except python_calamine.PasswordError:
        raise InvalidFile("The document is encrypted and cannot be opened without its password.") from None
    except (python_calamine.CalamineError, OSError, *FOREIGN):
        raise InvalidFile(_DAMAGED) from None
    except BaseException as error:
        # A panic of Rust, which is no `Exception`, so that nobody passes over it by chance.
        if type(error).__name__ == "PanicException":
            raise InvalidFile(_DAMAGED) from None
        raise


def _shown_row(values: Iterable[Any]) -> Row:
    shown = ((column, " ".join(_shown(value).split())) for column, value in enumerate(values))
    return {column: words for column, words in shown if words}


def _shown(value: Any) -> str:
    match value:
        case bool():
            return str(value).upper()
        case float():
            return as_shown(repr(value), "")
        case datetime():
            whole_day = value.time() == time()
            return f"{value:%Y-%m-%d}" if whole_day else f"{value:%Y-%m-%d %H:%M:%S}"
        case date():
            return f"{value:%Y-%m-%d}"
        case timedelta():
            minutes, seconds = divmod(round(value.total_seconds()), 60)
            return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"
        case _:
            return str(value)
