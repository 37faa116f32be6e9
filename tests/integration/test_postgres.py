"""The pool and LISTEN against a real server: what they give adapters, and how they take trouble."""

import asyncio
import shutil
import struct
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncpg
import pytest
from pgvector import HalfVector, SparseVector, Vector
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, IntegrityError, ProgrammingError

from sherlock.embedded import open_embedded
from sherlock.rag.adapters.postgres import Database, Listener, driver, migrate
from sherlock.rag.domain.errors import DatabaseUnavailable
from sherlock.rag.domain.models import WorkspaceId

NOTIFY = text("select pg_notify('testing', '')")
TERMINATE = """
    select pg_terminate_backend(pid) from pg_stat_activity
    where application_name = $1 and datname = current_database()
"""

LISTENING = """
    select count(*) from pg_stat_activity
    where application_name = 'sherlock listen' and datname = current_database()
"""


@pytest.fixture
async def own(database_url: str) -> AsyncIterator[Database]:
    """A pool that a test may break."""
    database = await Database.open(database_url, pool_size=2, pool_timeout_s=0.2)
    yield database
    await database.close()


@pytest.fixture
async def listener(own: Database) -> AsyncIterator[Listener]:
    listener = own.listen("testing")
    yield listener
    await listener.close()


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="sherlock-postgres-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


async def answers(database: Database) -> bool:
    async with database.transaction() as connection:
        return bool(await connection.scalar(text("select true")))


async def terminate(owner_url: str, application: str) -> None:
    connection = await asyncpg.connect(owner_url)
    await connection.execute(TERMINATE, application)
    await connection.close()


async def test_a_transaction_is_all_or_nothing(database: Database, workspace: WorkspaceId) -> None:
    add = text("insert into vector_stores (workspace_id, id, encoder, dimension) values (:w, 'vs', 'e', 3)")
    count = text("select count(*) from vector_stores where workspace_id = :w")

    async def broken() -> None:
        async with database.transaction() as connection:
            await connection.execute(add, {"w": workspace})
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await broken()
    async with database.transaction() as connection:
        assert await connection.scalar(count, {"w": workspace}) == 0
        await connection.execute(add, {"w": workspace})
    async with database.transaction() as connection:
        assert await connection.scalar(count, {"w": workspace}) == 1


async def test_one_statement_stands_by_itself_and_the_next_transaction_is_one(database_url: str) -> None:
    add = text("insert into workspaces (id) values (:w)")
    count = text("select count(*) from workspaces where id like :w || '%'")
    workspace = f"alone-{time.monotonic_ns()}"
    database = await Database.open(database_url, pool_size=1)  # every time the same connection

    async def broken() -> None:
        async with database.transaction() as connection:
            await connection.execute(add, {"w": f"{workspace}-2"})
            raise ZeroDivisionError

    try:
        await database.execute(add, {"w": workspace})
        with pytest.raises(IntegrityError):
            await database.execute(add, {"w": workspace})
        with pytest.raises(ZeroDivisionError):
            await broken()
        async with database.transaction() as connection:
            assert await connection.scalar(count, {"w": workspace}) == 1
    finally:
        await database.close()


async def test_values_come_in_the_domains_kinds(database: Database) -> None:
    async with database.transaction() as connection:
        value = await connection.scalar(
            text("select CAST(:value AS jsonb)"), {"value": '{"a": 1, "b": true, "c": "1"}'}
        )
        assert value == {"a": 1.0, "b": True, "c": "1"}
        assert {name: type(member) for name, member in value.items()} == {"a": float, "b": bool, "c": str}
        raw = await driver(connection)
        vectors = Vector([1, 2]), HalfVector([0.5, 2]), SparseVector({3: 1.5}, 8)
        row = await raw.fetchrow("select $1::vector, $2::halfvec, $3::sparsevec", *vectors)
        assert row is not None
        assert [v.to_text() for v in row] == [v.to_text() for v in vectors]


async def test_a_connection_is_set_up_for_searching(database: Database) -> None:
    async with database.transaction() as connection:
        for name, value in {
            "search_path": "sherlock,public",
            "jit": "off",
            "plan_cache_mode": "force_custom_plan",
            "application_name": "sherlock",
        }.items():
            assert await connection.scalar(text(f"show {name}")) == value


