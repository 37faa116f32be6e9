"""Files that mean harm, read in real processes: each fails alone, in time, and the reader goes on."""

import asyncio
import io
import json
import logging
import os
import re
import signal
import sys
import time
import zipfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TypeVar

import psutil
import pytest
from reportlab.pdfgen.canvas import Canvas

from sherlock.rag.adapters import reading_process
from sherlock.rag.adapters.reading_process import ProcessReader
from sherlock.rag.domain.errors import IngestError, InvalidFile, Unavailable
from sherlock.rag.domain.models import ChunkingStrategy

CHUNKING = ChunkingStrategy(100, 10)
MEMORY_BYTES = 256 << 20
DATA = Path(__file__).parents[1] / "data"
T = TypeVar("T")

HOSTILE = "tests.hostile_reading"

linux = pytest.mark.skipif(sys.platform != "linux", reason="asks /proc, or needs a limit only Linux has")


@pytest.fixture(scope="module")
async def reader() -> AsyncIterator[ProcessReader]:
    reader = ProcessReader(memory_bytes=MEMORY_BYTES, timeout_s=30, module=HOSTILE)
    yield reader
    await reader.close()


@pytest.fixture
async def impatient() -> AsyncIterator[ProcessReader]:
    reader = ProcessReader(memory_bytes=MEMORY_BYTES, timeout_s=1, module=HOSTILE)
    yield reader
    await reader.close()


async def text_of(reader: ProcessReader, path: Path, filename: str) -> str:
    batches = [batch async for batch in reader.chunks(path, filename, CHUNKING)]
    assert [made.index for batch in batches for made in batch] == [*range(sum(map(len, batches)))]
    return "\n".join(made.text for batch in batches for made in batch)


async def read_harm(reader: ProcessReader, notes: Path, harm: str) -> str:
    path = notes / "stored"
    path.write_text(str(notes))
    return await text_of(reader, path, f"a.{harm}")


async def assert_goes_on(reader: ProcessReader) -> None:
    assert "gasket 7714" in await text_of(reader, DATA / "handbook.pdf", "handbook.pdf")


