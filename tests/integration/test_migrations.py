"""The schema: how it gets into a database, who may do what in it, and the invariants it keeps by itself."""

import asyncio
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

import asyncpg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sherlock.rag.adapters import postgres
from sherlock.rag.adapters.pgvector import PgvectorIndex
from sherlock.rag.adapters.postgres import Database, migrate, service_url
from sherlock.rag.domain.errors import DatabaseUnavailable
from sherlock.rag.domain.models import WorkspaceId

INITDB = Path(__file__).parents[2] / "initdb"

# Everything that makes a schema: columns, constraints, indexes, triggers, privileges, and what was applied.
SCHEMA = """
    select 'column' as kind, concat_ws(' ', table_name, column_name, data_type, is_nullable, column_default,
                                       is_generated, generation_expression, is_identity) as what
    from information_schema.columns where table_schema = 'sherlock'
    union all
    select 'constraint', concat_ws(' ', conrelid::regclass, conname, pg_get_constraintdef(oid))
    from pg_constraint where connamespace = 'sherlock'::regnamespace
    union all
    select 'index', indexdef from pg_indexes where schemaname = 'sherlock'
    union all
    select 'trigger', pg_get_triggerdef(oid) from pg_trigger
    where not tgisinternal and tgrelid::regclass::text like 'sherlock.%'
    union all
    select 'table', concat_ws(' ', relname, relkind, relacl::text, reloptions::text)
    from pg_class where relnamespace = 'sherlock'::regnamespace
    union all
    select 'migration', name from sherlock.schema_migrations
    order by 1, 2
"""


@asynccontextmanager
async def connected(url: str) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
    connection = await asyncpg.connect(url, server_settings={"search_path": "sherlock,public"})
    try:
        yield connection
    finally:
        await connection.close()


async def schema(url: str) -> list[tuple[str, str]]:
    connection = await asyncpg.connect(url)
    try:
        return [tuple(row) for row in await connection.fetch(SCHEMA)]
    finally:
        await connection.close()


# ── how it gets there ──


async def test_an_empty_database_is_made_ready_for_the_service(empty_database_url: str) -> None:
    url = await migrate(empty_database_url, app_password=None, dimension=384)
    assert url == service_url(empty_database_url, None)
    database = await Database.open(url, pool_size=1)
    await database.check()
    await database.close()


async def test_the_service_is_neither_superuser_nor_owner(database_url: str) -> None:
    async with connected(database_url) as connection:
        role = await connection.fetchrow("select * from pg_roles where rolname = current_user")
        assert role is not None
        assert role["rolname"] == "sherlock_app"
        assert not any(
            role[right]
            for right in ("rolsuper", "rolcreatedb", "rolcreaterole", "rolbypassrls", "rolreplication")
        )
        owned = "select count(*) from pg_class where relowner = current_user::regrole"
        assert await connection.fetchval(owned) == 0
        for forbidden in (
            "drop table knowledge_chunks",
            "create table mine (a int)",
            "insert into schema_migrations (name) values ('made up')",
            "alter table knowledge_files disable trigger all",
        ):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await connection.execute(forbidden)


async def test_a_second_time_changes_nothing_and_waits_for_nobody(owner_url: str, database_url: str) -> None:
    before = await schema(owner_url)
    async with connected(owner_url) as another:
        # As while another process migrates: whoever finds the schema up to date need not wait for it.
        await another.execute("select pg_advisory_lock(hashtextextended('sherlock.migrate', 0))")
        async with asyncio.timeout(60):
            assert await migrate(owner_url, app_password=None, dimension=384) == database_url
    assert await schema(owner_url) == before


async def test_many_may_migrate_at_once(empty_database_url: str, owner_url: str) -> None:
    urls = await asyncio.gather(
        *(migrate(empty_database_url, app_password=None, dimension=384) for _ in range(4))
    )
    assert len(set(urls)) == 1
    assert await schema(empty_database_url) == await schema(owner_url)


