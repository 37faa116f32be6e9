"""PostgreSQL: the pool, transactions, LISTEN and the migrations. The ports' SQL lies with their adapters.

Conventions for those adapters:

- `transaction()` yields a SQLAlchemy connection. Statements are `text()`, which does not bind `:name::type`,
  so they say `CAST(:name AS type)`.
- jsonb goes in as a string, `CAST(:name AS jsonb)`, and comes out as a Python value whose numbers are floats,
  as the domain has them.
- `driver(connection)` is the asyncpg connection beneath, inside the same transaction, for bulk work such as
  `copy_records_to_table`. It knows pgvector's types: pass and get `Vector`, `HalfVector` and `SparseVector`.
- Connection trouble becomes `DatabaseUnavailable` here and nowhere else; a broken constraint stays
  SQLAlchemy's `IntegrityError`, for only the adapter knows what it means.
- What `storable` refuses never reaches the server.
"""

import asyncio
import base64
import contextlib
import functools
import hashlib
import hmac
import importlib.resources
import json
import logging
import os
import time
import unicodedata
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit

import asyncpg
import pgvector.asyncpg
import sqlalchemy.exc
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.sql.elements import TextClause

from sherlock.rag import instruments
from sherlock.rag.domain.errors import DatabaseUnavailable, NotFound

if TYPE_CHECKING:
    Connection = asyncpg.Connection[asyncpg.Record]  # not subscriptable at run time
else:
    Connection = asyncpg.Connection

log = logging.getLogger(__name__)

APP_ROLE = "sherlock_app"
"""The role the service connects as: neither superuser nor owner of anything."""

INGEST_CHANNEL = "sherlock_ingest"
"""Notified when a job is queued or given back, and with a job's number when its worker is to let go of it."""

WAKE_WORKERS = text(f"select pg_notify('{INGEST_CHANNEL}', '')")

MINIMUM_POSTGRES = 16
"""Major version; older ones are not tested."""

_CONNECT_TIMEOUT_S = 5.0
_COMMAND_TIMEOUT_S = 300.0  # a large file is indexed in one statement

_SESSION_SETTINGS = {
    "application_name": "sherlock",
    "search_path": "sherlock,public",
    "jit": "off",
    # The plan that suits every workspace alike is slower for all of them.
    "plan_cache_mode": "force_custom_plan",
    # No transaction of ours waits for anything but its next statement. One that does belongs to a process
    # that is frozen or cut off, and must not hold its locks until it comes back.
    "idle_in_transaction_session_timeout": "30s",
}

# Proves that the schema answers, not only the server.
_CHECK = text("select 1 from schema_migrations limit 1")

# SQLSTATE classes and codes that say "not now" rather than "never": connection, login, resources, shutdown
# and cancelled statements, system errors, lost races, locks, a standby, an idle transaction, a
# database that is gone.
_TRANSIENT = ("08", "28", "53", "57", "58", "40001", "40P01", "55P03", "25006", "25P03", "3D000")

# What the driver raises when a connection is of no use. `InternalClientError`: a statement came between the
# server's last word on an idle one (SQLSTATE 57P01) and its end.
_NO_CONNECTION = (asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, TimeoutError)


class Database:
    """A bounded pool of connections that survives a restart of the server."""

    def __init__(self, engine: AsyncEngine, url: str) -> None:
        self._engine = engine
        self._url = url

    @classmethod
    async def open(cls, url: str, *, pool_size: int, pool_timeout_s: float = 10.0) -> Self:
        """A pool for `url` (`postgresql://...`), filled on demand: the server need not be up yet.

        A caller waits at most `pool_timeout_s` for one of the `pool_size` connections.
        """

        async def connect() -> Connection:
            connection = await _connect(url, settings=_SESSION_SETTINGS)
            await _learn_vector_types(connection)
            return connection

        engine = create_async_engine(
            "postgresql+asyncpg://",
            async_creator=connect,
            pool_size=pool_size,
            max_overflow=0,
            pool_timeout=pool_timeout_s,
            pool_pre_ping=True,
            hide_parameters=True,  # an error's text must not quote a question or a document
            json_deserializer=functools.partial(json.loads, parse_int=float),
        )
        return cls(engine, url)

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncConnection]:
        """A connection in a transaction: committed at the end, rolled back on an error.

        Raises `DatabaseUnavailable`, also for trouble of the statements inside.
        """
        with _translated():
            asked = time.perf_counter()
            async with self._engine.begin() as connection:
                instruments.pool_wait.record(time.perf_counter() - asked)
                yield connection

    async def execute(self, statement: TextClause, parameters: Mapping[str, Any]) -> None:
        """One statement that is a transaction by itself, without the round trips that begin and commit one.

        Raises `DatabaseUnavailable`.
        """
        with _translated():
            asked = time.perf_counter()
            async with self._engine.connect() as connection:
                instruments.pool_wait.record(time.perf_counter() - asked)
                await connection.execution_options(isolation_level="AUTOCOMMIT")
                await connection.execute(statement, parameters)

    def listen(self, channel: str, heard: Callable[[str], None] | None = None) -> "Listener":
        """Notifications of `channel`, on a connection of their own that is opened at the first wait.

        `heard` is called with the payload of each.
        """
        return Listener(self._url, channel, heard)

    async def check(self) -> None:
        """Prove that the database answers and holds the schema."""
        async with self.transaction() as connection:
            await connection.execute(_CHECK)

    async def close(self) -> None:
        await self._engine.dispose()


