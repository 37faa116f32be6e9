"""A table of an HTML page while it is read: the words of its cells by column, and the rows of its header."""

from collections.abc import Iterator, Mapping
from typing import Final

from sherlock.rag.parsers.rows import Row, Table, count_in

_MOST_COLUMNS: Final = 1_000  # that a cell may span, as in the HTML standard
_MOST_ROWS: Final = 65_534


class HtmlTable:
    """Told the tags and words between `<table>` and `</table>` of a table that holds no other."""

    def __init__(self) -> None:
        self._rows: list[tuple[Row, Row | None]] = []
        """Each with the names it gives to columns, if it is a header."""
        self._outside: list[str] = []
        """Words in no cell: a caption."""
        self._cells: dict[int, list[str]] = {}
        """Of the open row: column -> words."""
        self._tags: list[str] = []
        self._column = self._next_column = 0
        self._spans: dict[int, int] = {}
        """Of the open row: column -> how many the cell that begins there spans."""
        self._covered: dict[int, int] = {}
        """Column -> for how many rows more a cell above reaches down into it."""
        self._hidden: set[int] = set()
        """Those of the open row."""
        self._in_head = False

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        match tag:
            case "thead":
                self._in_head = True
            case "tr":
                self._end_row()
                self._hidden = {column for column, rows in self._covered.items() if rows}
                self._covered = {column: rows - 1 for column, rows in self._covered.items() if rows}
            case "td" | "th":
                while self._next_column in self._hidden:
                    self._next_column += 1
                self._column = self._next_column
                self._tags.append(tag)
                columns = min(max(count_in(attributes.get("colspan") or "", 1), 1), _MOST_COLUMNS)
                if rows := min(count_in(attributes.get("rowspan") or "", 1), _MOST_ROWS) - 1:
                    self._covered.update((self._column + at, rows) for at in range(columns))
                self._spans[self._column] = columns
                self._next_column += columns

    def end(self, tag: str) -> None:
        if tag == "thead":
            self._end_row()
            self._in_head = False

    def data(self, words: str) -> None:
        """Words, with the blanks around them."""
        into = self._cells.setdefault(self._column, []) if self._tags else self._outside
        into.append(words)

    def lines(self) -> Iterator[str]:
        """The caption, then a line a row, each cell beside its column's name; none without a header."""
        self._end_row()
        table = Table()
        lines = [line for row, names in self._rows for line in table.add(row, names=names)]
        lines += table.end()
        if table.has_names:
            if caption := " ".join("".join(self._outside).split()):
                yield f"{caption}\n"
            yield from lines

    def _end_row(self) -> None:
        shown = {column: " ".join("".join(words).split()) for column, words in self._cells.items()}
        row = {column: words for column, words in shown.items() if words}
        names = None
        if self._tags and (self._in_head or {*self._tags} == {"th"}):
            names = {column + at: words for column, words in row.items() for at in range(self._spans[column])}
        self._rows.append((row, names))
        self._cells, self._tags, self._spans, self._next_column = {}, [], {}, 0
