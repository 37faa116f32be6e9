"""Office documents, e-books, messages, markup and code: what is read of each, and where it stands."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests import documents

from sherlock.rag.domain.errors import InvalidFile, UnsupportedFile
from sherlock.rag.domain.models import Section
from sherlock.rag.parsers import package, parse
from sherlock.rag.parsers.number_format import as_shown
from sherlock.rag.parsers.rows import row_lines

DATA = Path(__file__).parents[1] / "data"

Read = Callable[[str, bytes | str], list[Section]]
Found = list[tuple[int | None, str | None, str]]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Parse content under a name; sections without text only carry notes."""

    def sections(filename: str, content: bytes | str) -> list[Section]:
        path = tmp_path / "stored"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return [section for section in parse(path, filename) if section.text]

    return sections


def found(sections: list[Section]) -> Found:
    return [(section.page, section.heading, section.text) for section in sections]


def text_of(sections: list[Section]) -> str:
    return "".join(section.text for section in sections)


# ── PDF ─────────────────────────────────────────────────────────────────────


def test_bookmarks_are_headings(read: Read):
    content = documents.pdf(
        ("Preface", "to the handbook"),
        ("end of it", "1 Pumps", "move water", "1.1  The valve", "opens"),
        ("and closes",),
        bookmarks={"Preface": (0, 0), "Pumps": (1, 0), "1.1 The valve": (1, 1)},
    )
    assert [(page, heading, text.split()) for page, heading, text in found(read("a.pdf", content))] == [
        (1, "Preface", ["Preface", "to", "the", "handbook"]),
        (2, "Preface", ["end", "of", "it"]),
        (2, "Pumps", ["1", "Pumps", "move", "water"]),
        (2, "Pumps > 1.1 The valve", ["1.1", "The", "valve", "opens"]),
        (3, "Pumps > 1.1 The valve", ["and", "closes"]),
    ]


def test_headers_and_footers_are_kept_once(read: Read):
    words = [[f"line {page}{line}" for line in "abcd"] for page in "pqrst"]
    pages = [
        ("Pump handbook", f"Part {'one' if at < 3 else 'two'}", *lines, f"page {at + 11} of 15")
        for at, lines in enumerate(words)
    ]
    texts = [section.text.strip().splitlines() for section in read("a.pdf", documents.pdf(*pages))]
    assert texts[0] == ["Pump handbook", "Part one", *words[0], "page 11 of 15"]
    assert texts[1:3] == words[1:3]
    assert texts[3:] == [["Part two", *words[3]], ["Part two", *words[4]]]


def test_short_pages_that_repeat_are_kept(read: Read):
    assert text_of(read("a.pdf", documents.pdf(*[("Stop", "here")] * 5))).split() == ["Stop", "here"] * 5


def test_scans_are_told_with_their_pages(read: Read):
    with pytest.raises(InvalidFile, match=r"no text: its pages \(3\) .* OCR is off"):
        read("a.pdf", documents.pdf((), (), ()))


# ── presentations ───────────────────────────────────────────────────────────

TABLE = (
    "<graphicFrame><a:tbl><a:tr><a:tc><a:p><a:t>Part</a:t></a:p></a:tc><a:tc><a:p><a:t>No</a:t></a:p></a:tc>"
    "</a:tr><a:tr><a:tc><a:p><a:t>gasket</a:t></a:p></a:tc><a:tc><a:p><a:t>7714</a:t></a:p></a:tc></a:tr>"
    "</a:tbl></graphicFrame>"
)


def test_slides_come_in_order_with_title_body_and_notes(read: Read):
    title = documents.shape("Pump", kind="title")
    number = documents.shape("7", kind="sldNum")
    group = f"<grpSp><grpSp>{documents.shape('It moves', 'water')}</grpSp></grpSp>"
    notes = documents.shape("Speak slowly", kind="body") + documents.shape("1", kind="sldNum")
    content = documents.pptx((group + title + number, notes), (TABLE, ""))
    assert found(read("a.pptx", content)) == [
        (1, "Pump", "Pump\n\nIt moves\nwater\n\nSpeak slowly\n\n"),
        (2, None, "Part | No\ngasket | 7714\n\n"),
    ]


# ── spreadsheets ────────────────────────────────────────────────────────────


