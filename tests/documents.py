"""Small documents of every kind, made here so that what is in them can be read beside the test."""

import io
import json
import struct
import zipfile
from collections.abc import Mapping
from email.message import EmailMessage

from PIL import Image, ImageDraw, ImageFont
from reportlab.lib.utils import ImageReader
from reportlab.pdfgen.canvas import Canvas

RELATIONS = "_rels/.rels"
_W = 'xmlns:w="urn:w"'
_OFFICE = " ".join(
    f'xmlns:{name}="urn:oasis:names:tc:opendocument:xmlns:{name}:1.0"'
    for name in ("office", "text", "table", "drawing", "presentation")
)


def packed(parts: Mapping[str, str | bytes], *, stored: bool = False) -> bytes:
    """A zip archive."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_STORED if stored else zipfile.ZIP_DEFLATED) as archive:
        for name, part in parts.items():
            archive.writestr(name, part)
    return content.getvalue()


def relations(**targets: str) -> str:
    """`kind="target"`; the id of a relation is its kind, up to a number at its end."""
    return "<Relationships>{}</Relationships>".format(
        "".join(
            f'<Relationship Id="{kind}" Type="http://any/{kind.rstrip("0123456789")}" Target="{target}"/>'
            for kind, target in targets.items()
        )
    )


def office(main: str, parts: Mapping[str, str | bytes]) -> bytes:
    return packed({RELATIONS: relations(officeDocument=main), **parts})


def docx(body: str) -> bytes:
    return office(
        "word/document.xml", {"word/document.xml": f"<w:document {_W}><w:body>{body}</w:body></w:document>"}
    )


def shape(*paragraphs: str, kind: str = "") -> str:
    place = f'<nvSpPr><nvPr><ph type="{kind}"/></nvPr></nvSpPr>' if kind else ""
    words = "".join(f"<a:p><a:r><a:t>{words}</a:t></a:r></a:p>" for words in paragraphs)
    return f"<sp>{place}<txBody>{words}</txBody></sp>"


def pptx(*slides: tuple[str, str]) -> bytes:
    """Slides as the XML of their shapes and of their notes, listed in the package in reverse."""
    root = '<{0} xmlns:a="urn:a" xmlns:r="urn:r">{1}</{0}>'
    listed = "".join(f'<sldId id="25{at}" r:id="slide{at}"/>' for at in range(len(slides)))
    parts: dict[str, str | bytes] = {"ppt/presentation.xml": root.format("presentation", listed)}
    parts["ppt/_rels/presentation.xml.rels"] = relations(
        **{f"slide{at}": f"slides/s{at}.xml" for at in reversed(range(len(slides)))}
    )
    for at, (shapes, notes) in enumerate(slides):
        parts[f"ppt/slides/s{at}.xml"] = root.format("sld", shapes)
        parts[f"ppt/slides/_rels/s{at}.xml.rels"] = relations(notesSlide=f"../notes/n{at}.xml")
        parts[f"ppt/notes/n{at}.xml"] = root.format("notes", notes)
    return office("ppt/presentation.xml", parts)


def xlsx(
    sheets: Mapping[str, str], strings: tuple[str, ...] = (), formats: tuple[str, ...] = ("General",)
) -> bytes:
    """Sheets as the XML of their rows; the style of a cell is the place of its format."""
    names = "".join(
        f'<sheet name="{name}" sheetId="{at}" r:id="worksheet{at}"/>' for at, name in enumerate(sheets)
    )
    codes = "".join(f'<numFmt numFmtId="{200 + at}" formatCode="{code}"/>' for at, code in enumerate(formats))
    styles = "".join(f'<xf numFmtId="{200 + at}"/>' for at in range(len(formats)))
    parts: dict[str, str | bytes] = {
        "xl/workbook.xml": f'<workbook xmlns:r="urn:r"><sheets>{names}</sheets></workbook>',
        "xl/_rels/workbook.xml.rels": relations(
            sharedStrings="strings.xml",
            styles="styles.xml",
            **{f"worksheet{at}": f"sheet{at}.xml" for at in range(len(sheets))},
        ),
        "xl/strings.xml": f"<sst>{''.join(f'<si><t>{words}</t></si>' for words in strings)}</sst>",
        "xl/styles.xml": (
            f"<styleSheet><numFmts>{codes}</numFmts><cellStyleXfs><xf/></cellStyleXfs>"
            f"<cellXfs>{styles}</cellXfs></styleSheet>"
        ),
    }
    for at, rows in enumerate(sheets.values()):
        parts[f"xl/sheet{at}.xml"] = f"<worksheet><sheetData>{rows}</sheetData></worksheet>"
    return office("xl/workbook.xml", parts)


def opendocument(kind: str, body: str, **parts: str) -> bytes:
    """`kind` is text, spreadsheet or presentation."""
    content = (
        f'<office:document-content {_OFFICE} xmlns:draw="urn:draw"><office:body><office:{kind}>{body}'
        f"</office:{kind}></office:body></office:document-content>"
    )
    return packed({"mimetype": f"application/vnd.oasis.opendocument.{kind}", "content.xml": content, **parts})


def epub(*chapters: str, locked: str = "") -> bytes:
    items = "".join(f'<item id="c{at}" href="text/chapter%20{at}.xhtml"/>' for at in range(len(chapters)))
    order = "".join(f'<itemref idref="c{at}"/>' for at in range(len(chapters)))
    parts = {
        "mimetype": "application/epub+zip",
        "META-INF/container.xml": (
            '<container><rootfiles><rootfile full-path="OPS/book.opf"/></rootfiles></container>'
        ),
        "OPS/book.opf": f"<package><manifest>{items}</manifest><spine>{order}</spine></package>",
        **{f"OPS/text/chapter {at}.xhtml": chapter for at, chapter in enumerate(chapters)},
    }
    if locked:
        parts["META-INF/encryption.xml"] = f'<encryption><CipherReference URI="{locked}"/></encryption>'
    return packed(parts, stored=True)


def eml() -> bytes:
    inner = EmailMessage()
    inner["Subject"] = "Gasket order"
    inner.set_content("Forty gaskets, please.\n")
    message = EmailMessage()
    message["Subject"] = "Re: Ventile für Köln"
    message["From"] = "Rosalind Ekwueme <r@example.com>"
    message["To"] = "stores@example.com"
    message["Date"] = "Tue, 04 Mar 2031 10:00:00 +0000"
    message.set_content("The valve opens at 4.2 bar — not before.\n", charset="utf-8")
    message.add_alternative("<p>The valve in <b>HTML</b></p>", subtype="html")
    message.add_attachment(b"\x89PNG", maintype="image", subtype="png", filename="drawing.png")
    message.add_attachment(inner)
    return message.as_bytes()


def notebook(*cells: tuple[str, list[str], list[dict[str, object]]]) -> str:
    return json.dumps(
        {
            "nbformat": 4,
            "metadata": {"kernelspec": {"language": "python"}},
            "cells": [
                {"cell_type": kind, "source": source, "outputs": outputs} for kind, source, outputs in cells
            ],
        }
    )


def pdf(*pages: tuple[str, ...], bookmarks: Mapping[str, tuple[int, int]] | None = None) -> bytes:
    """Pages as their lines; bookmarks as title -> (page from 0, level)."""
    content = io.BytesIO()
    canvas = Canvas(content)
    for number, lines in enumerate(pages):
        for title, (page, level) in (bookmarks or {}).items():
            if page == number:
                canvas.bookmarkPage(title)
                canvas.addOutlineEntry(title, title, level)
        for at, line in enumerate(lines):
            canvas.drawString(72, 760 - 20 * at, line)
        canvas.showPage()
    canvas.save()
    return content.getvalue()


def partly_scanned() -> bytes:
    """Four pages: pictures of text on the first and third, text, and one that is blank on purpose."""
    content = io.BytesIO()
    canvas = Canvas(content)
    for scanned, words in (
        (True, "Stop it"),
        (False, "The pump has a valve."),
        (True, "at 7 bar"),
        (False, ""),
    ):
        if scanned:
            picture = Image.new("L", (400, 100), 255)
            ImageDraw.Draw(picture).text((20, 20), words, 0, ImageFont.load_default(48))
            canvas.drawImage(ImageReader(picture), 72, 600)
        else:
            canvas.drawString(72, 760, words)
        canvas.showPage()
    canvas.save()
    return content.getvalue()


# ── Outlook messages ────────────────────────────────────────────────────────

_SECTOR = 512
_END, _FREE, _FAT = 0xFFFFFFFE, 0xFFFFFFFF, 0xFFFFFFFD


def ole(streams: Mapping[str, bytes]) -> bytes:
    """An OLE container (MS-CFB) with streams at its root, each too long for the mini stream."""
    bodies = {name: body.ljust(4096, b"\0") for name, body in streams.items()}
    sectors: list[bytes] = []
    chain: list[int] = []

    def put(content: bytes) -> int:
        first, count = len(sectors), -(-len(content) // _SECTOR)
        sectors.extend(
            content[at * _SECTOR : (at + 1) * _SECTOR].ljust(_SECTOR, b"\0") for at in range(count)
        )
        chain.extend([*range(first + 1, first + count), _END])
        return first

    starts = {name: put(body) for name, body in bodies.items()}
    entries = [_entry("Root Entry", 5, child=1 if bodies else _FREE, start=_END, size=0)]
    names = [*bodies]
    for at, name in enumerate(names, start=1):
        right = at + 1 if at < len(names) else _FREE
        entries.append(_entry(name, 2, right=right, start=starts[name], size=len(streams[name])))
    directory = put(b"".join(entries))
    table = len(sectors)
    chain.append(_FAT)
    fat = struct.pack("<128I", *chain, *[_FREE] * (128 - len(chain)))
    header = struct.pack(
        "<8s16xHHHHH6xIIIIIIIII", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", 0x3E, 3, 0xFFFE, 9, 6,
        0, 1, directory, 0, 4096, _END, 0, _END, 0,
    ) + struct.pack("<109I", table, *[_FREE] * 108)  # fmt: skip
    return header + b"".join(sectors) + fat


def _entry(name: str, kind: int, *, right: int = _FREE, child: int = _FREE, start: int, size: int) -> bytes:
    encoded = name.encode("utf-16-le")
    size = max(size, 4096) if kind == 2 else size
    return struct.pack(
        "<64sHBBIII16xI16xIQ", encoded, len(encoded) + 2, kind, 1, _FREE, right, child, 0, start, size
    )


def msg(**texts: str) -> bytes:
    """`subject`, `sender`, `to`, `body`."""
    tags = {"subject": "0037", "sender": "0C1A", "to": "0E04", "body": "1000"}
    sent = struct.pack("<32xIIQ", 0x00390040, 0, 135_730_080_000_000_000)
    streams = {f"__substg1.0_{tags[name]}001F": words.encode("utf-16-le") for name, words in texts.items()}
    return ole({"__properties_version1.0": sent, **streams})