async def driver(connection: AsyncConnection) -> Connection:
    """The asyncpg connection under `connection`, in the same transaction.

    The transaction begins with the first statement on `connection`, so one must have been run before.
    """
    raw = await connection.get_raw_connection()
    return cast(Connection, raw.driver_connection)


class Listener:
    """Wakes those who wait for a channel. A lost connection is made anew; until then waits just run out."""

    def __init__(self, url: str, channel: str, heard: Callable[[str], None] | None = None) -> None:
        self._url = url
        self._channel = channel
        self._heard = heard
        self._notified = asyncio.Event()
        self._connecting = asyncio.Lock()
        self._connection: Connection | None = None
        self._degraded = False

    async def wait(self, timeout_s: float) -> None:
        """Return after a notification or `timeout_s`.

        After (re)connecting return at once: there may be news from before.
        """
        deadline = time.monotonic() + timeout_s
        if await self.connect():
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._notified.wait(), max(0.0, deadline - time.monotonic()))
            self._notified.clear()

    async def connect(self) -> bool:
        """Listen from now on, where the database answers; whether that is new."""
        async with self._connecting:
            lost = self._connection is None or self._connection.is_closed()
            return lost and await self._connect()

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and not connection.is_closed():
            with contextlib.suppress(OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
                await connection.close(timeout=_CONNECT_TIMEOUT_S)

    def _on_notification(self, *notification: object) -> None:
        *_, payload = notification
        if self._heard is not None:
            self._heard(str(payload))
        self._notified.set()

    async def _connect(self) -> bool:
        try:
            with _translated():
                self._connection = await self._listening_connection()
        except DatabaseUnavailable:
            if not self._degraded:
                log.warning("Cannot listen for notifications; polling until the database answers again")
            self._degraded = True
            return False
        self._degraded = False
        return True

    async def _listening_connection(self) -> Connection:
        connection = await _connect(self._url, settings={"application_name": "sherlock listen"})
        try:
            connection.add_termination_listener(lambda _: self._notified.set())
            await connection.add_listener(self._channel, self._on_notification)
        except BaseException:
            connection.terminate()
            raise
        return connection


# ── migrations ──────────────────────────────────────────────────────────────

# One migration at a time in a database, whoever runs it.
_LOCK = "select pg_advisory_lock(hashtextextended('sherlock.migrate', 0))"

# Names of the files that were applied; the table itself comes with the first of them.
_HAS_HISTORY = "select to_regclass('sherlock.schema_migrations') is not null"
_APPLIED = "select name from sherlock.schema_migrations"

# Whether the approximate index for vectors of one dimension is there; made from `_CREATE_INDEX`.
_HAS_INDEX = "select to_regclass('sherlock.chunk_windows_' || $1::int) is not null"
_CREATE_INDEX = """
    create index if not exists chunk_windows_{0} on sherlock.chunk_windows
    using hnsw ((embedding::public.halfvec({0})) public.halfvec_ip_ops) where dim = {0}
"""

# The verifier is what the server would compute from the password itself (as psql's
# \password does), so that no password travels in a statement and into somebody's log.
_GRANT_LOGIN = "alter role sherlock_app login password '{}'"

_LABEL = b"sherlock_app password 1"


async def migrate(owner_url: str, *, app_password: str | None, dimension: int) -> str:
    """Bring the schema up to date and return the address the service connects with (`service_url`).

    `owner_url` belongs to a role that may create schemas and roles; `dimension` is the encoder's, in floats a
    vector. Any number of processes may call it at once; it is quick when nothing is to be done. With an
    address of `sherlock_app` itself it only checks that the schema is up to date.

    Raises `DatabaseUnavailable`.
    """
    url = service_url(owner_url, app_password)
    with _translated():
        if url == owner_url:
            async with _connection(url) as connection:
                if not await _up_to_date(connection, dimension):
                    raise DatabaseUnavailable(
                        "The database's schema is not up to date; run `sherlock migrate` as its owner."
                    )
        elif not await _service_can_connect(url, dimension):
            try:
                await _apply(owner_url, _credentials(url)[1], dimension)
            except asyncpg.PostgresError as error:
                if _is_transient(error):
                    raise
                raise DatabaseUnavailable(_why_not_migrated(error)) from error
    return url


def service_url(owner_url: str, app_password: str | None) -> str:
    """The same database for `sherlock_app`; an address of that role itself is returned as it stands.

    Without `app_password` its password is derived from the owner's, so that every process with the same
    address finds the same one. Raises `DatabaseUnavailable` when there is none to derive it from, or the
    address cannot be read.
    """
    with _reading_address():
        user, owner_password = _credentials(owner_url)
        if user == APP_ROLE:
            return owner_url
        if not app_password:
            if not owner_password:
                raise DatabaseUnavailable(
                    f"The database address holds no password to derive that of {APP_ROLE} from; "
                    "set SHERLOCK_POSTGRES_APP_PASSWORD."
                )
            app_password = hmac.new(owner_password.encode(), _LABEL, hashlib.sha256).hexdigest()
        return _with_credentials(owner_url, APP_ROLE, app_password)


async def _service_can_connect(service_url: str, dimension: int) -> bool:
    """Whether the service can log in and finds everything: the usual case, decided in one connection."""
    try:
        async with _connection(service_url) as connection:
            return await _up_to_date(connection, dimension)
    except (asyncpg.InvalidAuthorizationSpecificationError, asyncpg.InsufficientPrivilegeError):
        return False


async def _up_to_date(connection: Connection, dimension: int) -> bool:
    if not await connection.fetchval(_HAS_HISTORY):
        return False
    applied = {row["name"] for row in await connection.fetch(_APPLIED)}
    return applied.issuperset(_migrations()) and await connection.fetchval(_HAS_INDEX, dimension)


async def _apply(owner_url: str, app_password: str, dimension: int) -> None:
    async with _connection(owner_url) as connection:
        await connection.execute(_LOCK)  # given back with the connection
        applied: set[str] = set()
        if await connection.fetchval(_HAS_HISTORY):
            applied = {row["name"] for row in await connection.fetch(_APPLIED)}
        for name, script in _migrations().items():
            if name not in applied:
                async with connection.transaction():
                    await connection.execute(script.read_text("utf-8"))
                log.info("Applied migration %s", name)
        await connection.execute(_CREATE_INDEX.format(int(dimension)))
        await connection.execute(_GRANT_LOGIN.format(_scram_verifier(app_password)))


def _migrations() -> dict[str, Traversable | Path]:
    """Name -> script, in order: the package's own copy, or the repository's folder when run from there."""
    folder: Traversable | Path = importlib.resources.files("sherlock") / "initdb"
    if not folder.is_dir():
        folder = Path(__file__).parents[4] / "initdb"
    scripts = {
        file.name.removesuffix(".sql"): file for file in folder.iterdir() if file.name.endswith(".sql")
    }
    return dict(sorted(scripts.items()))


def _why_not_migrated(error: asyncpg.PostgresError) -> str:
    if isinstance(error, asyncpg.InsufficientPrivilegeError):
        return f"The database's owner may not create the schema, the extension vector or the role {APP_ROLE}."
    if isinstance(error, asyncpg.FeatureNotSupportedError | asyncpg.UndefinedFileError):
        return "The extension vector (pgvector 0.8 or newer) is not installed on the database server."
    return f"The database's schema could not be brought up to date (SQLSTATE {error.sqlstate})."


def _scram_verifier(password: str) -> str:
    """What PostgreSQL stores for a password: RFC 5802, section 3, written as in `pg_authid.rolpassword`."""
    rounds, salt = 4096, os.urandom(16)
    prepared = unicodedata.normalize("NFKC", password).encode()
    salted = hashlib.pbkdf2_hmac("sha256", prepared, salt, rounds)
    stored_key = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    server_key = hmac.digest(salted, b"Server Key", "sha256")
    encoded_salt, *keys = (base64.b64encode(part).decode() for part in (salt, stored_key, server_key))
    return f"SCRAM-SHA-256${rounds}:{encoded_salt}${':'.join(keys)}"


# ── addresses ───────────────────────────────────────────────────────────────


@contextlib.contextmanager
def _reading_address() -> Iterator[None]:
    """Whatever is wrong with an address is said without quoting it: it holds a password."""
    try:
        yield
    except ValueError:
        raise DatabaseUnavailable("The database address cannot be read.") from None


def _credentials(url: str) -> tuple[str, str]:
    """User and password of a `postgresql://` address; either may stand in the query, and be empty."""
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query))
    user, _, password = parts.netloc.rpartition("@")[0].partition(":")
    return unquote(user) or query.get("user", ""), unquote(password) or query.get("password", "")


