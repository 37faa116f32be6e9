"""Pages that are pictures, read by Tesseract in a confined process."""

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.documents import partly_scanned
from typer.testing import CliRunner

from sherlock.cli import app
from sherlock.rag.adapters.reading_process import ProcessReader
from sherlock.rag.domain.errors import InvalidFile
from sherlock.rag.domain.models import ChunkingStrategy, ReadingNotes
from sherlock.rag.parsers import ocr

CHUNKING = ChunkingStrategy(100, 0)
DATA = Path(__file__).parents[1] / "data"

missing = ocr.fault("eng")
needs_tesseract = pytest.mark.skipif(missing is not None, reason=f"no OCR here: {missing}")


@pytest.fixture
async def reader() -> AsyncIterator[ProcessReader]:
    reader = ProcessReader(memory_bytes=1 << 29, timeout_s=60, ocr_languages="eng", ocr_pages=1)
    yield reader
    await reader.close()


@needs_tesseract
async def test_scanned_pages_are_read_as_many_as_are_allowed(reader: ProcessReader, tmp_path: Path) -> None:
    path = tmp_path / "stored"
    path.write_bytes(partly_scanned())
    told: list[ReadingNotes] = []
    for _ in range(2):  # for the next file the count begins anew
        read = [made async for batch in reader.chunks(path, "a.pdf", CHUNKING, told.append) for made in batch]
        assert [(made.page, made.text) for made in read] == [(1, "Stop it\n\nThe pump has a valve.")]
    assert told == [ReadingNotes(page_count=4, skipped_pages="3", ocr_pages="1")] * 2


@needs_tesseract
async def test_a_picture_without_words_is_no_text(reader: ProcessReader) -> None:
    with pytest.raises(InvalidFile, match=r"no text: its pages \(1\).*OCR found none on the 1 it looked at"):
        [batch async for batch in reader.chunks(DATA / "scan.pdf", "scan.pdf", CHUNKING)]


@given(st.floats(0.1, 1e6), st.floats(0.1, 1e6))
def test_a_page_of_any_size_is_drawn_within_bounds(width: float, height: float) -> None:
    scale = ocr.scale_for(width, height)
    assert 0 < scale <= ocr.DOTS_PER_INCH / 72
    assert width * height * scale**2 <= (1 << 24) * 1.01
    assert max(width, height) * scale <= 16_001


@pytest.mark.parametrize(
    ("languages", "says"),
    [("../eng", "such as eng"), ("eng+", "such as eng"), ("eng+tlh", "tesserocr|is not installed")],
)
def test_languages_that_cannot_be_read_are_refused_at_start(
    monkeypatch: pytest.MonkeyPatch, languages: str, says: str
) -> None:
    monkeypatch.setenv("SHERLOCK_OCR_LANGUAGES", languages)
    told = CliRunner().invoke(app, ["worker"])
    assert told.exit_code == 78
    assert "SHERLOCK_OCR_LANGUAGES: " in told.output
    assert ocr.fault(languages) is not None
    assert re.search(says, " ".join(told.output.split()))


def test_no_languages_need_nothing() -> None:
    assert ocr.fault("") is None
