"""Rows of a table -> lines: each cell beside its column's name, so that a row is understood by itself."""

import re
from collections.abc import Iterable, Iterator
from typing import Final

from sherlock.rag.parsers import text

_LONGEST_NAME: Final = 100  # characters; it stands before the column's every value
_FEWEST_NAMES: Final = 3  # in a header that is not marked: two columns are as often names and their values
_FEWEST_ROWS: Final = 2  # below it
_ROWS_TO_DECIDE: Final = 6
_NUMBER: Final = re.compile(r"[-+(]?\W{0,4}\d[\d.,:/\s-]*%?\)?")

Row = dict[int, str]
"""Column -> what its cell shows; blank cells are left out."""


def row_lines(rows: Iterable[Row]) -> Iterator[str]:
    """A line for each row, `name: value; ...`; where no header was found, the values alone.

    Tables are set apart by blank rows. The header of one is its first row that has several cells, if each of
    them is a name; rows before it, such as titles, stand as they are.
    """
    names: Row = {}
    begins = True
    """Whether the table's first row with several cells is still to come."""
    for row in rows:
        if not row:
            if not begins:
                yield "\n"
            begins = True
            continue
        if begins and len(row) > 1:
            begins = False
            if _is_header(row):
                names = row
                yield _bare(row)
                continue
            if not row.keys() <= names.keys():
                names = {}
        yield _bare(row) if begins or not names else _named(row, names)


class Table:
    """The table of a document, whose first row need not be a header: its rows go in, its lines come out.

    A header is one that the document marks, or a first row of three or more names above numbers. Without
    one, the values stand alone.
    """

    def __init__(self) -> None:
        self._names: Row | None = None
        """None of them: there is no header. `None`: that is still open."""
        self._waiting: list[Row] = []
        self._headers: list[tuple[Row, Row]] = []
        """Each with the names it gives to columns."""

    def add(self, row: Row, *, names: Row | None = None) -> Iterator[str]:
        """A row, and the names it gives to columns where the document marks it as a header.

        The lines of the first rows come a little later.
        """
        if not row:
            return
        if names and self._names is None and not self._waiting:
            self._headers.append((row, names))
            return
        self._waiting.append(row)
        if self._headers or self._names is not None or len(self._waiting) == _ROWS_TO_DECIDE:
            yield from self._lines()

    def end(self) -> Iterator[str]:
        yield from self._lines()

    @property
    def has_names(self) -> bool:
        return bool(self._names)

    def _lines(self) -> Iterator[str]:
        if self._names is None:
            self._names = self._found_names()
        for row, _ in self._headers:
            yield text.Record(_bare(row))
        self._headers = []
        for row in self._waiting:
            yield text.Record(_named(row, self._names) if self._names else _bare(row))
        self._waiting = []

    def _found_names(self) -> Row:
        if self._headers:
            names: Row = {}
            for _, found in self._headers:
                for column, name in found.items():
                    names[column] = f"{names[column]} {name}" if column in names else name
            # One that spans all columns is a title.
            several = len({*names.values()}) > 1
            return names if several and max(map(len, names.values())) <= _LONGEST_NAME else {}
        first, *body = self._waiting or [{}]
        if len(first) >= _FEWEST_NAMES and len(body) >= _FEWEST_ROWS and _is_header(first):
            columns = [[row[at] for row in body if at in row] for at in first]
            if any(len(column) >= _FEWEST_ROWS and all(map(_NUMBER.fullmatch, column)) for column in columns):
                self._headers, self._waiting = [(first, first)], body
                return first
        return {}


def _bare(row: Row) -> str:
    return " | ".join(row.values()) + "\n"


def _named(row: Row, names: Row) -> str:
    pairs = ((names.get(column), value) for column, value in row.items())
    return "; ".join(f"{name.rstrip(':')}: {value}" if name else value for name, value in pairs) + "\n"


def count_in(value: str, default: int) -> int:
    """A column, a number of repetitions: what is no such number, or far too large, is `default`."""
    return int(value) if value.isascii() and value.isdecimal() and len(value) < 10 else default


def _is_header(row: Row) -> bool:
    values = [*row.values()]
    return (
        all(len(value) <= _LONGEST_NAME and any(map(str.isalpha, value)) for value in values)
        and len({*values}) == len(values)
        and not any(_NUMBER.fullmatch(value) for value in values)
    )