def _with_credentials(url: str, user: str, password: str) -> str:
    """The same address for somebody else; hosts (one, several, a socket's folder) and options stay."""
    parts = urlsplit(url)
    hosts = parts.netloc.rpartition("@")[2]
    query = [(name, value) for name, value in parse_qsl(parts.query) if name not in ("user", "password")]
    netloc = f"{quote(user, safe='')}:{quote(password, safe='')}@{hosts}"
    return urlunsplit(("postgresql", netloc, parts.path, urlencode(query), ""))


# ── connections and their errors ────────────────────────────────────────────


async def _connect(url: str, *, settings: dict[str, str] | None = None) -> Connection:
    with _reading_address():
        return await asyncpg.connect(
            urlunsplit(urlsplit(url)._replace(scheme="postgresql")),  # people write postgresql+asyncpg:// too
            timeout=_CONNECT_TIMEOUT_S,
            command_timeout=_COMMAND_TIMEOUT_S,
            server_settings=settings or {"application_name": "sherlock"},
        )


async def _learn_vector_types(connection: Connection) -> None:
    try:
        await pgvector.asyncpg.register_vector(connection, schema="public")
    except BaseException as error:
        connection.terminate()
        if isinstance(error, ValueError):
            raise DatabaseUnavailable(
                "The database has no schema yet: the type vector is missing."
            ) from error
        raise


