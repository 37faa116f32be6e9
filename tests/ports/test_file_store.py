"""What every `FileStore` does: in memory, in a folder, and in a bucket over the S3 protocol."""

import asyncio
import gc
import os
import secrets
import socket
import stat
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from moto.server import ThreadedMotoServer
from tests.fakes_files import InMemoryFileStore

from sherlock.rag.adapters.local_files import LocalFileStore
from sherlock.rag.adapters.minio import MinioFileStore
from sherlock.rag.domain.errors import FileStoreUnavailable, NotFound
from sherlock.rag.domain.ports import FileStore


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"{host}:{port}"
    server.stop()


def minio_store(endpoint: str) -> MinioFileStore:
    return MinioFileStore(endpoint, "access", "secret-key", f"bucket-{secrets.token_hex(6)}")


@pytest.fixture(params=["memory", "local", "minio"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[FileStore]:
    if request.param == "memory":
        yield InMemoryFileStore()
        return
    real = (
        LocalFileStore(tmp_path / "with a blank" / "files")
        if request.param == "local"
        else minio_store(request.getfixturevalue("s3_endpoint"))
    )
    yield real
    await real.close()


async def stream(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        await asyncio.sleep(0)
        yield piece


async def bytes_of(store: FileStore, key: str, start: int = 0, end: int | None = None) -> bytes:
    return b"".join([piece async for piece in store.read(key, start, end)])


async def keys_of(store: FileStore) -> set[str]:
    return {key async for key in store.keys()}  # noqa: SIM118


async def test_returns_what_was_put(store: FileStore):
    await store.put("default/file-1", stream(b"one ", b"", b"two"))
    assert await bytes_of(store, "default/file-1") == b"one two"
    assert await store.size("default/file-1") == 7
    assert await keys_of(store) == {"default/file-1"}


async def test_holds_empty_files(store: FileStore):
    await store.put("default/file-1", stream())
    assert await store.size("default/file-1") == 0
    assert await bytes_of(store, "default/file-1") == b""


async def test_holds_files_larger_than_one_part(store: FileStore):
    block = os.urandom(1 << 20)
    await store.put("default/file-big", stream(*[block] * 18))
    assert await store.size("default/file-big") == 18 << 20
    assert await bytes_of(store, "default/file-big", (9 << 20) + 5, (9 << 20) + 25) == block[5:25]
    assert await bytes_of(store, "default/file-big") == block * 18


@pytest.mark.parametrize(
    ("start", "end"),
    [(0, 3), (2, 5), (4, None), (0, None), (3, 3), (8, 20), (10, None), (10, 12), (50, 60), (0, 100)],
)
async def test_reads_ranges_like_a_slice(store: FileStore, start: int, end: int | None):
    await store.put("default/file-1", stream(b"0123456789"))
    assert await bytes_of(store, "default/file-1", start, end) == b"0123456789"[start:end]


async def test_unknown_keys_are_not_found(store: FileStore):
    with pytest.raises(NotFound):
        await store.size("default/file-none")
    with pytest.raises(NotFound):
        await bytes_of(store, "default/file-none")
    await store.put("default/file-1", stream(b"x"))
    with pytest.raises(NotFound):
        await bytes_of(store, "other/file-1")


async def test_deletes_for_good_and_twice(store: FileStore):
    await store.delete("default/file-1")
    await store.put("default/file-1", stream(b"x"))
    await store.put("default/file-2", stream(b"y"))
    await store.delete("default/file-1")
    await store.delete("default/file-1")
    assert await keys_of(store) == {"default/file-2"}
    with pytest.raises(NotFound):
        await store.size("default/file-1")


async def test_workspaces_do_not_meet(store: FileStore):
    await store.put("one/file-1", stream(b"one"))
    await store.put("two/file-1", stream(b"two"))
    await store.delete("one/file-1")
    assert await bytes_of(store, "two/file-1") == b"two"


async def test_an_error_of_the_stream_passes_and_leaves_nothing(store: FileStore):
    class ClientLeft(Exception):
        pass

    async def broken() -> AsyncIterator[bytes]:
        yield b"x" * (9 << 20)
        raise ClientLeft

    with pytest.raises(ClientLeft):
        await store.put("default/file-1", broken())
    assert await keys_of(store) == set()
    with pytest.raises(NotFound):
        await store.size("default/file-1")


async def test_nothing_is_visible_before_all_of_it_is(store: FileStore):
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield b"first"
        begun.set()
        await go_on.wait()
        yield b" second"

    putting = asyncio.ensure_future(store.put("default/file-1", slow()))
    await begun.wait()
    assert await keys_of(store) == set()
    with pytest.raises(NotFound):
        await store.size("default/file-1")
    go_on.set()
    await putting
    assert await bytes_of(store, "default/file-1") == b"first second"


async def test_a_cancelled_put_leaves_nothing(store: FileStore):
    begun = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * 1000
            begun.set()
            await asyncio.sleep(0)

    putting = asyncio.ensure_future(store.put("default/file-1", endless()))
    await begun.wait()
    putting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await putting
    assert await keys_of(store) == set()


@pytest.mark.parametrize("key", ["../outside/file", "../..", "./.", ".unfinished/x", "a b/ü?*:", "a/..%2F.."])
async def test_keys_are_names_and_not_paths(store: FileStore, key: str, request: pytest.FixtureRequest):
    if isinstance(store, MinioFileStore) and key in ("../outside/file", "../..", "./."):
        pytest.skip("the S3 protocol has no such object names")
    await store.put(key, stream(b"x"))
    assert await keys_of(store) == {key}
    assert await bytes_of(store, key) == b"x"


async def test_checks_leave_no_trace(store: FileStore):
    await store.check()
    await store.check()
    assert await keys_of(store) == set()


@pytest.mark.parametrize("kind", ["local", "minio"])
async def test_closing_waits_for_running_calls_but_not_on_the_loop(kind: str, tmp_path: Path):
    store = LocalFileStore(tmp_path) if kind == "local" else minio_store("127.0.0.1:1")
    let_go = threading.Event()
    store._threads.submit(let_go.wait, 10)
    closing = asyncio.ensure_future(store.close())
    done, _ = await asyncio.wait([closing], timeout=0.05)
    assert not done
    let_go.set()
    await closing


# ── local folder ────────────────────────────────────────────────────────────


async def test_local_files_are_for_their_owner_only(tmp_path: Path):
    store = LocalFileStore(tmp_path / "files")
    await store.put("default/file-1", stream(b"x"))
    path = tmp_path / "files" / "default" / "file-1"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    await store.close()


async def test_local_leftovers_are_invisible_and_go_after_a_day(tmp_path: Path):
    store = LocalFileStore(tmp_path)
    await store.put("default/file-1", stream(b"x"))
    fresh, old = tmp_path / ".unfinished" / "fresh", tmp_path / ".unfinished" / "old"
    for left in (fresh, old):
        left.write_bytes(b"half of a file")
    os.utime(old, (time.time() - 90_000,) * 2)
    assert await keys_of(store) == {"default/file-1"}
    await store.check()
    assert fresh.exists()
    assert not old.exists()
    await store.close()


async def test_a_local_folder_that_cannot_be_written_is_unavailable(tmp_path: Path):
    (tmp_path / "file").write_bytes(b"")
    store = LocalFileStore(tmp_path / "file")
    with pytest.raises(FileStoreUnavailable) as failure:
        await store.put("default/file-1", stream(b"x"))
    assert str(tmp_path) not in failure.value.message
    with pytest.raises(FileStoreUnavailable):
        await store.check()
    await store.close()


async def test_a_full_disk_is_unavailable_and_leaves_nothing(tmp_path: Path):
    resource = pytest.importorskip("resource", reason="this system does not limit the size of files")
    store = LocalFileStore(tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        with pytest.raises(FileStoreUnavailable):
            await store.put("default/file-1", stream(*[b"x" * (1 << 18)] * 8))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert await keys_of(store) == set()
    assert [*(tmp_path / ".unfinished").iterdir()] == []
    await store.close()


# ── bucket ──────────────────────────────────────────────────────────────────


async def test_a_bucket_that_is_down_is_unavailable_and_soon_said_to_be():
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        store = minio_store(f"127.0.0.1:{nobody.getsockname()[1]}")
        begun = time.monotonic()
        for attempt in (
            store.put("default/file-1", stream(b"x")),
            store.size("default/file-1"),
            bytes_of(store, "default/file-1"),
            store.delete("default/file-1"),
            keys_of(store),
            store.check(),
        ):
            with pytest.raises(FileStoreUnavailable):
                await attempt
        assert time.monotonic() - begun < 20
        await store.close()


async def test_a_bucket_is_used_as_soon_as_its_server_is_up():
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
    store = minio_store(f"127.0.0.1:{port}")
    with pytest.raises(FileStoreUnavailable):
        await store.check()
    server = ThreadedMotoServer("127.0.0.1", port, verbose=False)
    server.start()
    try:
        await store.put("default/file-1", stream(b"x"))
        assert await bytes_of(store, "default/file-1") == b"x"
    finally:
        await store.close()
        server.stop()


async def test_two_processes_may_make_the_bucket_at_once(s3_endpoint: str):
    stores = [MinioFileStore(s3_endpoint, "access", "secret-key", "made-by-both") for _ in range(4)]
    await asyncio.gather(*(store.put(f"default/file-{n}", stream(b"x")) for n, store in enumerate(stores)))
    assert await keys_of(stores[0]) == {f"default/file-{n}" for n in range(4)}
    for store in stores:
        await store.close()


async def test_who_is_cancelled_while_a_file_is_opened_leaves_none_open(tmp_path: Path):
    store = LocalFileStore(tmp_path)
    pipe = tmp_path / "ws-1" / "file-1"
    pipe.parent.mkdir()
    os.mkfifo(pipe)  # to open it takes until somebody writes
    reading = asyncio.create_task(bytes_of(store, "ws-1/file-1"))
    await asyncio.sleep(0.05)
    reading.cancel()
    (await asyncio.to_thread(pipe.open, "wb")).close()
    with pytest.raises(asyncio.CancelledError):
        await reading
    del reading
    gc.collect()  # a file that is still open is told of now, which fails the test
    await store.close()