def test_rows_of_a_sheet_carry_the_names_of_their_columns(read: Read):
    rows = (
        '<row r="1"><c r="A1" t="inlineStr"><is><t>Stock</t><rPh><t>no</t></rPh></is></c></row>'
        '<row r="2"><c r="A2" t="s"><v>0</v></c><c r="C2" t="s"><v>1</v></c>'
        '<c r="D2" t="s"><v>2</v></c></row>'
        '<row r="3"><c r="A3" t="str"><f>X()</f><v>gasket</v></c><c r="C3" s="1"><v>0.125</v></c>'
        '<c r="D3" s="2"><v>47911</v></c></row>'
        '<row r="5"><c r="B5" t="b"><v>1</v></c><c r="C5"><v>3.0</v></c></row>'
    )
    content = documents.xlsx(
        {"Valves": rows, "Empty": ""}, ("Part", "Share", "Since"), ("General", "0.0%", "m/d/yy")
    )
    assert found(read("a.xlsx", content)) == [
        (
            None,
            "Valves",
            "Valves\n\nStock\nPart | Share | Since\nPart: gasket; Share: 12.5%; Since: 2031-03-04\n\n"
            "TRUE | 3\n\n",
        )
    ]


def test_binary_sheets_are_read_too(read: Read):
    text = text_of(read("parts.xls", (DATA / "parts.xls").read_bytes()))
    assert "Part: gasket; Price: 7.5; Since: 2031-03-04\nPart: spring; Price: 12;" in text


@pytest.mark.parametrize(
    ("value", "code", "shown"),
    [
        ("1599.99", "#,##0.00", "1599.99"),
        ("1599.99", "$#,##0.00;[Red]($#,##0.00)", "$1599.99"),
        ("-1599.99", "$#,##0.00;[Red]($#,##0.00)", "($1599.99)"),
        ("-3.5", "0.0", "-3.5"),
        ("-3.5", "$0.0", "-$3.5"),
        ("12", "[$€-407] 0.00", "€ 12.00"),
        ("0.025", "0.0%", "2.5%"),
        ("7", '0.00" bar"', "7.00 bar"),
        ("1.5", "0.0##", "1.5"),
        ("2", "0.##", "2"),
        ("1500000", "0.0,,", "1.5"),
        ("198000000", "0.00E+00", "1.98E+8"),
        ("0.1", "", "0.1"),
        ("0.30000000000000004", "General", "0.3"),
        ("1E+2", "General", "100"),
        ("2.5", "# ?/?", "2.5"),
        ("45000", "yyyy-mm-dd", "2023-03-15"),
        ("45000.5", "d.m.yyyy hh:mm", "2023-03-15 12:00"),
        ("0.75", "h:mm AM/PM", "18:00"),
        ("1.5", "[h]:mm", "36:00:00"),
        ("1", "yyyy", "1900-01-01"),
        ("-5", "yyyy-mm-dd", "-5"),
        ("no number", "0.00", "no number"),
        ("NaN", "0.00", "NaN"),
        ("1E+999999", "0.00", "1E+999999"),
        ("1e999", "General", "1e999"),
        ("1e-999", "", "1e-999"),
    ],
)
def test_numbers_as_their_format_shows_them(value: str, code: str, shown: str):
    assert as_shown(value, code) == shown


def test_dates_may_count_from_1904():
    assert as_shown("43538", "yyyy-mm-dd", from_1904=True) == "2023-03-15"


def test_each_table_of_a_sheet_has_its_own_header():
    rows = [{0: "A", 1: "B"}, {0: "1", 1: "2"}, {}, {}, {0: "C", 1: "D"}, {1: "4"}, {}, {2: "x", 3: "5"}]
    assert [*row_lines(rows)] == ["A | B\n", "A: 1; B: 2\n", "\n", "C | D\n", "D: 4\n", "\n", "x | 5\n"]


# ── OpenDocument ────────────────────────────────────────────────────────────


def odf_rows(*rows: tuple[str, ...], repeated: int = 1) -> str:
    return "".join(
        f'<table:table-row table:number-rows-repeated="{repeated}">'
        + "".join(f"<table:table-cell><text:p>{cell}</text:p></table:table-cell>" for cell in row)
        + "</table:table-row>"
        for row in rows
    )