async def ends_every_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A server whose backend is shut down just after the login, and whose socket stays open for a while."""

    def message(kind: bytes, body: bytes) -> bytes:
        return kind + (len(body) + 4).to_bytes(4, "big") + body

    while (size := int.from_bytes(await reader.readexactly(4), "big")) == 8:  # TLS? no
        await reader.readexactly(size - 4)
        writer.write(b"N")
    await reader.readexactly(size - 4)
    ready = message(b"R", bytes(4)) + message(b"S", b"server_version\x0018.0\0") + message(b"Z", b"I")
    writer.write(ready + message(b"E", b"SFATAL\0C57P01\0Mterminating connection\0\0"))
    await reader.read()
    writer.close()


async def test_a_connection_that_ends_while_it_is_set_up_is_unavailable() -> None:
    server = await asyncio.start_server(ends_every_connection, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        database = await Database.open(f"postgresql://sherlock_app:pw@127.0.0.1:{port}/db", pool_size=1)
        try:
            with pytest.raises(DatabaseUnavailable):
                await answers(database)
        finally:
            await database.close()


async def test_a_wrong_statement_is_not_called_unavailable(own: Database) -> None:
    with pytest.raises(ProgrammingError):
        async with own.transaction() as connection:
            await connection.execute(text("select from nowhere"))
    with pytest.raises(IntegrityError):
        async with own.transaction() as connection:
            await connection.execute(text("insert into workspaces (id) values ('default')"))
    assert await answers(own)


async def test_a_wrong_argument_is_not_called_unavailable(own: Database) -> None:
    """Whether the driver refuses it or the server."""
    for value in (2**70, "many"):
        with pytest.raises(DBAPIError):
            async with own.transaction() as connection:
                await connection.execute(text("select CAST(:x AS bigint)"), {"x": value})
    assert await answers(own)


async def test_an_errors_text_does_not_quote_what_was_asked(own: Database) -> None:
    with pytest.raises(ProgrammingError) as raised:
        async with own.transaction() as connection:
            await connection.execute(text("select from nowhere where it = :question"), {"question": "secret"})
    assert "secret" not in str(raised.value)


async def test_a_statement_that_was_cut_off_is_unavailable(own: Database) -> None:
    async def cut_off() -> None:
        async with own.transaction() as connection:
            await connection.execute(text("set local statement_timeout = 20"))
            await connection.execute(text("select pg_sleep(5)"))

    with pytest.raises(DatabaseUnavailable):
        await cut_off()
    assert await answers(own)


async def test_waiting_for_a_connection_is_bounded(own: Database) -> None:
    async with own.transaction(), own.transaction():
        begun = time.monotonic()
        with pytest.raises(DatabaseUnavailable, match="busy"):
            await answers(own)
        assert time.monotonic() - begun < 2
    assert await answers(own)


async def test_a_cancelled_caller_gives_its_connection_back(own: Database) -> None:
    async def sleep() -> None:
        async with own.transaction() as connection:
            await connection.execute(text("select pg_sleep(30)"))

    for _ in range(3):
        tasks = [asyncio.create_task(sleep()) for _ in range(2)]
        await asyncio.sleep(0.05)
        for task in tasks:
            task.cancel()
        assert all(
            isinstance(end, asyncio.CancelledError)
            for end in await asyncio.gather(*tasks, return_exceptions=True)
        )
    assert await answers(own)


async def test_dead_connections_are_replaced(own: Database, owner_url: str) -> None:
    async with own.transaction(), own.transaction():
        pass  # both connections of the pool are open
    await terminate(owner_url, "sherlock")
    await own.execute(text("select CAST(:one AS int)"), {"one": 1})
    assert await answers(own)


async def test_a_connection_that_dies_in_use_is_unavailable(own: Database, owner_url: str) -> None:
    async def dies() -> None:
        async with own.transaction() as connection:
            await connection.execute(text("select 1"))
            await terminate(owner_url, "sherlock")
            await connection.execute(text("select 1"))

    with pytest.raises(DatabaseUnavailable):
        await dies()
    assert await answers(own)


async def test_a_servers_last_word_to_a_new_connection_is_unavailable() -> None:
    """A server that is shut down may let a client in, tell it so, and be slow to hang up."""

    def message(kind: bytes, body: bytes) -> bytes:
        return kind + struct.pack("!i", len(body) + 4) + body

    welcome = message(b"R", struct.pack("!i", 0)) + message(b"S", b"server_version\x0018.0\0")
    last_word = message(b"E", b"SFATAL\0VFATAL\0C57P01\0Mterminating connection\0\0")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        (length,) = struct.unpack("!i", await reader.readexactly(4))
        await reader.readexactly(length - 4)
        writer.write(welcome + message(b"Z", b"I") + last_word)
        await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    database = await Database.open(f"postgresql://a:b@127.0.0.1:{port}/c?sslmode=disable", pool_size=2)
    with pytest.raises(DatabaseUnavailable):
        await database.check()
    await database.close()
    server.close()


async def test_an_idle_transaction_ends_and_gives_up_its_locks(own: Database) -> None:
    """Who holds one may be frozen, or cut off, and hears of it when it comes back."""

    async def falls_asleep() -> None:
        async with own.transaction() as connection:
            assert await connection.scalar(text("show idle_in_transaction_session_timeout")) == "30s"
            await connection.execute(text("set local idle_in_transaction_session_timeout = 20"))
            await asyncio.sleep(0.2)
            await connection.execute(text("select 1"))

    with pytest.raises(DatabaseUnavailable):
        await falls_asleep()
    assert await answers(own)


async def test_a_restarted_server_is_found_again(folder: Path) -> None:
    server = await open_embedded(folder, durable=False)
    url = await migrate(server.owner_url, app_password=None, dimension=384)
    database = await Database.open(url, pool_size=2)
    listener = database.listen("testing")
    assert await answers(database)
    await listener.wait(1)

    await server.close()
    with pytest.raises(DatabaseUnavailable):
        await answers(database)
    with pytest.raises(DatabaseUnavailable):
        await database.check()
    await listener.wait(0.05)  # the connection's end wakes it
    begun = time.monotonic()
    await listener.wait(0.2)  # cannot connect, so waits
    assert 0.15 < time.monotonic() - begun < 2

    server = await open_embedded(folder, durable=False)
    await database.check()
    await listener.wait(20)  # connected anew: there may be news
    waiting = asyncio.create_task(listener.wait(20))
    await asyncio.sleep(0.05)
    async with database.transaction() as connection:
        await connection.execute(NOTIFY)
    await asyncio.wait_for(waiting, 5)

    await listener.close()
    await database.close()
    await server.close()


async def test_a_database_that_is_not_there_is_unavailable_at_use() -> None:
    for url in ("postgresql://u:p@127.0.0.1:1/db", "postgresql://u:p@/db?host=%2Fnowhere", "nonsense"):
        database = await Database.open(url, pool_size=1)
        with pytest.raises(DatabaseUnavailable) as raised:
            await database.check()
        assert "nowhere" not in raised.value.message
        await database.close()


async def test_a_database_without_schema_is_unavailable(empty_database_url: str) -> None:
    database = await Database.open(empty_database_url, pool_size=1)
    with pytest.raises(DatabaseUnavailable, match="no schema"):
        await database.check()
    await database.close()


async def test_a_listener_that_cannot_listen_keeps_no_connection(own: Database, owner_url: str) -> None:
    async def listening() -> int:
        connection = await asyncpg.connect(owner_url)
        try:
            return int(await connection.fetchval(LISTENING))
        finally:
            await connection.close()

    before = await listening()
    nameless = own.listen("")
    with pytest.raises(asyncpg.PostgresSyntaxError):
        await nameless.wait(1)
    async with asyncio.timeout(30):
        while await listening() > before:  # noqa: ASYNC110 - the server says nothing when a client has gone
            await asyncio.sleep(0.02)


async def test_a_notification_before_the_wait_is_not_missed(own: Database, listener: Listener) -> None:
    await listener.wait(1)
    async with own.transaction() as connection:
        await connection.execute(NOTIFY)
    await asyncio.sleep(0.1)
    begun = time.monotonic()
    await listener.wait(20)
    assert time.monotonic() - begun < 5


async def test_a_lost_listener_connects_again(own: Database, listener: Listener, owner_url: str) -> None:
    await listener.wait(1)
    waiting = asyncio.create_task(listener.wait(20))
    await asyncio.sleep(0.05)
    await terminate(owner_url, "sherlock listen")
    await asyncio.wait_for(waiting, 5)
    begun = time.monotonic()
    await listener.wait(20)
    assert time.monotonic() - begun < 5
