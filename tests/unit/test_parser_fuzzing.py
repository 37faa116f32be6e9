"""Real documents, damaged at random: text or a stated error, never a crash, a hang or bytes out of place."""

import os
import random
import time
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Final

import pytest
from tests import documents

from sherlock.rag.chunker import chunk
from sherlock.rag.domain.errors import IngestError
from sherlock.rag.domain.models import ChunkingStrategy
from sherlock.rag.parsers import parse

DATA = Path(__file__).parents[1] / "data"
SEED: Final = int(os.environ.get("FUZZ_SEED", "20311"))
LONGEST_S: Final = 10.0

SHAPES = documents.shape("Pump", kind="title") + documents.shape("It moves water", "fast")
ROWS = (
    '<row r="1"><c r="A1" t="s"><v>0</v></c><c r="B1" t="s"><v>1</v></c></row>'
    '<row r="2"><c r="A2" t="inlineStr"><is><t>gasket</t></is></c><c r="B2" s="1"><v>0.125</v></c></row>'
)
ODF = (
    '<text:h text:outline-level="1">Pump</text:h><text:p>It<text:s text:c="2"/>runs</text:p><table:table>'
    '<table:table-row><table:table-cell table:number-columns-repeated="2"><text:p>a</text:p>'
    "</table:table-cell>"
    "</table:table-row></table:table>"
)
WORD = "<w:p><w:r><w:t>The pump</w:t><w:tab/></w:r></w:p><w:tbl><w:tr><w:tc><w:p/></w:tc></w:tr></w:tbl>"
CELLS = ("code", ["print(1)"], [{"text": ["1\n"]}, {"data": {"text/plain": "2"}}])

SEEDS: Final[dict[str, bytes]] = {
    **{
        name: (DATA / name).read_bytes()
        for name in ("handbook.pdf", "handbook.docx", "locked.pdf", "parts.xls")
    },
    "a.docx": documents.docx(WORD),
    "a.pptx": documents.pptx((SHAPES, documents.shape("notes", kind="body"))),
    "a.xlsx": documents.xlsx({"S": ROWS}, ("Part", "Share"), ("General", "0.0%")),
    "a.odt": documents.opendocument("text", ODF),
    "a.ods": documents.opendocument("spreadsheet", ODF),
    "a.odp": documents.opendocument("presentation", f"<draw:page><draw:frame>{ODF}</draw:frame></draw:page>"),
    "a.epub": documents.epub("<html><h1>One</h1><p>caf&eacute;</p><table><tr><td>a<td>b</table></html>"),
    "a.eml": documents.eml(),
    "a.msg": documents.msg(subject="Gaskets", sender="Rosalind", to="Stores", body="Forty, please."),
    "a.rtf": rb"{\rtf1\ansi\ansicpg1252{\fonttbl\f0 Arial;}\f0 Gr\u252?\'dfe\par {\b Ende}\cell a\row}",
    "a.xml": b'<?xml version="1.0"?><parts><part id="7"><name>gasket</name>use <b>two</b></part></parts>',
    "a.ipynb": documents.notebook(("markdown", ["# Pump\n"], []), CELLS).encode(),
    "a.html": b"<html><meta charset='cp1252'><h1>One</h1><ul><li>a<li>b</ul><pre>x\n y</pre></html>",
    "a.json": b'[{"id": 7, "tags": ["a", "b"], "deep": {"k": null}}, 1.50]',
    "a.jsonl": b'{"a": "x"}\n{"b": [1, 2]}\n',
    "a.csv": b'name;price\n"val;ve";"1,50"\ngasket;2\n',
    "a.md": b"---\na: b\n---\n# One\n```\ncode\n```\nTwo\n===\n- x\n",
    "scanned.pdf": documents.partly_scanned(),
    "right_to_left.pdf": (DATA / "right_to_left.pdf").read_bytes(),
    "a.rst": b"=====\nGuide\n=====\n\nSetup\n-----\nrun\n",
    "a.py": b"@d\ndef f(a):\n    '''x\n    '''\nclass C:\n    def m(self): ...\n",
    "a.ts": b"export class A {\n  x = 1\n}\nconst f = async (a) => {\n}\n",
    "a.c": b"/* c */\nstatic int run(int a)\n{\n  return a;\n}\n",
    "a.sql": b"create table parts (id int);\ncreate view v as select 1;\n",
    "a.txt": "Grüße aus Köln: Maß, Öl.\n".encode("cp1252"),
    "sjis.txt": "すべての人間は、生まれながらにして自由である。\n".encode("cp932"),
    "utf16.txt": "Grüße aus Köln\n".encode("utf-16"),
}

