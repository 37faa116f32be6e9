"""Tables of a page by where its words stand: rows whose cells lie below the names of a header.

A PDF tells positions and no tables, ruled or not. What is taken for one is so plain that little else can
be meant: a line of three names or more far apart, and below it lines whose cells each lie under one of them,
with numbers in a column. Whatever is less plain, as cells of several lines, stays as it is.
"""

import re
from itertools import pairwise
from typing import Final, NamedTuple

from sherlock.rag.parsers.rows import Row, Table

_GAP: Final = 0.9  # between cells, in heights of the line; a blank between words takes a quarter to a half
_FEWEST_NAMES: Final = 3
_FEWEST_CELLS: Final = 2  # of a row below the header
_MOST_CELLS: Final = 40
_DIGIT: Final = re.compile(r"\d")
_BEFORE_NUMBER: Final = re.compile(r"\S.*\s\W{0,4}\d")


class Word(NamedTuple):
    """With its left and right edge, in points."""

    text: str
    left: float
    right: float


class Line(NamedTuple):
    """Words from left to right, and how high the tallest letter is; `text` is the line as it is given."""

    text: str
    words: list[Word]
    height: float


def may_hold_table(page: str) -> bool:
    """A quick look at a page's text: whether a line without digits stands above two that have numbers."""
    lines = page.splitlines()
    with_numbers = [_BEFORE_NUMBER.match(line.strip()) is not None for line in lines]
    return any(
        with_numbers[at] and below and at > 0 and _is_header(lines[at - 1])
        for at, (_, below) in enumerate(pairwise(with_numbers))
    )


def _is_header(line: str) -> bool:
    return len(line.split()) >= _FEWEST_NAMES and _DIGIT.search(line) is None


def named_rows(lines: list[Line]) -> dict[int, str]:
    """Place of a line -> what takes its place, each value beside its column's name; headers included."""
    rows = [_cells(line) for line in lines]
    found: dict[int, str] = {}
    at = 0
    while at < len(rows):
        made = _table(rows, at)
        found.update(enumerate(made, start=at))
        at += len(made) or 1
    return found


def _table(rows: list[list[Word]], at: int) -> list[str]:
    """The lines of the table that begins with that header; none if it does not."""
    header = rows[at]
    if not _FEWEST_NAMES <= len(header) <= _MOST_CELLS or any(_DIGIT.search(cell.text) for cell in header):
        return []
    table = Table()
    made = [*table.add({column: cell.text for column, cell in enumerate(header)})]
    for cells in rows[at + 1 :]:
        row = _below(header, cells)
        if row is None:
            break
        made += table.add(row)
    made += table.end()
    return made if table.has_names else []


def _below(header: list[Word], cells: list[Word]) -> Row | None:
    """The cells by column; `None` where one does not lie below exactly one name, or two below the same."""
    row: Row = {}
    for cell in cells:
        under = [at for at, name in enumerate(header) if cell.left < name.right and name.left < cell.right]
        if not under:
            under = [_nearest(header, cell)]
        if len(under) > 1 or under[0] in row:
            return None
        row[under[0]] = cell.text
    return row if len(row) >= _FEWEST_CELLS else None


def _nearest(header: list[Word], cell: Word) -> int:
    def distance(at: int) -> float:
        return max(header[at].left - cell.right, cell.left - header[at].right)

    return min(range(len(header)), key=distance)


def _cells(line: Line) -> list[Word]:
    """Words as close as in a sentence are one cell; none where they do not go from left to right."""
    cells: list[Word] = []
    for word in line.words:
        if cells and word.left < cells[-1].left:
            return []
        if cells and word.left - cells[-1].right < _GAP * line.height:
            last = cells.pop()
            cells.append(Word(f"{last.text} {word.text}", last.left, max(word.right, last.right)))
        else:
            cells.append(word)
    return cells
