"""Real documents of many origins, read as their manifest expects and cut by the chunker's laws."""

import contextlib
import json
import os
import unicodedata
from pathlib import Path
from typing import Any

import pytest

from sherlock.rag.chunker import chunk
from sherlock.rag.domain.errors import IngestError, InvalidFile
from sherlock.rag.domain.models import ChunkingStrategy
from sherlock.rag.parsers import parse
from sherlock.rag.tokens import Cl100kCounter

EVAL_DIR = Path(os.environ.get("EVAL_DIR", Path(__file__).parents[2].parent / "shared" / "eval"))
FOLDER = EVAL_DIR / "documents"
MANIFEST = FOLDER / "MANIFEST.json"

if not MANIFEST.exists():
    pytest.skip("EVAL_DIR does not lead to the shared documents", allow_module_level=True)

DOCUMENTS: list[dict[str, Any]] = [*json.loads(MANIFEST.read_text(encoding="utf-8"))["documents"]]
NAMES = [document["name"] for document in DOCUMENTS]


def folded(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).split())


def read(name: str) -> str:
    return "".join(section.text for section in parse(FOLDER / name, name))


@pytest.mark.parametrize("document", DOCUMENTS, ids=NAMES)
def test_documents_are_read_as_expected(document: dict[str, Any]):
    match document["expect"]:
        case "error":
            with pytest.raises(IngestError):
                read(document["name"])
        case "no_text":
            with pytest.raises(InvalidFile, match="no text"):
                read(document["name"])
        case "either":
            with contextlib.suppress(IngestError):
                check_absent(document, folded(read(document["name"])))
        case _:
            text = folded(read(document["name"]))
            assert [phrase for phrase in document["must_contain"] if folded(phrase) not in text] == []
            check_absent(document, text)


def check_absent(document: dict[str, Any], text: str) -> None:
    assert "\0" not in text
    assert [phrase for phrase in document.get("must_not_contain", ()) if folded(phrase) in text] == []


@pytest.mark.parametrize(
    "name",
    [document["name"] for document in DOCUMENTS if document["expect"] == "text"],
)
def test_their_chunks_are_exact_and_within_size(name: str):
    counter = Cl100kCounter()
    text = read(name)
    end = 0
    for made in chunk(parse(FOLDER / name, name), ChunkingStrategy(512, 50), counter):
        assert made.text == text[made.start : made.end]
        assert counter.count(made.text) <= 512
        assert not text[end : made.start].strip()
        end = made.end
    assert not text[end:].strip()
