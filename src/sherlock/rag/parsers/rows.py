"""Rows of a sheet -> lines: each cell beside its column's name, so that a row is understood by itself."""

import re
from collections.abc import Iterable, Iterator
from typing import Final

_LONGEST_NAME: Final = 100  # characters; it stands before the column's every value
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
                yield " | ".join(row.values()) + "\n"
                continue
            if not row.keys() <= names.keys():
                names = {}
        if begins or not names:
            yield " | ".join(row.values()) + "\n"
        else:
            pairs = ((names.get(column), value) for column, value in row.items())
            yield "; ".join(f"{name.rstrip(':')}: {value}" if name else value for name, value in pairs) + "\n"


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