INTERESTING: Final = (
    b"\0",
    b"\xff" * 4,
    b"<",
    b">",
    b"&",
    b'"',
    b"{",
    b"}",
    b"\\",
    b"\r\n",
    b"9" * 30,
    b"]]>",
)


def damaged(content: bytes, rng: random.Random) -> bytes:
    """Bytes flipped, cut out, doubled, put in, or the end cut off; in an archive mostly those of one part."""
    if zipfile.is_zipfile(BytesIO(content)) and rng.random() < 0.75:
        with zipfile.ZipFile(BytesIO(content)) as archive:
            parts = {name: archive.read(name) for name in archive.namelist()}
        name = rng.choice([*parts])
        return documents.packed({**parts, name: damaged(parts[name], rng)})
    made = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        at = rng.randrange(len(made) + 1)
        length = rng.choice((1, 4, 64, 1_000))
        match rng.randrange(6):
            case 0 if made:
                made[at % len(made)] = rng.randrange(256)
            case 1:
                del made[at : at + length]
            case 2:
                made[at:at] = made[at : at + length] * rng.choice((1, 2, 50))
            case 3:
                made[at:at] = rng.choice(INTERESTING)
            case 4:
                made[at:at] = rng.randbytes(length)
            case _ if rng.random() < 0.2:
                del made[at:]
    return bytes(made)


class Characters:
    """A token is a character: the laws do not depend on the vocabulary, and it is quick."""

    def count(self, text: str) -> int:
        return len(text)


def check(path: Path, name: str, content: bytes) -> None:
    path.write_bytes(content)
    begun = time.monotonic()
    try:
        sections = [*parse(path, name)]
    except IngestError:
        pass
    else:
        text = "".join(section.text for section in sections)
        assert text.strip()
        assert "\0" not in text
        text.encode()
        for made in chunk(sections, ChunkingStrategy(100, 20), Characters()):
            assert made.text == text[made.start : made.end]
    assert time.monotonic() - begun < LONGEST_S


def run(path: Path, cases: int, seed: int, seeds: dict[str, bytes], announce: Callable[[str], None]) -> None:
    """Each case has a seed of its own, which is told when it fails; the name is now and then another's."""
    names = [*seeds]
    for case in range(cases):
        rng = random.Random(f"{seed}:{case}")
        origin = names[case % len(names)]
        name = rng.choice(names) if rng.random() < 0.1 else origin
        try:
            check(path, name, damaged(seeds[origin], rng))
        except BaseException:
            announce(f"FUZZ_SEED={seed}, case {case}: {origin} read as {name}")
            raise


def test_every_seed_is_sound(tmp_path: Path):
    for name, content in SEEDS.items():
        if name != "locked.pdf":
            (tmp_path / "sound").write_bytes(content)
            assert [*parse(tmp_path / "sound", name)]


def test_damaged_documents(tmp_path: Path):
    run(tmp_path / "damaged", 400, SEED, SEEDS, print)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_many_damaged_documents(tmp_path: Path):
    """With the shared documents as seeds, too, where `EVAL_DIR` leads to them."""
    folder = Path(os.environ.get("EVAL_DIR", "")) / "documents"
    real = {
        path.name: path.read_bytes() for path in sorted(folder.glob("*.*")) if path.stat().st_size < 200_000
    }
    run(tmp_path / "damaged", 6_000, SEED, {**SEEDS, **real}, print)
