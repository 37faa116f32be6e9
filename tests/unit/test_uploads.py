"""Uploads in parts: that the parts become the file, once, and that nothing of them is left over."""

import asyncio
import hashlib
import itertools
import os
import tracemalloc
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes import InMemoryCatalog, MemoryState
from tests.fakes_files import InMemoryFileStore
from tests.fakes_objects import InMemoryLooseObjects
from tests.fakes_uploads import InMemoryUploadRecords

from sherlock.rag.adapters.local_files import LocalFileStore
from sherlock.rag.application import uploads as uploads_module
from sherlock.rag.application.files import Files
from sherlock.rag.application.objects import Objects
from sherlock.rag.application.uploads import MAX_PART_BYTES, Uploads
from sherlock.rag.domain.errors import (
    DatabaseUnavailable,
    FileStoreUnavailable,
    FileTooLarge,
    InvalidRequest,
    NotFound,
    UnsupportedFileType,
    UploadNotPending,
)
from sherlock.rag.domain.models import Purpose, StoredFile, Upload, UploadPart, WorkspaceId
from sherlock.rag.domain.ports import FileStore

HERE = WorkspaceId("here")


class FlakyRecords(InMemoryUploadRecords):
    """Its database goes down as an upload is to be completed: before that is written, or just after."""

    down: str = ""

    async def complete(
        self, workspace_id: WorkspaceId, upload_id: str, part_ids: Sequence[str], file: StoredFile
    ) -> Upload:
        if self.down == "before":
            raise DatabaseUnavailable
        completed = await super().complete(workspace_id, upload_id, part_ids, file)
        if self.down == "after":
            raise DatabaseUnavailable
        return completed