async def test_the_files_by_hand_and_twice_make_the_same_schema(
    empty_database_url: str, owner_url: str
) -> None:
    """As PostgreSQL's image runs them on an empty volume."""
    async with connected(empty_database_url) as connection:
        for _ in range(2):
            for file in sorted(INITDB.glob("*.sql")):
                await connection.execute(file.read_text("utf-8"))
    assert await schema(empty_database_url) == await schema(owner_url)
    await migrate(empty_database_url, app_password=None, dimension=384)
    assert await schema(empty_database_url) == await schema(owner_url)


async def test_only_what_is_missing_is_applied(empty_database_url: str, owner_url: str) -> None:
    async with connected(empty_database_url) as connection:
        for file in sorted(INITDB.glob("*.sql"))[:2]:
            await connection.execute(file.read_text("utf-8"))
        first = await connection.fetchval("select max(applied_at) from schema_migrations")
    await migrate(empty_database_url, app_password=None, dimension=384)
    assert await schema(empty_database_url) == await schema(owner_url)
    async with connected(empty_database_url) as connection:
        times = await connection.fetch("select applied_at from schema_migrations order by name")
    assert [row["applied_at"] > first for row in times] == [False, False] + [True] * (len(times) - 2)


async def test_each_dimension_gets_its_index(empty_database_url: str) -> None:
    for dimension in (384, 768, 384):
        await migrate(empty_database_url, app_password=None, dimension=dimension)
    async with connected(empty_database_url) as connection:
        found = await connection.fetch(
            "select indexname from pg_indexes where indexdef like '%hnsw%' order by 1"
        )
    assert [row["indexname"] for row in found] == ["chunk_windows_384", "chunk_windows_768"]


async def test_the_services_own_address_only_checks(empty_database_url: str, database_url: str) -> None:
    assert await migrate(database_url, app_password=None, dimension=384) == database_url
    behind = service_url(empty_database_url, None)
    with pytest.raises(DatabaseUnavailable, match="not up to date"):
        await migrate(behind, app_password=None, dimension=384)


async def test_a_server_that_is_too_old_is_named(
    empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "MINIMUM_POSTGRES", 99)
    with pytest.raises(
        DatabaseUnavailable, match=r"is PostgreSQL \d\d; Sherlock needs PostgreSQL 99 or newer"
    ):
        await migrate(empty_database_url, app_password=None, dimension=384)
    async with connected(empty_database_url) as connection:
        assert await connection.fetchval("select to_regnamespace('sherlock')") is None


async def test_a_password_may_hold_anything(empty_database_url: str) -> None:
    try:
        for password in ("p@ss:w/ö rd%?#'\\&=+", "plain"):
            url = await migrate(empty_database_url, app_password=password, dimension=384)
            async with connected(url) as connection:
                assert await connection.fetchval("select current_user") == "sherlock_app"
            with pytest.raises(asyncpg.InvalidPasswordError):
                await asyncpg.connect(service_url(empty_database_url, "another"))
    finally:
        # Roles belong to the cluster: the other tests' password comes back.
        await migrate(empty_database_url, app_password=None, dimension=384)


async def test_what_the_owner_may_not_do_is_said(empty_database_url: str) -> None:
    async with connected(empty_database_url) as connection:
        await connection.execute("drop role if exists weak; create role weak login password 'weak'")
        url = empty_database_url.replace(urlsplit(empty_database_url).netloc, "weak:weak@")
        try:
            with pytest.raises(DatabaseUnavailable, match="may not create"):
                await migrate(url, app_password="x", dimension=384)
        finally:
            await connection.execute("drop role weak")


async def test_a_wrong_address_is_unavailable(empty_database_url: str) -> None:
    for url in (
        empty_database_url.replace("/test_", "/missing_"),
        "postgresql://owner:x@127.0.0.1:1/postgres",
        "postgresql://owner:x@/postgres?host=%2Fnowhere",
        "postgresql://owner:x@host:port/postgres",
    ):
        with pytest.raises(DatabaseUnavailable):
            await migrate(url, app_password=None, dimension=384)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://owner:secret@[::1/db",
        "postgresql://owner:secret\u2100@host/db",
        "postgresql://owner:secret\ud800@host/db",
    ],
)
async def test_an_address_that_cannot_be_read_is_not_quoted(url: str) -> None:
    with pytest.raises(DatabaseUnavailable) as raised:
        await migrate(url, app_password=None, dimension=384)
    assert raised.value.message == "The database address cannot be read."
    assert "secret" not in "".join(traceback.format_exception(raised.value))


