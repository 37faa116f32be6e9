"""What every `DocumentReader` does: in a thread of this process, and in processes of its own."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path

import pytest
from tests import hostile_reading
from tests.documents import partly_scanned
from tests.fakes_reader import InThreadReader

from sherlock.rag.adapters.reading_process import ProcessReader
from sherlock.rag.chunker import chunk
from sherlock.rag.domain.errors import IngestError, InvalidFile, Unavailable, UnsupportedFile
from sherlock.rag.domain.models import Chunk, ChunkingStrategy, ReadingNotes, Section
from sherlock.rag.domain.ports import DocumentReader
from sherlock.rag.reading import BATCH_CHUNKS
from sherlock.rag.tokens import Cl100kCounter

CHUNKING = ChunkingStrategy(100, 10)
DATA = Path(__file__).parents[1] / "data"


@pytest.fixture(scope="module")
async def process() -> AsyncIterator[ProcessReader]:
    reader = ProcessReader(memory_bytes=1 << 29, timeout_s=60, module="tests.hostile_reading")
    yield reader
    await reader.close()


@pytest.fixture(params=["thread", "process"])
def reader(request: pytest.FixtureRequest) -> DocumentReader:
    if request.param == "thread":
        return InThreadReader(hostile_reading.parse)
    made: ProcessReader = request.getfixturevalue("process")
    return made


Write = Callable[[str | bytes], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(content: str | bytes) -> Path:
        path = tmp_path / "stored"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return written


async def chunks_of(reader: DocumentReader, path: Path, filename: str) -> list[Chunk]:
    return [made async for batch in reader.chunks(path, filename, CHUNKING) for made in batch]


def prose(number: int, lines: int = 4_000) -> str:
    return "".join(f"Line {line} says that pump {line + number} “works”.\n" for line in range(lines))


async def test_chunks_are_the_chunkers_in_batches(reader: DocumentReader, write: Write):
    text = prose(1)
    path = write(text)
    batches = [batch async for batch in reader.chunks(path, "long.txt", CHUNKING)]
    assert [made for batch in batches for made in batch] == [
        *chunk([Section(text)], CHUNKING, Cl100kCounter())
    ]
    assert {len(batch) for batch in batches[:-1]} == {BATCH_CHUNKS}
    assert len(batches[-1]) <= BATCH_CHUNKS
    again = [batch async for batch in reader.chunks(path, "long.txt", CHUNKING)]
    assert again == batches


async def test_pages_and_headings_come_along(reader: DocumentReader, write: Write):
    [on_a_page, *_] = await chunks_of(reader, DATA / "handbook.pdf", "handbook.pdf")
    assert on_a_page.page == 1
    [under_a_heading] = await chunks_of(reader, write("# Pumps\n\nThey work."), "a.md")
    assert under_a_heading.heading == "Pumps"


async def test_what_is_to_be_said_beside_the_text_comes_once_and_last(reader: DocumentReader, write: Write):
    told: list[ReadingNotes] = []
    text = write("Насос стоит на крыше и работает всю ночь.\n".encode("koi8_r") * 400)
    async for _ in reader.chunks(text, "a.txt", CHUNKING, told.append):
        assert told == []
    async for _ in reader.chunks(write(partly_scanned()), "a.pdf", CHUNKING, told.append):
        assert len(told) == 1
    assert told == [ReadingNotes(encoding="koi8-r"), ReadingNotes(page_count=4, skipped_pages="1, 3")]


@pytest.mark.parametrize(
    ("filename", "content", "error"),
    [
        ("empty.txt", b"", InvalidFile),
        ("blank.txt", b" \n ", InvalidFile),
        ("a.bin", bytes(range(256)), UnsupportedFile),
        ("a.docx", b"no docx", InvalidFile),
    ],
)
async def test_files_at_fault_say_what_is_wrong(
    reader: DocumentReader, write: Write, filename: str, content: bytes, error: type[IngestError]
):
    path = write(content)
    with pytest.raises(error) as told:
        await chunks_of(reader, path, filename)
    assert type(told.value) is error
    with pytest.raises(error, match=told.value.message):
        await chunks_of(reader, path, filename)


async def test_what_libraries_throw_is_an_invalid_file_without_their_words(
    reader: DocumentReader, write: Write, tmp_path: Path
):
    with pytest.raises(InvalidFile) as told:
        await chunks_of(reader, write(str(tmp_path)), "a.breaks")
    assert "secret" not in told.value.message


async def test_a_copy_that_is_gone_is_for_later(reader: DocumentReader, tmp_path: Path):
    with pytest.raises(Unavailable):
        await chunks_of(reader, tmp_path / "gone", "a.txt")


async def test_files_are_read_side_by_side(reader: DocumentReader, tmp_path: Path):
    async def read(number: int) -> str:
        path = tmp_path / f"stored-{number}"
        path.write_text(prose(number, lines=400))
        chunks = await chunks_of(reader, path, "a.txt")
        return chunks[0].text

    first = await asyncio.gather(*map(read, range(3)))
    assert ["pump 0 " in first[0], "pump 1 " in first[1], "pump 2 " in first[2]] == [True] * 3


async def test_little_is_read_ahead_and_closing_ends_it(reader: DocumentReader, write: Write, tmp_path: Path):
    async with aclosing(reader.chunks(write(str(tmp_path)), "a.endless", CHUNKING)) as batches:
        for _ in range(3):
            await anext(batches)
        await asyncio.sleep(0.5)
        assert pages_read(tmp_path) <= 4
    pages = pages_read(tmp_path)
    await asyncio.sleep(0.1)
    assert pages_read(tmp_path) == pages


def pages_read(notes: Path) -> int:
    return len([*notes.glob("page-*")])