class SlowFileStore(InMemoryFileStore):
    """Reading waits for `go_on` after it has `begun`."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.go_on = asyncio.Event(), asyncio.Event()
        self.go_on.set()

    async def read(self, key: str, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        self.begun.set()
        await self.go_on.wait()
        async for piece in super().read(key, start, end):
            yield piece


@dataclass
class Bench:
    state: MemoryState = field(default_factory=MemoryState)
    store: SlowFileStore = field(default_factory=SlowFileStore)

    def __post_init__(self) -> None:
        self.objects = Objects(InMemoryLooseObjects(self.state), self.store)
        self.files = Files(InMemoryCatalog(self.state), self.store, self.objects, max_file_bytes=1000)
        self.records = FlakyRecords(self.state)
        self.uploads = Uploads(self.records, self.files, self.store)

    async def create(self, size: int, filename: str = "a.txt", purpose: Purpose = "user_data") -> Upload:
        return await self.uploads.create(HERE, filename=filename, purpose=purpose, size=size)

    async def add(self, upload: Upload, *pieces: bytes) -> UploadPart:
        return await self.uploads.add_part(HERE, upload.id, stream(*pieces))

    async def content(self, file: StoredFile | None) -> bytes:
        assert file is not None
        _, pieces = await self.files.content(HERE, file.id)
        return b"".join([piece async for piece in pieces])


@pytest.fixture
def bench() -> Bench:
    return Bench()


def md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


async def stream(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        await asyncio.sleep(0)
        yield piece


async def test_parts_become_a_file_in_the_order_asked(bench: Bench) -> None:
    upload = await bench.create(11, filename="C:\\docs\\notes.txt")
    assert (upload.status, upload.filename) == ("pending", "notes.txt")
    assert upload.expires_at == upload.created_at + 3600
    world = await bench.add(upload, b" wo", b"rld")
    hello = await bench.add(upload, b"hello")
    unused = await bench.add(upload, b"never asked")
    completed = await bench.uploads.complete(
        HERE, upload.id, [hello.id, world.id], md5(b"hello world").upper()
    )
    assert completed.file is not None
    assert (completed.status, completed.file.filename) == ("completed", "notes.txt")
    assert completed.file.sha256 == hashlib.sha256(b"hello world").hexdigest()
    assert await bench.content(completed.file) == b"hello world"
    assert {*bench.store.blobs} == {completed.file.blob_key}, "the parts are gone"
    assert (bench.state.parts, bench.state.loose_objects) == ({}, {})
    assert unused.bytes == 11


@given(
    st.lists(st.binary(max_size=40), max_size=8).flatmap(
        lambda parts: st.tuples(st.just(parts), st.permutations(range(len(parts))))
    )
)
async def test_any_split_sent_in_any_order_gives_back_the_bytes(
    split: tuple[list[bytes], list[int]],
) -> None:
    parts, sent_in = split
    bench, content = Bench(), b"".join(parts)
    upload = await bench.create(len(content), purpose="batch")
    sent = dict(
        zip(sent_in, await asyncio.gather(*(bench.add(upload, parts[n]) for n in sent_in)), strict=True)
    )
    asked = [sent[n].id for n in range(len(parts))]
    completed = await bench.uploads.complete(HERE, upload.id, asked, md5(content))
    assert await bench.content(completed.file) == content
    assert len(bench.store.blobs) == 1


async def test_sizes_are_checked_when_they_are_declared(bench: Bench) -> None:
    with pytest.raises(FileTooLarge, match="1000 bytes") as refused:
        await bench.create(1001)
    assert refused.value.param == "bytes"
    assert (await bench.create(1000)).bytes == 1000


async def test_a_part_is_bounded_while_it_comes(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads_module, "MAX_PART_BYTES", 100)
    upload = await bench.create(200)
    endless = itertools.repeat(b"x" * 30)
    read = 0

    async def data() -> AsyncIterator[bytes]:
        nonlocal read
        for piece in endless:
            read += len(piece)
            yield piece

    with pytest.raises(FileTooLarge) as refused:
        await bench.uploads.add_part(HERE, upload.id, data())
    assert (refused.value.param, read) == ("data", 120)
    assert (bench.store.blobs, bench.state.parts, bench.state.loose_objects) == ({}, {}, {})
    assert (await bench.add(upload, b"x" * 100)).bytes == 100


async def test_what_does_not_fit_is_refused_and_can_be_mended(bench: Bench) -> None:
    upload = await bench.create(6)
    one, two, more = [await bench.add(upload, piece) for piece in (b"one", b"two", b"!")]
    other = await bench.add(await bench.create(3), b"ufo")
    for asked, digest, param in (
        ([one.id], None, "part_ids"),
        ([one.id, two.id, more.id], None, "part_ids"),
        ([], None, "part_ids"),
        ([one.id, one.id], None, "part_ids"),
        ([one.id, "part_unknown"], None, "part_ids"),
        ([one.id, other.id], None, "part_ids"),
        ([one.id, two.id], "0" * 32, "md5"),
    ):
        with pytest.raises(InvalidRequest) as refused:
            await bench.uploads.complete(HERE, upload.id, asked, digest)
        assert refused.value.param == param
        assert (await bench.records.get(HERE, upload.id)).status == "pending"
    assert bench.state.files == {}
    assert len(bench.store.blobs) == 4
    completed = await bench.uploads.complete(HERE, upload.id, [two.id, one.id])
    assert await bench.content(completed.file) == b"twoone"


async def test_files_nobody_can_read_are_refused_when_their_bytes_are_known(bench: Bench) -> None:
    upload = await bench.create(256, filename="a.exe", purpose="assistants")
    binary = await bench.add(upload, bytes(range(256)))
    with pytest.raises(UnsupportedFileType):
        await bench.uploads.complete(HERE, upload.id, [binary.id])
    assert len(bench.store.blobs) == 1
    text = await bench.add(upload, b"text " * 51 + b".")
    assert (await bench.uploads.complete(HERE, upload.id, [text.id])).status == "completed"


async def test_the_files_life_begins_with_its_completion(bench: Bench) -> None:
    for purpose, asked_s, life_s in (
        ("batch", None, 30 * 86_400),
        ("batch", 7200, 7200),
        ("vision", None, None),
    ):
        upload = await bench.uploads.create(
            HERE, filename="a", purpose=purpose, size=0, expires_after_s=asked_s
        )
        file = (await bench.uploads.complete(HERE, upload.id, [])).file
        assert file is not None
        assert file.expires_at == (None if life_s is None else file.created_at + life_s)


async def test_a_client_that_lost_the_answer_gets_it_again(bench: Bench) -> None:
    upload = await bench.create(6)
    one, two = [await bench.add(upload, piece) for piece in (b"one", b"two")]
    completed = await bench.uploads.complete(HERE, upload.id, [one.id, two.id])
    assert await bench.uploads.complete(HERE, upload.id, [one.id, two.id]) == completed
    with pytest.raises(UploadNotPending):
        await bench.uploads.complete(HERE, upload.id, [two.id, one.id])
    with pytest.raises(UploadNotPending):
        await bench.uploads.cancel(HERE, upload.id)
    with pytest.raises(UploadNotPending):
        await bench.add(upload, b"more")
    assert len(bench.store.blobs) == 1


async def test_of_many_that_complete_at_once_all_get_the_same_file(bench: Bench) -> None:
    upload = await bench.create(6)
    ids = [(await bench.add(upload, piece)).id for piece in (b"one", b"two")]
    answers = await asyncio.gather(*(bench.uploads.complete(HERE, upload.id, ids) for _ in range(8)))
    assert len({answer.file.id for answer in answers if answer.file}) == 1
    assert len(bench.state.files) == 1
    assert len(bench.store.blobs) == 1


async def test_one_that_reads_parts_while_another_removes_them_gets_the_same_file(bench: Bench) -> None:
    upload = await bench.create(6)
    ids = [(await bench.add(upload, piece)).id for piece in (b"one", b"two")]
    bench.store.go_on.clear()
    slow = asyncio.ensure_future(bench.uploads.complete(HERE, upload.id, ids))
    await bench.store.begun.wait()
    quick_store = InMemoryFileStore()
    quick_store.blobs = bench.store.blobs
    objects = Objects(bench.objects.loose, quick_store)
    quick_files = Files(InMemoryCatalog(bench.state), quick_store, objects, 1000)
    quick = Uploads(bench.records, quick_files, quick_store)
    completed = await quick.complete(HERE, upload.id, ids)
    bench.store.go_on.set()
    assert await slow == completed
    assert len(bench.store.blobs) == 1


async def test_cancelling_removes_the_parts(bench: Bench) -> None:
    upload = await bench.create(6)
    part = await bench.add(upload, b"one")
    assert (await bench.uploads.cancel(HERE, upload.id)).status == "cancelled"
    assert (bench.store.blobs, bench.state.parts, bench.state.loose_objects) == ({}, {}, {})
    assert (await bench.uploads.cancel(HERE, upload.id)).status == "cancelled"
    with pytest.raises(UploadNotPending, match="cancelled"):
        await bench.uploads.complete(HERE, upload.id, [part.id])


async def test_a_part_that_comes_while_the_upload_is_cancelled_is_not_kept(bench: Bench) -> None:
    upload = await bench.create(6)

    async def data() -> AsyncIterator[bytes]:
        yield b"one"
        await bench.uploads.cancel(HERE, upload.id)
        yield b"two"

    with pytest.raises(UploadNotPending):
        await bench.uploads.add_part(HERE, upload.id, data())
    assert (bench.store.blobs, bench.state.parts, bench.state.loose_objects) == ({}, {}, {})


async def test_a_client_that_leaves_leaves_nothing(bench: Bench) -> None:
    upload = await bench.create(6)
    begun = asyncio.Event()

    async def stalled() -> AsyncIterator[bytes]:
        yield b"x"
        begun.set()
        await asyncio.Event().wait()

    adding = asyncio.ensure_future(bench.uploads.add_part(HERE, upload.id, stalled()))
    await begun.wait()
    adding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await adding
    assert (bench.store.blobs, bench.state.parts, bench.state.loose_objects) == ({}, {}, {})


async def test_what_the_file_store_keeps_while_it_is_down_is_removed_later(bench: Bench) -> None:
    upload = await bench.create(3)
    part = await bench.add(upload, b"one")
    bench.store.down = True
    with pytest.raises(FileStoreUnavailable):
        await bench.add(upload, b"one")
    with pytest.raises(FileStoreUnavailable):
        await bench.uploads.complete(HERE, upload.id, [part.id])
    assert (await bench.uploads.cancel(HERE, upload.id)).status == "cancelled"
    bench.store.down = False
    assert {*bench.store.blobs} == {f"{HERE}/{part.id}"}
    assert await bench.files.orphans() == [], "it is on record"
    assert await bench.uploads.remove_left_over(100) == 1
    assert bench.store.blobs == {}
    assert len(bench.state.loose_objects) == 2, "what was refused may be stored yet"
    assert await bench.uploads.remove_left_over(100) == 0


@pytest.mark.parametrize("down", ["before", "after"])
async def test_a_completion_whose_outcome_nobody_knows_can_be_asked_for_again(
    bench: Bench, down: str
) -> None:
    upload = await bench.create(3)
    part = await bench.add(upload, b"one")
    bench.records.down = down
    with pytest.raises(DatabaseUnavailable):
        await bench.uploads.complete(HERE, upload.id, [part.id])
    assert await bench.files.orphans() == [], "whatever happened, it is on record"
    bench.records.down = ""
    completed = await bench.uploads.complete(HERE, upload.id, [part.id])
    assert await bench.content(completed.file) == b"one"
    assert len(bench.state.files) == 1
    await bench.uploads.remove_left_over(100)
    assert {*bench.store.blobs} == {file.blob_key for file in bench.state.files.values()}
    assert (bench.state.parts, bench.state.loose_objects) == ({}, {})


async def test_a_part_whose_bytes_are_lost_can_be_sent_again(bench: Bench) -> None:
    upload = await bench.create(3)
    lost = await bench.add(upload, b"one")
    bench.store.blobs.clear()
    with pytest.raises(InvalidRequest, match="send it again"):
        await bench.uploads.complete(HERE, upload.id, [lost.id])
    again = await bench.add(upload, b"one")
    assert (await bench.uploads.complete(HERE, upload.id, [again.id])).status == "completed"


async def test_a_part_that_comes_back_short_makes_no_file(bench: Bench) -> None:
    upload = await bench.create(3)
    part = await bench.add(upload, b"one")
    bench.store.blobs[f"{HERE}/{part.id}"] = b"on"
    with pytest.raises(FileStoreUnavailable):
        await bench.uploads.complete(HERE, upload.id, [part.id])
    assert bench.state.files == {}
    assert (await bench.records.get(HERE, upload.id)).status == "pending"


async def test_an_upload_expires_and_is_forgotten(bench: Bench) -> None:
    upload = await bench.create(3)
    part = await bench.add(upload, b"one")
    bench.state.uploads[HERE, upload.id] = replace(upload, expires_at=1)
    with pytest.raises(UploadNotPending, match="expired"):
        await bench.uploads.complete(HERE, upload.id, [part.id])
    assert await bench.uploads.forget_ended(100) == 0, "its part is still there"
    assert await bench.uploads.remove_left_over(100) == 1
    assert bench.store.blobs == {}
    assert await bench.uploads.forget_ended(100) == 1
    with pytest.raises(NotFound):
        await bench.uploads.cancel(HERE, upload.id)


async def test_the_largest_part_passes_in_bounded_memory(tmp_path: Path) -> None:
    store: FileStore = LocalFileStore(tmp_path)
    state = MemoryState()
    objects = Objects(InMemoryLooseObjects(state), store)
    files = Files(InMemoryCatalog(state), store, objects, MAX_PART_BYTES)
    uploads = Uploads(InMemoryUploadRecords(state), files, store)
    upload = await uploads.create(HERE, filename="a", purpose="batch", size=MAX_PART_BYTES)
    block = os.urandom(1 << 18)

    async def data() -> AsyncIterator[bytes]:
        for _ in range(MAX_PART_BYTES // len(block)):
            yield block

    tracemalloc.start()
    try:
        part = await uploads.add_part(HERE, upload.id, data())
        completed = await uploads.complete(HERE, upload.id, [part.id])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert completed.file is not None
    assert completed.file.bytes == MAX_PART_BYTES
    assert peak < 4 << 20