async def eventually(look: Callable[[], T]) -> T:
    """What `look` finds, as soon as that is something."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if found := look():
            return found
        await asyncio.sleep(0.02)
    raise AssertionError("it never happened")


async def process_that_sleeps(notes: Path) -> int:
    """Its id, when it has begun to."""
    [note] = await eventually(lambda: [*notes.glob("pid-*")])
    return int(note.name.removeprefix("pid-"))


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE}


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        pytest.param("allocates", "takes more memory than the 256 MiB it may take", marks=linux),
        pytest.param("shares", "takes more memory than the 256 MiB it may take", marks=linux),
        ("crashes", "The parser crashed on the file"),
        ("killed", "The parser was killed while it read the file, twice"),
    ],
)
async def test_a_file_that_ends_its_process_fails_alone(
    reader: ProcessReader, tmp_path: Path, harm: str, says: str
) -> None:
    with pytest.raises(InvalidFile, match=says):
        await read_harm(reader, tmp_path, harm)
    await assert_goes_on(reader)


@pytest.mark.parametrize("harm", ["sleeps", "spins"])
async def test_time_is_bounded_also_within_a_call(
    impatient: ProcessReader, tmp_path: Path, harm: str
) -> None:
    began = time.monotonic()
    with pytest.raises(InvalidFile, match="takes longer than the 1 s it may take"):
        await read_harm(impatient, tmp_path, harm)
    assert time.monotonic() - began < 10
    await assert_goes_on(impatient)


async def test_processor_time_is_bounded_while_nobody_asks(impatient: ProcessReader, tmp_path: Path) -> None:
    path = tmp_path / "stored"
    path.write_text(str(tmp_path))
    batches = impatient.chunks(path, "a.spins", CHUNKING)
    before = children()
    await anext(batches)
    spinning = children() - before
    assert spinning
    await eventually(lambda: spinning.isdisjoint(children()))
    with pytest.raises(InvalidFile, match="takes longer"):
        async for _ in batches:
            pass


async def test_a_slow_caller_costs_a_file_no_time(impatient: ProcessReader, tmp_path: Path) -> None:
    path = tmp_path / "stored"
    path.write_text("".join(f"Line {number} of a long text.\n" for number in range(3_000)))
    count = 0
    async for _ in impatient.chunks(path, "a.txt", CHUNKING):
        count += 1
        if count < 4:
            await asyncio.sleep(0.6)
    assert count > 4


async def test_a_process_killed_from_outside_is_given_another_chance(
    reader: ProcessReader, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    text = await read_harm(reader, tmp_path, "killed-once")
    assert text.startswith("A page of words.")
    assert [record.message for record in caplog.records] == ["a file is read once more"]


async def test_only_a_fresh_process_speaks_against_a_file(reader: ProcessReader, tmp_path: Path) -> None:
    """One that has read other files may have been ruined by them."""
    fresh = ProcessReader(memory_bytes=MEMORY_BYTES, timeout_s=30, module=HOSTILE)
    with pytest.raises(InvalidFile, match="crashed"):
        await read_harm(fresh, tmp_path, "crashes-once")
    await fresh.close()
    (tmp_path / "seen").unlink()
    await assert_goes_on(reader)
    assert await read_harm(reader, tmp_path, "crashes-once")


async def test_a_cancelled_reading_ends_at_once_within_a_call(reader: ProcessReader, tmp_path: Path) -> None:
    reading = asyncio.ensure_future(read_harm(reader, tmp_path, "sleeps"))
    process = await process_that_sleeps(tmp_path)
    began = time.monotonic()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert time.monotonic() - began < 2
    assert not psutil.pid_exists(process)


async def test_the_loop_stays_free_while_a_parser_keeps_its_interpreter(
    reader: ProcessReader, tmp_path: Path
) -> None:
    reading = asyncio.ensure_future(read_harm(reader, tmp_path, "sleeps"))
    await process_that_sleeps(tmp_path)
    lags = []
    for _ in range(20):
        began = time.monotonic()
        await asyncio.sleep(0.01)
        lags.append(time.monotonic() - began - 0.01)
    reading.cancel()
    await asyncio.wait([reading])
    assert sorted(lags)[10] < 0.05


async def test_what_libraries_print_goes_nowhere(
    reader: ProcessReader, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert await read_harm(reader, tmp_path, "prints") == "quiet"
    assert "secret" not in "".join(capfd.readouterr())


@linux
async def test_a_process_has_no_secrets_and_can_do_little(
    reader: ProcessReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHERLOCK_LLM_API_KEY", "secret")
    prying = ProcessReader(memory_bytes=MEMORY_BYTES, timeout_s=30, module=HOSTILE)
    told = await read_harm(prying, tmp_path, "pries")
    await prying.close()
    assert "secrets: []" in told
    assert str(tmp_path) not in told
    assert "write: File too large" in told
    if os.getuid() != 0:  # root may start processes whatever the limit
        assert "fork: Resource temporarily unavailable" in told
    descriptors = json.loads(told.partition("files: ")[2].partition("]")[0] + "]")
    assert len(descriptors) <= 8


async def test_processes_are_kept_and_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = children()
    reader = ProcessReader(memory_bytes=MEMORY_BYTES, timeout_s=30)
    path = tmp_path / "stored"
    path.write_text("Some words.")

    async def used() -> set[int]:
        await text_of(reader, path, "a.txt")
        return children() - before

    first = await used()
    assert await used() == first, "it is warm"
    monkeypatch.setattr(reading_process, "MOST_FILES", 3)
    assert await used() == set(), "it is worn"
    second = await used()
    assert second.isdisjoint(first)
    monkeypatch.setattr(reading_process, "MOST_BYTES", 20)
    assert await used() == set()
    monkeypatch.undo()
    monkeypatch.setattr(reading_process, "MOST_RESIDENT_BYTES", 1)
    assert await used() == set()
    monkeypatch.undo()
    [idle] = await used()
    os.kill(idle, signal.SIGKILL)
    await asyncio.sleep(0.1)
    assert await used(), "one that died idle is replaced unseen"
    await reader.close()
    assert children() == before


async def test_a_process_that_does_not_start_is_for_later(tmp_path: Path) -> None:
    reader = ProcessReader(memory_bytes=MEMORY_BYTES, timeout_s=30, module="sherlock.no_such_module")
    with pytest.raises(Unavailable):
        await text_of(reader, tmp_path, "a.txt")


@pytest.mark.parametrize("last_words", ["", "\\xff\\xff\\xff\\xff", "\\0\\0\\0\\x02{}", "\\0\\0\\0\\x02no"])
async def test_words_that_make_no_sense_are_not_believed(tmp_path: Path, last_words: str) -> None:
    """A process that has been taken over may say anything."""
    (tmp_path / "taken_over.py").write_text(
        "import sys, time\n"
        "from sherlock.rag.reading import messages\n"
        "sys.stdout.buffer.write(messages.pack_answer(messages.Ready()))\n"
        "sys.stdout.flush()\n"
        "messages.receive(sys.stdin.buffer)\n"
        f"sys.stdout.buffer.write(b'{last_words}')\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
        reader = ProcessReader(memory_bytes=MEMORY_BYTES, timeout_s=30, module="taken_over")
        with pytest.raises(InvalidFile, match="crashed"):
            await text_of(reader, DATA / "handbook.pdf", "handbook.pdf")


async def test_a_killed_parent_takes_its_processes_along(tmp_path: Path) -> None:
    path = tmp_path / "stored"
    path.write_text(str(tmp_path))
    script = f"""