@contextlib.asynccontextmanager
async def _connection(url: str) -> AsyncIterator[Connection]:
    connection = await _connect(url)
    try:
        version = connection.get_server_version()
        if version.major < MINIMUM_POSTGRES:
            raise DatabaseUnavailable(
                f"The database server is PostgreSQL {version.major}; "
                f"Sherlock needs PostgreSQL {MINIMUM_POSTGRES} or newer."
            )
        yield connection
    finally:
        await connection.close(timeout=_CONNECT_TIMEOUT_S)


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """Connection trouble becomes `DatabaseUnavailable`; a wrong statement or broken constraint does not."""
    try:
        yield
    except sqlalchemy.exc.TimeoutError as error:
        raise DatabaseUnavailable("The database is busy: no connection became free in time.") from error
    except sqlalchemy.exc.DBAPIError as error:
        if not (error.connection_invalidated or _is_transient(error.orig.__cause__ if error.orig else None)):
            raise
        raise DatabaseUnavailable() from error
    except (asyncpg.PostgresError, *_NO_CONNECTION) as error:
        if not _is_transient(error):
            raise
        raise DatabaseUnavailable() from error


def _is_transient(error: BaseException | None) -> bool:
    if isinstance(error, asyncpg.PostgresError):
        return (error.sqlstate or "").startswith(_TRANSIENT)
    return isinstance(error, _NO_CONNECTION)


# ── values ──────────────────────────────────────────────────────────────────


def storable(value: str) -> bool:
    """Whether PostgreSQL's text can hold it: it takes neither NUL nor half of a surrogate pair."""
    try:
        return b"\0" not in value.encode()
    except UnicodeEncodeError:
        return False


def printable(value: str) -> str:
    """What `storable` refuses, in characters that may stand in an answer."""
    return value.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()


def check_id(kind: str, object_id: str, param: str = "id") -> None:
    """Raises `NotFound` for what cannot be the id of anything stored."""
    if not storable(object_id):
        raise NotFound(kind, printable(object_id), param=param)
