"""Rows of tables in documents carry the names of their columns, where there is a header."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.documents import docx, opendocument, pptx

from sherlock.rag.chunker import chunk
from sherlock.rag.domain.models import ChunkingStrategy, Section
from sherlock.rag.parsers import parse
from sherlock.rag.parsers.rows import Table
from sherlock.rag.tokens import Cl100kCounter

Read = Callable[[str, bytes | str], list[Section]]

HEADER = ("Pump", "Pressure", "Seal")
BODY = (("P1", "7.5", "EPDM"), ("P2", "8", "FKM"), ("P3", "9.25", "NBR"))
NAMED = [
    "Pump | Pressure | Seal",
    "Pump: P1; Pressure: 7.5; Seal: EPDM",
    "Pump: P2; Pressure: 8; Seal: FKM",
    "Pump: P3; Pressure: 9.25; Seal: NBR",
]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def sections(filename: str, content: bytes | str) -> list[Section]:
        path = tmp_path / "stored"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return [section for section in parse(path, filename) if section.text]

    return sections


def records(sections: list[Section]) -> list[str]:
    return [line for one in sections if one.records for line in one.text.splitlines() if line]


def lines_of(*rows: tuple[str, ...], marked: bool = False) -> list[str]:
    table = Table()
    made = []
    for number, cells in enumerate(rows):
        row = {at: cell for at, cell in enumerate(cells) if cell}
        made += table.add(row, names=row if marked and number == 0 else None)
    return [line.rstrip() for line in (*made, *table.end())]


# ── what is a header ────────────────────────────────────────────────────────


def test_names_above_numbers_are_a_header() -> None:
    assert lines_of(HEADER, *BODY) == NAMED
    assert lines_of(HEADER, *BODY * 40)[:4] == NAMED


@pytest.mark.parametrize(
    "rows",
    [
        [("Name", "Peter"), ("Age", "12"), ("Height", "180")],
        [("Kind", "Colour", "Shape"), ("apple", "red", "round"), ("pear", "green", "long")],
        [("2021", "2022", "2023"), ("1", "2", "3"), ("4", "5", "6")],
        [HEADER, BODY[0]],
        [HEADER],
    ],
)
def test_without_evidence_values_stand_alone(rows: list[tuple[str, ...]]) -> None:
    assert lines_of(*rows) == [" | ".join(row) for row in rows]


def test_a_marked_header_needs_no_evidence() -> None:
    assert lines_of(("Kind", "Colour"), ("apple", "red"), marked=True) == [
        "Kind | Colour",
        "Kind: apple; Colour: red",
    ]
    title = ("All fruit", "All fruit")
    assert lines_of(title, ("apple", "red"), marked=True) == ["All fruit | All fruit", "apple | red"]


# ── formats ─────────────────────────────────────────────────────────────────


def word_row(cells: tuple[str, ...], properties: str = "") -> str:
    inner = "".join(f"<w:tc><w:p><w:r><w:t>{cell}</w:t></w:r></w:p></w:tc>" for cell in cells)
    return f"<w:tr>{properties}{inner}</w:tr>"


def test_word(read: Read) -> None:
    marked = word_row(HEADER, "<w:trPr><w:tblHeader/></w:trPr>")
    table = f"<w:tbl>{marked}{''.join(map(word_row, BODY))}</w:tbl>"
    words = "<w:p><w:r><w:t>About pumps.</w:t></w:r></w:p>"
    sections = read("a.docx", docx(words + table + words))
    assert records(sections) == NAMED
    assert [section.records for section in sections] == [False, True, False]
    wide = "<w:tc><w:tcPr><w:gridSpan w:val='2'/></w:tcPr><w:p><w:r><w:t>P4</w:t></w:r></w:p></w:tc>"
    spanned = f"<w:tr>{wide}<w:tc><w:p><w:r><w:t>PTFE</w:t></w:r></w:p></w:tc></w:tr>"
    assert records(read("a.docx", docx(f"<w:tbl>{marked}{spanned}</w:tbl>")))[1] == "Pump: P4; Seal: PTFE"


def test_slides(read: Read) -> None:
    def row(cells: tuple[str, ...]) -> str:
        inner = "".join(f"<a:tc><a:p><a:r><a:t>{cell}</a:t></a:r></a:p></a:tc>" for cell in cells)
        return f"<a:tr>{inner}</a:tr>"

    rows = "".join(map(row, (HEADER, *BODY)))
    table = f"<graphicFrame><a:tbl><a:tblPr firstRow='1'/>{rows}</a:tbl></graphicFrame>"
    sections = read("a.pptx", pptx((table, "")))
    assert records(sections) == NAMED
    assert {section.page for section in sections} == {1}


def test_opendocument_text(read: Read) -> None:
    def row(cells: tuple[str, ...]) -> str:
        inner = "".join(f"<table:table-cell><text:p>{cell}</text:p></table:table-cell>" for cell in cells)
        return f"<table:table-row>{inner}</table:table-row>"

    header = f"<table:table-header-rows>{row(HEADER)}</table:table-header-rows>"
    table = f"<table:table>{header}{''.join(map(row, BODY))}</table:table>"
    assert records(read("a.odt", opendocument("text", table))) == NAMED


def html_table(*rows: str) -> str:
    inner = "".join(f"<tr>{row}</tr>" for row in rows)
    return f"<p>Before</p><table><caption>All pumps</caption>{inner}</table>After"


def test_html(read: Read) -> None:
    body = ["".join(f"<td>{cell}</td>" for cell in row) for row in BODY]
    sections = read("a.html", html_table("<th>Pump<th>Pressure<th>Seal", *body))
    assert records(sections) == NAMED
    assert "".join(section.text for section in sections).split("Pump |")[0] == "Before\n\nAll pumps\n"
    assert sections[-1].text == "\nAfter"


def test_html_cells_that_span(read: Read) -> None:
    sections = read(
        "a.html",
        html_table(
            "<th>Pump<th colspan=2>Pressure<th>Seal",
            "<td rowspan=2>P1<td>7<td>8<td>EPDM",
            "<td>1<td>2<td>FKM",
        ),
    )
    assert records(sections)[1:] == [
        "Pump: P1; Pressure: 7; Pressure: 8; Seal: EPDM",
        "Pressure: 1; Pressure: 2; Seal: FKM",
    ]


def test_html_tables_for_layout_stay_as_they_are(read: Read) -> None:
    inner = "<table><tr><th>A<th>B<tr><td>1<td>2</table>"
    sections = read("a.html", f"<table><tr><td>Menu<td><h1>Title</h1>{inner}<tr><td>Foot</table>")
    assert records(sections) == []
    assert "A | B\n1 | 2" in "".join(section.text for section in sections)


def test_rows_that_fit_are_never_cut(read: Read) -> None:
    rows = "".join(f"<tr><td>Pump number {at}</td><td>{at / 4} bar</td></tr>" for at in range(200))
    sections = read("a.html", f"<table><tr><th>Pump</th><th>Pressure</th></tr>{rows}</table>")
    cut = [*chunk(sections, ChunkingStrategy(100, 20), Cl100kCounter())]
    assert len(cut) > 10
    for made in cut[1:]:
        assert all(
            line.startswith("Pump: Pump number") and line.endswith("bar") for line in made.text.splitlines()
        )
