"""Tables of a PDF by positions: their rows carry their columns' names, and nothing else changes."""

import io
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reportlab.pdfgen.canvas import Canvas

from sherlock.rag.domain.models import Section
from sherlock.rag.parsers import parse
from sherlock.rag.parsers.pdf_tables import Line, Word, may_hold_table, named_rows

HEADER = ("Pump", "Max. pressure", "Seal")
BODY = (("P1 heavy duty", "7.5", "EPDM"), ("P2", "8", ""), ("P3", "9.25", "NBR"))
NAMED = [
    "Pump | Max. pressure | Seal",
    "Pump: P1 heavy duty; Max. pressure: 7.5; Seal: EPDM",
    "Pump: P2; Max. pressure: 8",
    "Pump: P3; Max. pressure: 9.25; Seal: NBR",
]
COLUMNS = (72, 200, 330)


def page(*lines: str | Sequence[str], ruled: bool = False, right: bool = False) -> bytes:
    """A line is prose, or cells at `COLUMNS`; `right`: all but the first end where the column's name ends."""
    content = io.BytesIO()
    canvas = Canvas(content)
    for number, line in enumerate(lines):
        y = 760 - 18 * number
        if isinstance(line, str):
            canvas.drawString(72, y, line)
            continue
        for at, (x, cell) in enumerate(zip(COLUMNS, line, strict=True)):
            if right and at:
                canvas.drawRightString(x + canvas.stringWidth(HEADER[at]), y, cell)
            else:
                canvas.drawString(x, y, cell)
            if ruled:
                canvas.rect(x - 4, y - 5, 120, 18)
    canvas.save()
    return content.getvalue()


def read(folder: Path, content: bytes) -> list[Section]:
    (folder / "stored").write_bytes(content)
    return [*parse(folder / "stored", "a.pdf")]


@pytest.mark.parametrize("ruled", [True, False])
@pytest.mark.parametrize("right", [True, False])
def test_rows_between_prose(tmp_path: Path, ruled: bool, right: bool) -> None:
    content = page(
        "Three pumps of 2024 follow here.", HEADER, *BODY, "They are all sold out.", ruled=ruled, right=right
    )
    sections = read(tmp_path, content)
    assert [line for one in sections if one.records for line in one.text.splitlines()] == NAMED
    assert "".join(one.text for one in sections if not one.records).split() == (
        ["Three", "pumps", "of", "2024", "follow", "here.", "They", "are", "all", "sold", "out."]
    )
    assert {one.page for one in sections} == {1}


@pytest.mark.parametrize(
    "lines",
    [
        [("Name", "Peter", "Pan"), ("Age", "twelve", "years"), ("Town", "London", "west")],
        [HEADER, BODY[0], "A line of prose that runs on below all of the names, 2024 in all.", BODY[1]],
        [("2021", "2022", "2023"), ("1", "2", "3"), ("4", "5", "6")],
        ["See the pumps below:", "P1 was built in 2001 and 2002.", "P2 was built in 2003 and 2004."],
    ],
)
def test_what_is_less_plain_stays_as_it_is(tmp_path: Path, lines: list[str | Sequence[str]]) -> None:
    sections = read(tmp_path, page(*lines))
    assert not any(section.records for section in sections)
    words = [
        word
        for line in lines
        for cell in ([line] if isinstance(line, str) else line)
        for word in cell.split()
    ]
    assert "".join(section.text for section in sections).split() == words


def line_of(cells: Sequence[tuple[str, float]]) -> Line:
    words = [Word(text, left, left + 6 * len(text)) for text, left in cells]
    return Line(" ".join(text for text, _ in cells), words, 9.0)


@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from(["pump", "7.5", "Seal", "8"]), st.floats(0, 500)), max_size=5)
    )
)
def test_every_word_of_a_named_line_is_in_its_row(cells: list[list[tuple[str, float]]]) -> None:
    lines = [line_of(row) for row in cells]
    for at, row in named_rows(lines).items():
        assert all(word.text in row for word in lines[at].words)
        assert row.endswith("\n")
        assert "\n" not in row[:-1]


def test_a_page_without_numbers_below_names_is_not_looked_at() -> None:
    assert may_hold_table("Pump rate seal\nP1 7.5 x\nP2 8 y\n")
    assert not may_hold_table("Pump rate seal\nP1 a x\nP2 b y\n")
    assert not may_hold_table("Rate 1 in 2\nP1 7.5 x\nP2 8 y\n")
    assert not may_hold_table("")