def test_opendocument_text(read: Read):
    body = (
        "<text:tracked-changes><text:p>gone</text:p></text:tracked-changes>"
        '<text:h text:outline-level="1">Pump</text:h><text:p>It<text:s text:c="2"/>runs\n  <text:span>fast'
        "</text:span><text:note><text:note-citation>1</text:note-citation><text:note-body>"
        "<text:p>A note</text:p>"
        '</text:note-body></text:note>.</text:p><text:h text:outline-level="2">Parts</text:h>'
        f"<table:table><table:table-header-rows>{odf_rows(('Part', 'No'))}</table:table-header-rows>"
        f"{odf_rows(('gasket', '7714'))}</table:table>"
        "<text:list><text:list-item><text:p>one</text:p></text:list-item></text:list>"
    )
    assert found(read("a.odt", documents.opendocument("text", body))) == [
        (None, "Pump", "Pump\n\nIt  runs fast \nA note.\n\n"),
        (None, "Pump > Parts", "Parts\n\n"),
        (None, "Pump > Parts", "Part | No\nPart: gasket; No: 7714\n\n"),
        (None, "Pump > Parts", "one\n\n"),
    ]


def test_opendocument_sheets_show_what_cells_show(read: Read):
    rows = odf_rows(("Part", "Price"), ("gasket", "7,50 €")) + odf_rows(("", ""), repeated=1_048_574)
    body = f'<table:table table:name="Valves">{rows}</table:table><table:table table:name="Empty"/>'
    assert found(read("a.ods", documents.opendocument("spreadsheet", body))) == [
        (None, "Valves", "Valves\n\nPart | Price\nPart: gasket; Price: 7,50 €\n\n\n")
    ]


def test_opendocument_slides(read: Read):
    frame = "<draw:frame {0}><draw:text-box><text:p>{1}</text:p></draw:text-box></draw:frame>"
    page = frame.format("", "It moves water") + frame.format('presentation:class="title"', "Pump")
    notes = f"<presentation:notes>{frame.format('', 'Speak slowly')}</presentation:notes>"
    body = f"<draw:page>{page}{notes}</draw:page><draw:page>{frame.format('', 'End')}</draw:page>"
    assert found(read("a.odp", documents.opendocument("presentation", body))) == [
        (1, "Pump", "Pump\n\nIt moves water\n\nSpeak slowly\n\n"),
        (2, None, "End\n\n"),
    ]


def test_locked_opendocument_is_refused(read: Read):
    manifest = {"META-INF/manifest.xml": "<manifest><file-entry><encryption-data/></file-entry></manifest>"}
    with pytest.raises(InvalidFile, match="password"):
        read("a.odt", documents.opendocument("text", "<text:p>x</text:p>", **manifest))


# ── e-books, messages ───────────────────────────────────────────────────────


def test_chapters_come_in_reading_order(read: Read):
    content = documents.epub("<html><h1>One</h1><p>café</p></html>", "<html><h1>Two</h1><p>end</p></html>")
    sections = read("book.epub", content)
    assert text_of(sections) == "One\n\ncafé\n\nTwo\n\nend\n\n"
    assert [section.heading for section in sections if section.text.strip()] == ["One", "Two"]


def test_copy_protected_books_are_refused_but_not_those_with_locked_fonts(read: Read):
    assert read("book.epub", documents.epub("<p>free</p>", locked="OPS/font.otf"))
    with pytest.raises(InvalidFile, match="copy-protected"):
        read("book.epub", documents.epub("<p>locked</p>", locked="OPS/text/chapter%200.xhtml"))


def test_messages_with_attachments_and_forwarded_ones(read: Read):
    sections = read("a.eml", documents.eml())
    text = text_of(sections)
    assert text.startswith("Subject: Re: Ventile für Köln\nFrom: Rosalind Ekwueme <r@example.com>\n")
    assert "The valve opens at 4.2 bar — not before." in text
    assert "in HTML" not in text
    assert "Attachment: drawing.png" in text
    assert "Forty gaskets, please." in text
    assert (sections[0].heading, sections[-1].heading) == ("Re: Ventile für Köln", "Gasket order")


