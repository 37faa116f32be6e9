"""Parsers over real and broken files: what is read, under which heading and page, and what is refused."""

import contextlib
import io
import json
import threading
import tracemalloc
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sherlock.rag.domain.errors import IngestError, InvalidFile, UnsupportedFile
from sherlock.rag.domain.models import Section
from sherlock.rag.parsers import SUPPORTED_EXTENSIONS, is_supported, package, parse, tabular, text

DATA = Path(__file__).parents[1] / "data"
OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"

Read = Callable[[str, bytes | str], list[Section]]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Parse content under a name; sections without text only carry notes."""

    def sections(filename: str, content: bytes | str) -> list[Section]:
        path = tmp_path / "stored"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return [section for section in parse(path, filename) if section.text]

    return sections


def text_of(sections: list[Section]) -> str:
    return "".join(section.text for section in sections)


def data(name: str) -> bytes:
    return (DATA / name).read_bytes()


# ── plain text and encodings ────────────────────────────────────────────────

GERMAN = "Grüße aus Köln: Maß, Öl und Übermut.\n"
RUSSIAN = "Все люди рождаются свободными и равными в своём достоинстве и правах.\n"
JAPANESE = "すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。\n"


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        (GERMAN, "utf-8"),
        (GERMAN, "utf-8-sig"),
        (GERMAN, "utf-16"),
        (GERMAN, "utf-16-le"),
        (GERMAN, "utf-16-be"),
        (GERMAN, "utf-32"),
        (GERMAN, "utf-32-le"),
        (GERMAN, "utf-32-be"),
        (GERMAN, "cp1252"),
        ("It’s “quoted” – and costs 15 €.\n", "cp1252"),
        ("Příliš žluťoučký kůň úpěl ďábelské ódy.\n", "cp1250"),
        (RUSSIAN, "cp1251"),
        (RUSSIAN, "koi8-r"),
        (RUSSIAN, "cp866"),
        (JAPANESE, "cp932"),
        (JAPANESE, "euc-jp"),
        (JAPANESE, "iso2022_jp"),
        ("人人生而自由，在尊严和权利上一律平等。\n", "gb18030"),
        ("人人生而自由，在尊嚴和權利上一律平等。\n", "big5"),
        ("모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다.\n", "cp949"),
        ("Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια.\n", "cp1253"),
    ],
)
def test_text_in_any_encoding(read: Read, text: str, encoding: str):
    assert text_of(read("notes.txt", text.encode(encoding))) == text


def test_a_few_broken_bytes_cost_only_themselves(read: Read):
    content = (GERMAN * 30).encode() + b"\xff\xfe\xfd"
    assert text_of(read("notes.txt", content)).startswith(GERMAN * 30)


def test_line_ends_become_one_kind(read: Read):
    assert text_of(read("notes.txt", b"one\r\ntwo\rthree\n")) == "one\ntwo\nthree\n"


def test_long_text_comes_in_sections_of_whole_lines(read: Read):
    lines = "".join(f"This is line {number} of a long file.\n" for number in range(20_000))
    sections = read("long.log", lines)
    assert len(sections) > 5
    assert text_of(sections) == lines
    assert all(section.text.endswith("\n") for section in sections)


@pytest.mark.parametrize(
    "name", ["a.py", "a.go", "a.ts", "a.js", "a.tsx", "a.jsx", "a.yaml", "Makefile", "x.foo"]
)
def test_code_and_unknown_text_are_text(read: Read, name: str):
    assert text_of(read(name, "if a < b:\n\treturn '漢'\n")) == "if a < b:\n\treturn '漢'\n"


def test_nul_and_lone_surrogates_never_come_out(read: Read):
    assert text_of(read("notes.txt", b"one\0 two, and some more text")) == "one two, and some more text"
    text = text_of(read("pair.json", '{"half": "a\\ud83d", "whole": "\\ud83d\\ude00", "nul": "b\\u0000c"}'))
    assert "whole: 😀" in text
    assert "nul: bc" in text
    text.encode()


# ── headings ────────────────────────────────────────────────────────────────


def test_markdown_sections_follow_headings(read: Read):
    source = (
        "---\ntitle: front\n---\nBefore.\n\n# One #\ntext\n```sh\n# no heading\n```\n"
        "## Two *b*\nmore\n\n"
        "Three\n=====\n\nend\n\nFour\n----\n- item\n---\n#no heading\n"
    )
    sections = read("doc.md", source)
    assert text_of(sections) == source
    assert [section.heading for section in sections] == [
        None, "One", "One > Two *b*", "Three", "Three > Four",
    ]  # fmt: skip
    assert "# no heading" in sections[1].text
    assert sections[2].text.startswith("## Two")


def test_restructured_text_levels_come_in_order_of_use(read: Read):
    source = (
        "=====\nGuide\n=====\n\nIntro.\n\nSetup\n-----\nrun it\n\n  indented\n\n"
        "Use\n---\nx\n\nMore\n=====\ny\n"
    )
    sections = read("doc.rst", source)
    assert text_of(sections) == source
    assert [section.heading for section in sections] == [
        None, "Guide", "Guide > Setup", "Guide > Use", "More",
    ]  # fmt: skip


def test_html_is_what_a_reader_sees(read: Read):
    source = """<!doctype html><html><head><title>Pumps</title><style>p {color: red}</style>
      <script>var hidden = "<p>secret</p>";</script></head><body><h1>Pump &amp; valve</h1><p>First
      <b>bold</b>word, x<sup>2</sup>.</p><table><tr><th>Part</th><th>No</th></tr><tr><td>gasket</td>
      <td>7714</td></tr></table>
      <h2>Use</h2><ul><li>one<li>two</ul><pre>a\n  b</pre><img alt="A drawing"></body></html>"""
    sections = read("page.html", source)
    assert [section.heading for section in sections] == [
        None, "Pump & valve", "Pump & valve", "Pump & valve > Use",
    ]  # fmt: skip
    text = text_of(sections)
    assert "First boldword, x2." in text
    assert "Part | No\nPart: gasket; No: 7714" in text
    assert "one\ntwo" in text
    assert "a\n  b" in text
    assert "A drawing" in text
    assert not {"secret", "hidden", "color"} & {*text.replace('"', " ").split()}


def test_html_is_decoded_as_declared(read: Read):
    source = f'<html><meta charset="windows-1251"><p>{RUSSIAN}</p></html>'
    assert RUSSIAN.strip() in text_of(read("page.html", source.encode("cp1251")))


# ── tables and records ──────────────────────────────────────────────────────


def test_csv_records_carry_their_header(read: Read):
    source = (
        'name,price,note\nvalve,"1,50 €","says ""hi""\nand more"\ngasket,2.00,\n,,\nspring,3.00,ok,extra\n'
    )
    assert text_of(read("parts.csv", source)) == (
        "name,price,note\n"
        'name: valve; price: 1,50 €; note: says "hi" and more\n'
        "name: gasket; price: 2.00\n"
        "name: spring; price: 3.00; note: ok; extra\n"
    )


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_csv_delimiters_are_found(read: Read, delimiter: str):
    records = [["city", "people, about"], ["Paris", "2 million"], ["Oslo", "0.7 million"]]
    source = "\n".join(delimiter.join(f'"{field}"' for field in record) for record in records)
    assert "city: Paris; people, about: 2 million\n" in text_of(read("cities.csv", source))


def test_csv_without_header_is_left_alone(read: Read):
    assert text_of(read("n.csv", "1,2,3\n4,5,6\n")) == "1,2,3\n4,5,6\n"


def test_json_keeps_values_as_written(read: Read):
    source = (
        '{"id": 7, "price": 1.50, "big": 1e400, "tags": ["a", "b"], "on": true, "none": null, '
        '"deep": {"k": "v\\n2"}}'
    )
    assert text_of(read("a.json", source)) == (
        "id: 7\nprice: 1.50\nbig: 1e400\ntags: a, b\non: true\nnone: null\ndeep:\n  k: v\n2\n\n"
    )


def test_json_entries_are_paragraphs(read: Read):
    text = text_of(read("a.json", '[{"a": 1, "a": 2}, {"b": [{"c": []}, 3]}]'))
    assert text == "a: 1\na: 2\n\nb:\n  3\n\n"


@pytest.mark.parametrize(
    "source", ['{"name": "cut off', "[" * 100_000, "not json at all", '{"a": 1} trailing']
)
def test_broken_json_is_read_as_text(read: Read, source: str):
    assert text_of(read("a.json", source)) == source


def test_json_lines_are_read_one_by_one(read: Read):
    assert text_of(read("a.jsonl", '{"a": "x"}\n\n{broken\n{"a": "y"}\n')) == "a: x\n\n{broken\n\na: y\n\n"


# ── documents ───────────────────────────────────────────────────────────────


def test_pdf_pages_and_form_fields(read: Read):
    first, second = read("handbook.pdf", data("handbook.pdf"))
    assert (first.page, second.page) == (1, 2)
    assert "is an emergency: close the inlet first." in first.text
    assert "Rosalind Ekwueme" in first.text
    assert "gasket 7714" in second.text


def test_pdf_is_known_by_content(read: Read):
    assert "gasket 7714" in text_of(read("handbook.txt", data("handbook.pdf")))
    assert "gasket 7714" in text_of(read("no extension", data("handbook.pdf")))


def test_pdfs_are_read_side_by_side():
    start = threading.Barrier(4)

    def run(_: int) -> str:
        start.wait()
        return text_of([*parse(DATA / "handbook.pdf", "handbook.pdf")])

    with ThreadPoolExecutor(4) as threads:
        assert len({*threads.map(run, range(4))}) == 1


def test_docx_in_document_order(read: Read):
    sections = read("handbook.docx", data("handbook.docx"))
    assert text_of(sections) == (
        "Internal use only\n\nPump handbook\n\nThe pump moves water.\n\nValves\n\n"
        "The valve opens at 4.2 bar.\n\nPart | Number\ngasket | 7714\n\n"
        "Storage\n\nKeep it dry.\n\nEdition of 2031\n\n"
    )
    assert [section.heading for section in sections] == [
        None, "Pump handbook", "Pump handbook > Valves", "Pump handbook > Valves", "Storage", None,
    ]  # fmt: skip


def docx(body: str, parts: dict[str, str] | None = None, namespace: str = "urn:any") -> bytes:
    """A Word document of the XML given; `parts` are further parts by kind."""
    parts = parts or {}
    relation = '<Relationship Id="r{0}" Type="http://any/relationships/{0}" Target="{1}"/>'
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        relations = relation.format("officeDocument", "word/document.xml")
        archive.writestr("_rels/.rels", f"<Relationships>{relations}</Relationships>")
        archive.writestr(
            "word/document.xml", f'<w:document xmlns:w="{namespace}"><w:body>{body}</w:body></w:document>'
        )
        relations = "".join(relation.format(kind, f"{kind}.xml") for kind in parts)
        archive.writestr("word/_rels/document.xml.rels", f"<Relationships>{relations}</Relationships>")
        for kind, source in parts.items():
            archive.writestr(f"word/{kind}.xml", source)
    return packed.getvalue()


def paragraph(text: str) -> str:
    return f"<w:p><w:r><w:t>{text}</w:t></w:r></w:p>"


def test_docx_notes_boxes_and_changes(read: Read):
    body = (
        "<w:p><w:r><w:t>The pump</w:t><w:tab/><w:footnoteReference w:id='2'/></w:r>"
        "<w:ins><w:r><w:t>runs</w:t></w:r></w:ins><w:del><w:r><w:delText>stops</w:delText></w:r></w:del>"
        f"<w:r><w:pict><w:txbxContent>{paragraph('In a box')}</w:txbxContent></w:pict></w:r></w:p>"
        f"<w:tbl><w:tr><w:tc>{paragraph('a')}<w:tbl><w:tr><w:tc>{paragraph('inner')}</w:tc></w:tr></w:tbl></w:tc>"
        f"<w:tc>{paragraph('b')}</w:tc></w:tr></w:tbl><w:sdt><w:sdtContent>{paragraph('Controlled')}"
        "</w:sdtContent></w:sdt>"
    )
    note = f"<w:footnote w:id='2'>{paragraph('A note')}</w:footnote>"
    notes = f"<w:footnotes xmlns:w='urn:any'>{note}</w:footnotes>"
    assert text_of(read("a.docx", docx(body, {"footnotes": notes}))) == (
        "The pump\truns\n\nA note\n\nIn a box\n\na inner | b\n\nControlled\n\n"
    )


def test_docx_namespaces_do_not_matter(read: Read):
    strict = docx(paragraph("Strict text"), namespace="http://purl.oclc.org/ooxml/wordprocessingml/main")
    assert text_of(read("a.docx", strict)) == "Strict text\n\n"


def test_docx_bombs_are_refused(read: Read):
    entities = (
        '<!DOCTYPE a [<!ENTITY a "'
        + "x" * 1000
        + '">'
        + "".join(f'<!ENTITY a{n} "{f"&a{n - 1 or str()};" * 10}">' for n in range(1, 12))
        + "]>"
    )
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr(
            "_rels/.rels", '<R><Relationship Type="x/officeDocument" Target="word/document.xml"/></R>'
        )
        archive.writestr("word/document.xml", f"{entities}<d><body><p><t>&a11;</t></p></body></d>")
    with pytest.raises(InvalidFile):
        read("a.docx", packed.getvalue())


def test_large_docx_documents_are_refused(read: Read, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(package, "_MAX_UNPACKED_BYTES", 100_000)
    assert read("a.docx", docx(paragraph("small")))
    with pytest.raises(InvalidFile, match="unpacks to more"):
        read("a.docx", docx(paragraph("x" * 200_000)))
    header = f"<w:hdr xmlns:w='urn:any'>{paragraph('x' * 60_000)}</w:hdr>"
    with pytest.raises(InvalidFile, match="unpacks to more"):
        read("a.docx", docx(paragraph("x" * 60_000), {"header": header}))


def test_docx_tables_are_read_row_by_row(read: Read, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(package, "_PIECE_BYTES", 1 << 14)
    row = f"<w:tr><w:tc>{paragraph('cell')}</w:tc></w:tr>"
    packed = docx(f"<w:tbl>{row * 20_000}</w:tbl>")
    tracemalloc.start()
    sections = read("a.docx", packed)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert text_of(sections) == "cell\n" * 20_000 + "\n"
    assert peak < 6 << 20  # the table as a whole takes 16 MB; what other threads hold counts, too


def test_a_docx_paragraph_without_end_is_refused(read: Read, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(package, "_MAX_ELEMENTS", 100)
    assert text_of(read("a.docx", docx(paragraph("x") * 100))) == "x\n\n" * 100
    with pytest.raises(InvalidFile, match="too large"):
        read("a.docx", docx(f"<w:p>{'<w:r/>' * 100}</w:p>"))
    with pytest.raises(InvalidFile, match="too large"):
        read("a.docx", docx(paragraph("x"), {f"kind{number}": "<a/>" for number in range(100)}))


def test_a_docx_note_is_given_where_it_is_first_referred_to(read: Read):
    body = "<w:p><w:r><w:t>Pump</w:t><w:footnoteReference w:id='2'/></w:r></w:p>" * 3
    note = f"<w:footnote w:id='2'>{paragraph('A note')}</w:footnote>"
    notes = f"<w:footnotes xmlns:w='urn:any'>{note}</w:footnotes>"
    assert text_of(read("a.docx", docx(body, {"footnotes": notes}))) == "Pump\n\nA note\n\nPump\n\nPump\n\n"


# ── refusals ────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.txt", b"", "no text"),
        ("a.pdf", b"", "no text"),
        ("a.txt", b" \n\t\r\n", "no text"),
        ("a.md", b"\xef\xbb\xbf\n", "no text"),
        ("a.csv", b"\n,,\n", "no text"),
        ("a.json", b"{}", "no text"),
        ("a.html", b"<html><script>1</script></html>", "no text"),
        ("scan.pdf", data("scan.pdf"), "no text"),
        ("a.docx", docx("<w:p/>"), "no text"),
        ("locked.pdf", data("locked.pdf"), "password"),
        ("locked.docx", OLE + bytes(600) + "EncryptedPackage".encode("utf-16-le") + bytes(600), "password"),
        ("cut.pdf", data("handbook.pdf")[:300], "damaged"),
        ("a.pdf", b"plain words", "damaged"),
        ("cut.docx", data("handbook.docx")[:3000], "damaged"),
        ("a.docx", b"plain words", "damaged"),
        ("a.docx", docx("<w:p><w:broken></w:p>"), "damaged"),
        ("a.txt", bytes(range(256)) * 8, "readable text"),
    ],
)  # fmt: skip
def test_files_without_usable_text_are_invalid(read: Read, name: str, content: bytes, says: str):
    with pytest.raises(InvalidFile, match=says):
        read(name, content)


def zip_of(name: str) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr(name, "x")
    return packed.getvalue()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.pptx", zip_of("ppt/presentation.xml")),
        ("a.xlsx", zip_of("xl/workbook.xml")),
        ("a.zip", zip_of("readme.txt")),
        ("a.doc", OLE + bytes(1000)),
        ("a.png", b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 4),
        ("noname", bytes(range(256)) * 8),
    ],
)
def test_other_kinds_are_unsupported(read: Read, name: str, content: bytes):
    with pytest.raises(UnsupportedFile):
        read(name, content)


@given(st.sampled_from(sorted(SUPPORTED_EXTENSIONS)), st.binary(max_size=400))
@settings(max_examples=150, deadline=None)
def test_any_bytes_give_text_or_a_stated_error(
    tmp_path_factory: pytest.TempPathFactory, extension: str, content: bytes
):
    path = tmp_path_factory.getbasetemp() / "any"
    path.write_bytes(content)
    with contextlib.suppress(IngestError):
        text = text_of([*parse(path, f"any{extension}")])
        assert text.strip()
        assert "\0" not in text
        text.encode()


@given(st.sampled_from(["handbook.pdf", "handbook.docx"]), st.data())
@settings(max_examples=60, deadline=None)
def test_damaged_documents_never_crash(
    tmp_path_factory: pytest.TempPathFactory, name: str, drawn: st.DataObject
):
    content = bytearray(data(name))
    for _ in range(drawn.draw(st.integers(1, 20))):
        content[drawn.draw(st.integers(0, len(content) - 1))] = drawn.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "damaged"
    path.write_bytes(content)
    with contextlib.suppress(IngestError):
        text_of([*parse(path, name)]).encode()


# ── hostile files ───────────────────────────────────────────────────────────

MEGABYTE = 1 << 20


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.html", "<p>hi</p>" + "<a " * (MEGABYTE // 3)),
        ("a.html", "<p>hi</p>" + "<!-- " * (MEGABYTE // 5)),
        ("a.html", "<p>hi</p>" + "<a x='" * (MEGABYTE // 6)),
        ("a.html", "<i>" * 1_900 + "x</b>" * (MEGABYTE // 5)),
        ("a.html", "<h1>" + "word<br>" * (MEGABYTE // 8)),
        ("a.md", ("# a" + " " * 60_000 + "b\n") * 17),
        ("a.rst", ("a\n" + "=" * 60_000 + " " * 4_000 + "x\n") * 16),
        ("a.csv", '"a,' * (MEGABYTE // 3)),
        ("a.csv", "1 " * (MEGABYTE // 2) + "x,b\n"),
        ("a.json", "[" * MEGABYTE),
        ("a.jsonl", '{"a":' * (MEGABYTE // 5)),
        ("a.txt", "\n" * MEGABYTE + "x"),
        ("a.eml", "Subject: " + "=?utf-8?q?a?= " * (MEGABYTE // 20) + "\n\nbody"),
        ("a.xml", "<a>" + "<b x='1'>y</b>" * (MEGABYTE // 16) + "</a>"),
        ("a.java", "public static a b c d e f (" + "," * MEGABYTE),
        ("a.py", '"' * (MEGABYTE - 4)),
    ],
    ids=lambda value: value[:16] if isinstance(value, str) else "",
)
def test_time_grows_with_the_file_and_not_faster(read: Read, name: str, content: str):
    """Each is read in a second; searched anew at every place it takes hours, and the timeout speaks."""
    assert text_of(read(name, content)).strip()


@pytest.mark.timeout(60)
def test_docx_styles_may_be_based_on_each_other_without_end(read: Read):
    chain = "".join(
        f"<w:style w:styleId='{n}'><w:basedOn w:val='{n + 1}'/></w:style>" for n in range(100_000)
    )
    styles = f"<w:styles xmlns:w='urn:any'>{chain}</w:styles>"
    assert text_of(read("a.docx", docx(paragraph("x"), {"styles": styles}))) == "x\n\n"


def test_html_nested_without_end_is_refused(read: Read):
    with pytest.raises(InvalidFile, match="nested too deeply"):
        read("a.html", "<div>" * 100_000 + "x")


@pytest.mark.parametrize(
    ("name", "source"),
    [("a.html", "<h1>{}<p>text"), ("a.md", "# {}\n\ntext"), ("a.rst", "{}\n" + "=" * 30_000)],
)
def test_headings_are_bounded(read: Read, name: str, source: str):
    sections = read(name, source.format("word " * 5_000))
    assert text_of(sections).count("word") == 5_000
    assert all(len(section.heading or "") <= 1_000 for section in sections)


def test_documents_without_headings_come_in_sections(read: Read):
    assert len(read("a.md", "A line.\n" * 50_000)) > 5


def test_csv_is_decoded_once(read: Read, monkeypatch: pytest.MonkeyPatch):
    opened = []
    real = text.open_text
    monkeypatch.setattr(text, "open_text", lambda path: opened.append(path) or real(path))
    assert text_of(read("a.csv", "a;b\n" + "1;2\n" * 50_000)).count("a: 1; b: 2\n") == 50_000
    assert len(opened) == 1


def test_a_quote_that_is_never_closed_ends(read: Read, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tabular, "_LONGEST_RECORD", 100)
    source = 'name,size\n"open,1\n' + "valve,2\n" * 50
    words = text_of(read("a.csv", source))
    assert words.startswith("name,size\nname: open,1 valve,2")
    assert words.count("valve") == 50
    assert words.endswith("name: valve; size: 2\n")


def test_a_csv_line_too_long_for_a_header_is_repeated_nowhere(read: Read):
    source = f"{'x' * 50_000},{'y' * 50_000}\n" + "1,2\n" * 1_000
    assert text_of(read("a.csv", source)) == source


def test_json_too_large_to_hold_is_read_as_text(read: Read, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tabular, "_LARGEST_JSON_BYTES", 20)
    assert text_of(read("a.json", '{"a": "small"}')) == "a: small\n\n"
    large = '{"a": "larger than that"}'
    assert text_of(read("a.json", large)) == large
    assert text_of(read("a.jsonl", large)) == large[:20] + "\n" + large[20:] + "\n"


def test_json_depth_costs_no_blanks(read: Read):
    levels = 900
    source = '{"a":' * levels + "1" + "}" * levels
    assert len(text_of(read("a.json", source))) < levels * 20


# ── what an upload accepts ──────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "head", "supported"),
    [
        ("a.pdf", b"", True),
        ("A.DOCX", b"\0\1\2", True),
        ("notes", b"some words", True),
        ("notes.xyz", "Grüße".encode("cp1252") * 20, True),
        ("notes.xyz", "Grüße".encode()[:3], True),
        ("noname", b"%PDF-1.7\n%\xe2\xe3\xcf\xd3", True),
        ("noname", data("handbook.docx")[:4096], True),
        ("a.exe", b"MZ\x90\0\x03\0\0\0\x04\0\0\0\xff\xff\0\0" * 8, False),
        ("a.pptx", b"PK\x03\x04\x14\0\6\0\x08\0\0\0!\0", True),
        ("a.zip", b"PK\x03\x04\x14\0\6\0\x08\0\0\0!\0", False),
        ("a.tar", b"notes.txt" + b" " * 248 + b"ustar" + b" " * 250 + b"words", False),
        ("a.gz", b"\x1f\x8b" + b"words " * 20, False),
        ("noname", b"", False),
    ],
)
def test_supported_by_name_or_by_content(name: str, head: bytes, supported: bool):
    assert is_supported(name, head) is supported


def test_json_module_agrees_on_what_json_is(read: Read):
    value = {"plain": "text", "list": [1, 2.5, None, True], "nested": {"a": {"b": "c"}}}
    text = text_of(read("a.json", json.dumps(value)))
    assert text == "plain: text\nlist: 1, 2.5, null, true\nnested:\n  a:\n    b: c\n\n"


# ── encodings that files declare ────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "head", "written", "told"),
    [
        ("a.eml", "Subject: a\nContent-Type: text/plain; charset=koi8-r\n\n", "koi8_r", "koi8-r"),
        ("a.eml", "Subject: a\nContent-Type: text/plain; charset=utf-8\n\n", "cp1251", "cp1251"),
        ("a.eml", "Subject: a\nContent-Type: text/plain; charset=base64\n\n", "utf-8", "utf-8"),
        ("a.xml", "<?xml version='1.0' encoding='windows-1251'?><a>", "cp1251", "cp1251"),
        ("a.xml", "<a>", "utf-8", "utf-8"),
        ("a.rtf", r"{\rtf1\ansi\ansicpg1251 ", "rtf", "cp1251"),
    ],
)
def test_declared_encoding_is_told_unless_the_bytes_deny_it(
    tmp_path: Path, name: str, head: str, written: str, told: str
):
    words = "Съешь же ещё этих мягких французских булок, да выпей чаю"
    end = "</a>" if name == "a.xml" else "\n"
    path = tmp_path / "stored"
    if written == "rtf":
        path.write_text(head + "".join(rf"\'{byte:02x}" for byte in words.encode("cp1251")) + "}")
    else:
        path.write_bytes((head + words + end).encode(written))
    sections = [*parse(path, name)]
    assert words in text_of(sections)
    assert next(section.encoding for section in sections if section.encoding) == told