def test_without_a_password_none_is_derived() -> None:
    with pytest.raises(DatabaseUnavailable, match="holds no password"):
        service_url("postgresql://owner@host/db", None)
    assert service_url("postgresql://owner@host/db", "x") == "postgresql://sherlock_app:x@host/db"


@given(
    owner=st.text(min_size=1, max_size=12).filter(lambda t: t != "sherlock_app"),
    owner_password=st.text(min_size=1, max_size=12),
    app_password=st.text(min_size=1, max_size=12),
    location=st.sampled_from(
        ["h:5432/db", "h1:1,h2:2/db", "/db?host=%2Ftmp%2Fa%20b&port=5", "[::1]:5/d?sslmode=require"]
    ),
)
def test_addresses_keep_their_place_and_change_their_user(
    owner: str, owner_password: str, app_password: str, location: str
) -> None:
    owner, owner_password, app_password = (
        text.encode("utf-8", "replace").decode() for text in (owner, owner_password, app_password)
    )
    login = f"{quote(owner, safe='')}:{quote(owner_password, safe='')}"
    url = service_url(f"postgresql://{login}@{location}", app_password)
    asked = urlsplit(url)
    userinfo, _, hosts = asked.netloc.rpartition("@")
    assert [unquote(part) for part in userinfo.split(":")] == ["sherlock_app", app_password]
    assert hosts == urlsplit(f"postgresql://{location}").netloc
    assert url.endswith(location.partition("/")[2].partition("?")[0]) or "?" in location
    derived = service_url(f"postgresql+asyncpg://{login}@{location}", None)
    assert derived == service_url(f"postgres://{login}@{location}", None)
    assert derived != service_url(f"postgresql://{login}x@{location}", None)


# ── what it keeps by itself ──


async def a_membership(connection: "asyncpg.Connection[asyncpg.Record]", workspace: str, file: str) -> None:
    """The file in the store `vs`, with ten chunks that all hold key 1, and key 2 + chunk index each."""
    await connection.execute(
        """
        insert into knowledge_files (workspace_id, id, filename, purpose, bytes, sha256)
        values ($1, $2, 'a', 'assistants', 1, '')
        """,
        workspace,
        file,
    )
    await connection.execute(
        """
        insert into vector_stores (workspace_id, id, encoder, dimension) values ($1, 'vs', 'hash', 3)
        on conflict do nothing
        """,
        workspace,
    )
    await connection.execute(
        """
        insert into vector_store_files (workspace_id, vector_store_id, file_id, store_no, file_no,
                                        max_chunk_size_tokens, chunk_overlap_tokens)
        select s.workspace_id, s.id, f.id, s.store_no, f.file_no, 512, 50
        from vector_stores s join knowledge_files f using (workspace_id)
        where s.workspace_id = $1 and f.id = $2
        """,
        workspace,
        file,
    )
    await connection.execute(
        """
        with chunk as (
            insert into knowledge_chunks (workspace_id, vector_store_id, file_id, store_no, file_no,
                                          chunk_index, content, char_start, char_end)
            select workspace_id, vector_store_id, file_id, store_no, file_no, n, 'text', 0, 4
            from vector_store_files, generate_series(0, 9) n where workspace_id = $1 and file_id = $2
            returning *
        ), vectors as (
            insert into chunk_windows select id, 0, store_no, file_no, 3, '[1,0,0]' from chunk
        ), term as (
            insert into chunk_terms
            select id, store_no, file_no, '{1:1}/536870912', array[1, 2 + chunk_index] from chunk
            returning store_no, keys
        )
        insert into term_df select store_no, k, count(*) from term, unnest(keys) k group by store_no, k
        on conflict (store_no, key) do update set df = term_df.df + excluded.df
        """,
        workspace,
        file,
    )


