"""Uploads: what is stored, what is refused, and that a failure leaves nothing behind."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes import InMemoryCatalog, MemoryState
from tests.fakes_files import InMemoryFileStore
from tests.fakes_objects import InMemoryLooseObjects

from sherlock.rag.application import files as files_module
from sherlock.rag.application.files import Files, UploadDetails, clean_filename
from sherlock.rag.application.objects import Objects
from sherlock.rag.domain.errors import (
    DatabaseUnavailable,
    FileStoreUnavailable,
    FileTooLarge,
    InvalidRequest,
    NotFound,
    UnsupportedFileType,
)
from sherlock.rag.domain.models import PageRequest, Purpose, StoredFile, UploadPart, WorkspaceId

HERE, ELSEWHERE = WorkspaceId("here"), WorkspaceId("elsewhere")


class FailingCatalog(InMemoryCatalog):
    """Its database goes down when a file is to be recorded: before that is written, or just after."""

    def __init__(self, *, written: bool, stays_down: bool) -> None:
        super().__init__()
        self.written, self.stays_down = written, stays_down
        self.loose = InMemoryLooseObjects(self.state)

    async def add_file(self, file: StoredFile, *, reserved: bool = False) -> None:
        if self.written:
            await super().add_file(file, reserved=reserved)
        self.loose.down = self.stays_down
        raise DatabaseUnavailable

    async def delete_file(self, workspace_id: WorkspaceId, file_id: str) -> StoredFile:
        if self.stays_down:
            raise DatabaseUnavailable
        return await super().delete_file(workspace_id, file_id)


class StumblingLooseObjects(InMemoryLooseObjects):
    """Its first renewal meets an error that nobody has thought of; `renewed` is set by the next one."""

    def __init__(self, state: MemoryState) -> None:
        super().__init__(state)
        self.renewals, self.renewed = 0, asyncio.Event()

    async def renew(self, workspace_id: WorkspaceId, object_id: str, for_s: float) -> None:
        self.renewals += 1
        if self.renewals == 1:
            raise RuntimeError("about secret.txt")
        await super().renew(workspace_id, object_id, for_s)
        self.renewed.set()


def files_over(catalog: InMemoryCatalog, store: InMemoryFileStore) -> Files:
    return Files(catalog, store, Objects(InMemoryLooseObjects(catalog.state), store), max_file_bytes=1000)


@pytest.fixture
def catalog() -> InMemoryCatalog:
    return InMemoryCatalog()


@pytest.fixture
def store() -> InMemoryFileStore:
    return InMemoryFileStore()


@pytest.fixture
def files(catalog: InMemoryCatalog, store: InMemoryFileStore) -> Files:
    return files_over(catalog, store)


async def stream(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


def details(
    purpose: Purpose = "assistants", expires_after_s: int | None = None
) -> Callable[[], Awaitable[UploadDetails]]:
    async def given() -> UploadDetails:
        return UploadDetails(purpose, expires_after_s)

    return given


async def bytes_of(content: AsyncIterator[bytes]) -> bytes:
    return b"".join([piece async for piece in content])


async def test_an_upload_is_recorded_and_can_be_read(files: Files):
    file = await files.upload(HERE, "notes.txt", stream(b"some ", b"text"), details(expires_after_s=3600))
    assert file.id.startswith("file-")
    assert len(file.id) == len("file-") + 24
    assert (file.filename, file.purpose, file.bytes) == ("notes.txt", "assistants", 9)
    assert file.sha256 == hashlib.sha256(b"some text").hexdigest()
    assert file.expires_at == file.created_at + 3600
    assert await files.get(HERE, file.id) == file
    assert (await files.list(HERE, PageRequest())).items == (file,)
    same, content = await files.content(HERE, file.id)
    assert same == file
    assert await bytes_of(content) == b"some text"
    assert await bytes_of((await files.content(HERE, file.id, 2, 6))[1]) == b"me t"


async def test_details_are_asked_when_the_bytes_are_through(files: Files):
    exhausted = False

    async def data() -> AsyncIterator[bytes]:
        nonlocal exhausted
        yield b"text"
        exhausted = True

    async def late() -> UploadDetails:
        assert exhausted
        return UploadDetails("batch")

    assert (await files.upload(HERE, "a.txt", data(), late)).purpose == "batch"


async def test_ids_are_never_the_same(files: Files):
    made = [await files.upload(HERE, "a.txt", stream(b"x"), details()) for _ in range(20)]
    assert len({file.id for file in made}) == 20


async def test_the_size_is_bounded_while_reading(files: Files, store: InMemoryFileStore):
    read = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal read
        while True:
            read += 100
            yield b"x" * 100

    with pytest.raises(FileTooLarge, match="1000 bytes"):
        await files.upload(HERE, "a.txt", endless(), details())
    assert read <= 1100
    assert store.blobs == {}
    assert (await files.upload(HERE, "a.txt", stream(b"x" * 1000), details())).bytes == 1000


@pytest.mark.parametrize("purpose", ["assistants", "user_data"])
async def test_files_nobody_can_read_are_refused(files: Files, store: InMemoryFileStore, purpose: Purpose):
    with pytest.raises(UnsupportedFileType, match="exe"):
        await files.upload(HERE, "a.exe", stream(bytes(range(256))), details(purpose))
    assert store.blobs == {}


@pytest.mark.parametrize("purpose", ["batch", "fine-tune", "vision", "evals"])
async def test_other_purposes_take_any_bytes(files: Files, purpose: Purpose):
    assert (await files.upload(HERE, "a.exe", stream(bytes(range(256))), details(purpose))).bytes == 256


async def test_a_known_type_by_name_or_by_content_is_enough(files: Files):
    await files.upload(HERE, "broken.pdf", stream(bytes(range(256))), details())
    await files.upload(HERE, "unnamed", stream(b"%", b"PDF-1.7 ", b"\xff\0\1"), details())


async def test_a_client_that_leaves_leaves_nothing(files: Files, store: InMemoryFileStore):
    begun = asyncio.Event()

    async def stalled() -> AsyncIterator[bytes]:
        yield b"x"
        begun.set()
        await asyncio.Event().wait()

    uploading = asyncio.ensure_future(files.upload(HERE, "a.txt", stalled(), details()))
    await begun.wait()
    uploading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await uploading
    assert store.blobs == {}
    assert (await files.list(HERE, PageRequest())).items == ()


async def test_wrong_details_leave_nothing(files: Files, store: InMemoryFileStore):
    async def wrong() -> UploadDetails:
        raise InvalidRequest("Missing required parameter: 'purpose'.", param="purpose")

    with pytest.raises(InvalidRequest, match="purpose"):
        await files.upload(HERE, "a.txt", stream(b"x"), wrong)
    assert store.blobs == {}


@pytest.mark.parametrize("written", [False, True])
async def test_a_record_that_fails_takes_the_bytes_along(store: InMemoryFileStore, written: bool):
    catalog = FailingCatalog(written=written, stays_down=False)
    with pytest.raises(DatabaseUnavailable):
        await Files(catalog, store, Objects(catalog.loose, store), 1000).upload(
            HERE, "a.txt", stream(b"x"), details()
        )
    assert (store.blobs, catalog.state.files, catalog.state.loose_objects) == ({}, {}, {})


@pytest.mark.parametrize("written", [False, True])
async def test_bytes_stay_when_a_record_may_point_at_them(store: InMemoryFileStore, written: bool):
    catalog = FailingCatalog(written=written, stays_down=True)
    files = Files(catalog, store, Objects(catalog.loose, store), 1000)
    with pytest.raises(DatabaseUnavailable):
        await files.upload(HERE, "a.txt", stream(b"x"), details())
    assert [*store.blobs.values()] == [b"x"]
    assert await files.orphans() == []
    assert [len(catalog.state.files), len(catalog.state.loose_objects)] == [written, not written]


async def test_nothing_is_recorded_when_the_store_is_down(files: Files, store: InMemoryFileStore):
    store.down = True
    with pytest.raises(FileStoreUnavailable):
        await files.upload(HERE, "a.txt", stream(b"x"), details())
    assert (await files.list(HERE, PageRequest())).items == ()


async def test_deleting_removes_record_and_bytes(files: Files, store: InMemoryFileStore):
    file = await files.upload(HERE, "a.txt", stream(b"x"), details())
    assert await files.delete(HERE, file.id) == file
    assert store.blobs == {}
    for call in (files.get, files.delete, files.content):
        with pytest.raises(NotFound):
            await call(HERE, file.id)


async def test_workspaces_see_their_own_files_only(files: Files):
    file = await files.upload(HERE, "a.txt", stream(b"x"), details())
    for call in (files.get, files.delete, files.content):
        with pytest.raises(NotFound):
            await call(ELSEWHERE, file.id)
    assert (await files.list(ELSEWHERE, PageRequest())).items == ()
    assert await files.get(HERE, file.id) == file


async def test_bytes_of_a_record_that_was_lost_are_swept(
    files: Files, catalog: InMemoryCatalog, store: InMemoryFileStore
):
    kept = await files.upload(HERE, "kept.txt", stream(b"kept"), details())
    gone = await files.upload(HERE, "gone.txt", stream(b"gone"), details())
    del catalog.state.files[HERE, gone.id]
    assert await files.sweep(grace_s=0) == 1
    assert {*store.blobs} == {kept.blob_key}
    assert await files.sweep(grace_s=0) == 0


async def test_what_gets_a_record_meanwhile_is_not_swept(
    files: Files, catalog: InMemoryCatalog, store: InMemoryFileStore, monkeypatch: pytest.MonkeyPatch
):
    file = await files.upload(HERE, "a.txt", stream(b"x"), details())
    del catalog.state.files[HERE, file.id]
    graces = []

    async def grace(seconds: float) -> None:
        graces.append(seconds)
        await catalog.add_file(file)

    # In this module alone: other tests' servers run in this process, and sleep as well.
    monkeypatch.setattr(files_module, "asyncio", SimpleNamespace(sleep=grace))
    assert await files.sweep(grace_s=7) == 0
    assert graces == [7]
    assert {*store.blobs} == {file.blob_key}


async def test_what_is_not_named_as_an_upload_is_not_swept(files: Files, store: InMemoryFileStore):
    store.blobs = {"backups/database.dump": b"x", "default/file-1": b"x", "a/b/file-" + "0" * 24: b"x"}
    assert await files.sweep(grace_s=0) == 0
    assert len(store.blobs) == 3


async def test_a_sweep_asks_for_pages_of_files_and_not_for_each(store: InMemoryFileStore):
    class Watched(InMemoryCatalog):
        asked = 0

        async def recorded(self, workspace_id: WorkspaceId, object_ids: Collection[str]) -> set[str]:
            self.asked += 1
            return await super().recorded(workspace_id, object_ids)

    catalog = Watched()
    files = files_over(catalog, store)
    for _ in range(30):
        await files.upload(HERE, "a.txt", stream(b"x"), details())
    await files.upload(ELSEWHERE, "a.txt", stream(b"x"), details())
    gone = await files.upload(HERE, "gone.txt", stream(b"x"), details())
    del catalog.state.files[HERE, gone.id]
    assert await files.sweep(grace_s=0) == 1
    assert catalog.asked == 3, "one page of each workspace, and what was found once more"
    assert len(store.blobs) == 31


async def test_parts_of_uploads_are_swept_when_no_record_tells_of_them(
    files: Files, catalog: InMemoryCatalog, store: InMemoryFileStore
):
    part, lost = ("part_" + digit * 24 for digit in "01")
    store.blobs = {f"{HERE}/{part}": b"x", f"{HERE}/{lost}": b"x"}
    catalog.state.parts[HERE, part] = UploadPart(part, HERE, "upload_1", 1, 0)
    assert await files.orphans() == [f"{HERE}/{lost}"]
    assert await files.sweep(grace_s=0) == 1
    assert {*store.blobs} == {f"{HERE}/{part}"}


async def test_expired_files_are_not_swept(files: Files, catalog: InMemoryCatalog, store: InMemoryFileStore):
    """They are on record until they are removed with their bytes."""
    file = await files.upload(HERE, "a.txt", stream(b"x"), details())
    catalog.state.files[HERE, file.id] = replace(file, expires_at=1)
    assert await files.orphans() == []


@pytest.mark.parametrize(
    ("purpose", "asked_s", "life_s"),
    [("batch", None, 30 * 86_400), ("batch", 3600, 3600), ("user_data", None, None)],
)
async def test_batch_files_are_kept_for_thirty_days(
    files: Files, purpose: Purpose, asked_s: int | None, life_s: int | None
):
    file = await files.upload(HERE, "a.txt", stream(b"x"), details(purpose, asked_s))
    assert file.expires_at == (None if life_s is None else file.created_at + life_s)


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ("a.txt", "a.txt"),
        ("Übersicht (1) 漢字.pdf", "Übersicht (1) 漢字.pdf"),
        ("../../etc/passwd", "passwd"),
        ("C:\\docs\\a.txt", "a.txt"),
        ("a\r\nb\0.txt", "ab.txt"),
        ("folder/", "upload"),
        ("..", "upload"),
        ("", "upload"),
        (" \t", "upload"),
    ],
)
def test_filenames_are_kept_but_for_folders(sent: str, kept: str):
    assert clean_filename(sent) == kept


@given(st.text(st.characters(exclude_categories=()), max_size=40))
def test_any_filename_can_be_stored(sent: str):
    name = clean_filename(sent)
    assert name
    assert not {"/", "\\", "\0", "\n"} & {*name}
    name.encode()
    assert clean_filename(name) == name


async def test_a_reservation_is_renewed_also_after_an_unknown_error(
    catalog: InMemoryCatalog, store: InMemoryFileStore, caplog: pytest.LogCaptureFixture
):
    loose = StumblingLooseObjects(catalog.state)
    async with Objects(loose, store, held_s=0.06).reserved(HERE, "file-1"):
        async with asyncio.timeout(20):
            await loose.renewed.wait()
    assert [(record.levelname, getattr(record, "error", None)) for record in caplog.records] == [
        ("ERROR", "RuntimeError")
    ]
    assert "secret" not in caplog.text