def test_a_message_in_html_alone(read: Read):
    source = "Subject: Hi\nContent-Type: text/html; charset=nonsense\n\n<p>one<br>two &amp; three</p>\n"
    assert text_of(read("a.eml", source)) == "Subject: Hi\n\none\ntwo & three\n\n"


@pytest.mark.parametrize("declared", ["multipart/mixed", 'multipart/mixed; boundary="never"'])
def test_a_message_whose_parts_cannot_be_told_apart_is_text(read: Read, declared: str):
    message = f"Subject: Pump\nContent-Type: {declared}\n\n--b\n\nThe valve öffnet.\n--b--\n"
    assert "The valve öffnet." in text_of(read("a.eml", message))


def test_messages_of_too_many_parts_are_refused_in_time(read: Read):
    def message(parts: int) -> str:
        return 'Content-Type: multipart/mixed; boundary="b"\n\n' + "--b\n\nwords\n" * parts + "--b--\n"

    assert "words" in text_of(read("a.eml", message(1_000)))
    with pytest.raises(InvalidFile, match="more than the 2000 parts"):
        read("a.eml", message(200_000))


def test_outlook_messages(read: Read):
    content = documents.msg(subject="Gaskets", sender="Rosalind", to="Stores", body="Forty,\r\nplease.")
    text = text_of(read("a.msg", content))
    assert text.replace("\n\n", "\n").startswith(
        "Subject: Gaskets\nFrom: Rosalind\nTo: Stores\nDate: 2031-02-11 00:00 UTC\nForty,\nplease."
    )


def test_rich_text(read: Read):
    source = r"{\rtf1\ansi{\fonttbl\f0 Arial;}\f0 Gr\u252?\'dfe aus K\'f6ln\par {\b Ende}\par}"
    for name in ("a.rtf", "a.doc", "a.txt"):
        assert text_of(read(name, source)) == "Grüße aus Köln\nEnde\n"


MULTIPLYING = "<!DOCTYPE a [<!ENTITY e0 'bbbbbbbbbb'>{}]><a>&e8;</a>".format(
    "".join(f"<!ENTITY e{n} '{f'&e{n - 1};' * 10}'>" for n in range(1, 9))
)


# ── markup, notebooks, code ─────────────────────────────────────────────────


def test_xml_names_its_texts(read: Read):
    source = (
        '<?xml version="1.0" encoding="iso-8859-1"?><parts><part id="7"><name>gasket für Öl</name><note>use '
        "<b>two</b> of them</note><none/></part><part><name>spring</name></part></parts>"
    )
    assert text_of(read("a.xml", source.encode("latin-1"))) == (
        "parts:\n\n  part (id: 7):\n    name: gasket für Öl\n    note: use two of them\n"
        "\n  part:\n    name: spring\n"
    )


@pytest.mark.parametrize(
    "source",
    [
        "<a><b>never closed",
        "<a>" * 100_000,
        '<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/hostname">]><a>&x;</a>',
        MULTIPLYING,
    ],
    ids=["broken", "deep", "external entity", "entities that multiply"],
)
def test_xml_that_cannot_be_read_stands_as_it_is(read: Read, source: str):
    try:
        text = text_of(read("a.xml", source))
    except InvalidFile:
        return  # the entity was left out, and nothing else was there
    assert text == source


def test_notebooks(read: Read):
    content = documents.notebook(
        ("markdown", ["# Pump\n", "It moves water."], []),
        ("code", ["# no heading\n", "print(1)"], [{"text": ["1\n"]}, {"data": {"text/plain": "2"}}]),
        ("code", ["x = '```'"], [{"ename": "NameError", "evalue": "y", "traceback": ["\x1b[0m"]}]),
    )
    assert found(read("a.ipynb", content)) == [
        (
            None,
            "Pump",
            "# Pump\nIt moves water.\n\n```python\n# no heading\nprint(1)\n```\n\n```\n1\n```\n\n"
            "```\n2\n```\n\n"
            "````python\nx = '```'\n````\n\n```\nNameError: y\n```\n\n",
        )
    ]
    assert text_of(read("a.ipynb", '{"a": 1}')) == "a: 1\n\n"


PYTHON = '''import x

# The flow.
@traced
def flow(
    rate,
):
    """For example
    def no(): ...
    """
    return rate

class Pump:
    size = 1

    def run(self): ...

LAST = flow
'''