import asyncio, pathlib
from sherlock.rag.adapters.reading_process import ProcessReader
from sherlock.rag.domain.models import ChunkingStrategy

async def read():
    reader = ProcessReader(memory_bytes=1 << 28, timeout_s=600, module={HOSTILE!r})
    await anext(reader.chunks(pathlib.Path({str(path)!r}), "a.sleeps", ChunkingStrategy(100, 10)))

asyncio.run(read())
"""
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", script)
    try:
        child = psutil.Process(await process_that_sleeps(tmp_path))
    finally:
        parent.kill()
        await parent.wait()
    _, alive = psutil.wait_procs([child], timeout=5)
    assert not alive


# ── files that anybody can upload ───────────────────────────────────────────


def docx(document: bytes) -> bytes:
    file = io.BytesIO()
    relations = (
        b'<Relationships xmlns="r"><Relationship Id="1" Type="t/officeDocument" Target="word/document.xml"/>'
        b"</Relationships>"
    )
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("_rels/.rels", relations)
        archive.writestr("word/document.xml", document)
    return file.getvalue()


def zip_bomb() -> bytes:
    """70 kB that unpack to 70 MB."""
    return docx(
        b'<w:document xmlns:w="w"><w:body>' + b"<!--" + b"a" * 70_000_000 + b"--></w:body></w:document>"
    )


def entity_bomb() -> bytes:
    entities = b"".join(
        b'<!ENTITY e%d "%s">' % (at, b"&e%d;" % (at - 1) * 10 if at else b"lol") for at in range(12)
    )
    return docx(
        b"<!DOCTYPE d [" + entities + b']><w:document xmlns:w="w"><w:body><w:p><w:r><w:t>&e11;</w:t></w:r>'
        b"</w:p></w:body></w:document>"
    )


def endless_pdf() -> bytes:
    """One page, in a page tree that leads back to itself and claims to have a hundred thousand."""
    file = io.BytesIO()
    canvas = Canvas(file)
    canvas.drawString(50, 700, "The only page.")
    canvas.save()
    sound = file.getvalue()
    [page] = re.findall(rb"/Kids \[ (\d+) 0 R \]", sound)
    [tree] = re.findall(rb"(\d+) 0 obj\s*<<\s*/Count", sound)
    circle = b"/Kids [ %s 0 R %s 0 R ]" % (page, tree)
    return re.sub(rb"/Kids \[ [^]]* \]", circle, sound).replace(b"/Count 1", b"/Count 100000")


@pytest.mark.parametrize(
    ("filename", "make", "says"),
    [
        ("bomb.docx", zip_bomb, "unpacks to more than can be read"),
        ("entities.docx", entity_bomb, "damaged"),
        ("endless.pdf", endless_pdf, "pages; at most"),
        ("deep.json", lambda: b"[" * 200_000 + b"]" * 200_000, None),
        ("deep-objects.json", lambda: b'{"a":' * 50_000 + b"1" + b"}" * 50_000, None),
        ("deep.html", lambda: b"<div>" * 500_000 + b"words", "nested too deeply"),
        ("open.html", lambda: b"<a" * 500_000, "no text"),
        ("one-line.csv", lambda: b'"' + b"a," * 200_000, None),
        ("one-word.txt", lambda: b"a" * 500_000, None),
    ],
)
async def test_bombs_end_in_time_and_memory(
    reader: ProcessReader, tmp_path: Path, filename: str, make: Callable[[], bytes], says: str | None
) -> None:
    path = tmp_path / "stored"
    path.write_bytes(make())
    if says is None:
        assert await text_of(reader, path, filename)
    else:
        with pytest.raises(IngestError, match=says):
            await text_of(reader, path, filename)
    await assert_goes_on(reader)