LEFT = """
    with mine as (select store_no from vector_stores where workspace_id = $1)
    select (select count(*) from knowledge_chunks where workspace_id = $1),
           (select count(*) from chunk_windows where store_no in (select * from mine)),
           (select count(*) from chunk_terms where store_no in (select * from mine)),
           (select sum(df) from term_df where store_no in (select * from mine))
"""


async def left(connection: "asyncpg.Connection[asyncpg.Record]", workspace: str) -> tuple[int, ...]:
    """Chunks, windows, rows of terms, and the sum of the document frequencies."""
    row = await connection.fetchrow(LEFT, workspace)
    assert row is not None
    return tuple(row)


@pytest.mark.parametrize("counted", [10, 0], ids=["published", "started over"])
@pytest.mark.parametrize("at_upgrade", ["in_progress", "cancelled"])
async def test_what_an_older_version_published_and_did_not_complete_goes(
    empty_database_url: str, counted: int, at_upgrade: str
) -> None:
    async with connected(empty_database_url) as connection:
        for file in sorted(INITDB.glob("*.sql")):
            if file.name < "016":
                await connection.execute(file.read_text("utf-8"))
        for name in ("one", "done"):
            await a_membership(connection, "default", name)
        await connection.execute("update vector_store_files set status = 'completed', chunk_count = 10")
        await connection.execute(
            "update vector_store_files set status = $1, chunk_count = $2 where file_id = 'one'",
            at_upgrade,
            counted,
        )
        database = await Database.open(
            await migrate(empty_database_url, app_password=None, dimension=384), pool_size=1
        )
        if at_upgrade == "in_progress":
            assert not await PgvectorIndex(database).clear_unpublished()  # it may be completed yet
        await connection.execute("update vector_store_files set status = 'cancelled' where file_id = 'one'")
        while await PgvectorIndex(database).clear_unpublished():
            pass
        await database.close()
        assert await left(connection, "default") == (10, 10, 10, 20)


@pytest.mark.parametrize(
    "way",
    [
        "delete from vector_store_files where workspace_id = $1 and file_id = 'one'",
        "delete from knowledge_files where workspace_id = $1 and id = 'one'",
    ],
    ids=["detached", "file deleted"],
)
async def test_a_membership_takes_its_chunks_and_terms_along(
    database_url: str, workspace: WorkspaceId, way: str
) -> None:
    async with connected(database_url) as connection:
        for file in ("one", "two"):
            await a_membership(connection, workspace, file)
        assert await left(connection, workspace) == (20, 20, 20, 40)
        await connection.execute(way, workspace)
        assert await left(connection, workspace) == (10, 10, 10, 20)
        await connection.execute("delete from vector_store_files where workspace_id = $1", workspace)
        assert await left(connection, workspace) == (0, 0, 0, 0)


@pytest.mark.parametrize("way", ["delete from vector_stores where workspace_id = $1", "workspace"])
async def test_a_store_takes_everything_along(database_url: str, workspace: WorkspaceId, way: str) -> None:
    async with connected(database_url) as connection:
        await a_membership(connection, workspace, "one")
        store_no = await connection.fetchval(
            "select store_no from vector_stores where workspace_id = $1", workspace
        )
        if way == "workspace":
            way = "delete from workspaces where id = $1"
        await connection.execute(way, workspace)
        for table in ("knowledge_chunks", "chunk_windows", "chunk_terms", "term_df", "vector_store_files"):
            assert (
                await connection.fetchval(f"select count(*) from {table} where store_no = $1", store_no) == 0
            )


async def test_no_row_points_at_another_tenants(
    database_url: str, workspace: WorkspaceId, other_workspace: WorkspaceId
) -> None:
    async with connected(database_url) as connection:
        await a_membership(connection, workspace, "one")
        for column in ("vector_store_id", "file_id"):
            with pytest.raises(asyncpg.ForeignKeyViolationError):
                await connection.execute(
                    f"""
                    insert into vector_store_files (workspace_id, vector_store_id, file_id, store_no, file_no,
                                                    max_chunk_size_tokens, chunk_overlap_tokens)
                    select $2, vector_store_id, {column}, store_no, file_no + 1000000, 1, 1
                    from vector_store_files where workspace_id = $1
                    """,
                    workspace,
                    other_workspace,
                )