def test_python_by_symbol(read: Read):
    sections = read("a.py", PYTHON)
    assert text_of(sections) == PYTHON
    assert [section.heading for section in sections] == [None, "flow", "Pump", "Pump > run", None]
    assert sections[1].text.startswith("# The flow.\n@traced\ndef flow(")


@pytest.mark.parametrize(
    ("name", "source", "headings"),
    [
        (
            "A.java",
            "package x;\n\n/** It pumps. */\n@Fast\npublic final class Pump {\n  int x;\n\n"
            "  public int run(int a) {\n"
            "    if (a > 0) {\n      return 1;\n    }\n  }\n}\n",
            [None, "Pump", "Pump > run", "Pump"],
        ),
        (
            "a.go",
            "package x\n\nfunc (p *Pump) Run() int {\n\treturn 1\n}\n\ntype T struct {\n}\n",
            [None, "Run", "T"],
        ),
        (
            "a.rs",
            "use x;\npub struct P {}\nimpl<T> P {\n    pub fn run() {}\n}\n",
            [None, "P", "P", "P > run", "P"],
        ),
        ("a.ts", "export class A {\n}\nexport const f = (x: number) => {\n}\n", ["A", "f"]),
        ("a.c", "#include <x>\n\nstatic int run(int a)\n{\n  return a;\n}\n", [None, "run"]),
        (
            "a.sql",
            "CREATE TABLE IF NOT EXISTS parts (\n  id int\n);\n\ncreate view v as select 1;\n",
            ["parts", "v"],
        ),
        ("a.sh", "set -e\nrun() {\n  echo 1\n}\n", [None, "run"]),
        ("a.rb", "module A\n  def run\n  end\nend\n", ["A", "A > run", "A"]),
    ],
)
def test_code_by_symbol(read: Read, name: str, source: str, headings: list[str | None]):
    sections = read(name, source)
    assert text_of(sections) == source
    assert [section.heading for section in sections] == headings


# ── kinds under other names ─────────────────────────────────────────────────


def test_content_goes_before_the_name(read: Read):
    sheet = documents.xlsx({"S": '<row r="1"><c r="A1"><v>7714</v></c></row>'})
    assert "7714" in text_of(read("a.docx", sheet))
    assert "7714" in text_of(read("noname", sheet))
    assert text_of(read("report.xls", "<html><body><p>seven</p></body></html>")) == "seven"
    assert "No: 7714" in text_of(read("report.xls", "Part\tNo\ngasket\t7714\n"))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.zip", documents.packed({"readme.txt": "x"})),
        ("a.jar", documents.packed({"META-INF/MANIFEST.MF": "x"})),
        ("a.txt", b"\x1f\x8b\x08" + b"words " * 20),
        ("a.7z", b"7z\xbc\xaf\x27\x1c" + bytes(50)),
        ("a.rar", b"Rar!\x1a\x07\x00" + bytes(50)),
        ("a.tar", b"a.txt".ljust(257, b"\0") + b"ustar\0" + bytes(250) + b"words"),
    ],
)
def test_archives_are_refused_by_name(read: Read, name: str, content: bytes):
    with pytest.raises(UnsupportedFile, match="Archives are not unpacked"):
        read(name, content)


def test_a_zip_that_is_not_what_its_name_says(read: Read):
    with pytest.raises(UnsupportedFile, match="not a XLSX document"):
        read("a.xlsx", documents.packed({"readme.txt": "x"}))


@pytest.mark.parametrize("name", ["a.xls", "a.msg"])
def test_broken_containers_are_invalid(read: Read, name: str):
    with pytest.raises(InvalidFile, match="damaged"):
        read(name, b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(2_000))


def test_packages_that_unpack_to_too_much_are_refused(read: Read, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(package, "_MAX_UNPACKED_BYTES", 100_000)
    blank = " " * 200_000
    for name, content in {
        "a.pptx": documents.pptx((documents.shape(blank), "")),
        "a.xlsx": documents.xlsx({"S": ""}, (blank,)),
        "a.ods": documents.opendocument("spreadsheet", blank),
        "a.epub": documents.epub(f"<p>{blank}</p>"),
    }.items():
        with pytest.raises(InvalidFile, match="unpacks to more"):
            read(name, content)
