"""Fixtures every test may ask for.

Real PostgreSQL, embedded, in a temporary folder: one cluster and one migrated database a pytest process.

    database             an open `Database` as the service's role `sherlock_app`, shared by the whole process
    workspace            a fresh `WorkspaceId`, its row in `workspaces`; deleted after the test with all that
                         hangs on it, so a test need not clean up
    other_workspace      a second one, for isolation
    database_url         what `database` connects to; the schema is made for vectors of 384 floats
    owner_url            the same database as its owner (here a superuser)
    empty_database_url   a new database without any schema, as its owner; dropped after the test
    embedded             the running cluster

There is one event loop for the session (see pyproject.toml), so an open pool can be shared.
"""

import contextlib
import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncpg
import pytest
from sqlalchemy import text

from sherlock.embedded import EmbeddedPostgres, open_embedded
from sherlock.rag.adapters.postgres import Database, migrate
from sherlock.rag.domain.models import WorkspaceId

DIMENSION = 384


@pytest.fixture(scope="session")
def postgres_dir() -> Iterator[Path]:
    """A data folder that PostgreSQL's own user can reach when the tests run as root (pytest's are closed)."""
    folder = Path(tempfile.mkdtemp(prefix="sherlock-tests-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
async def embedded(postgres_dir: Path) -> AsyncIterator[EmbeddedPostgres]:
    async with await open_embedded(postgres_dir, durable=False) as postgres:
        yield postgres


@contextlib.asynccontextmanager
async def new_database(embedded: EmbeddedPostgres, template: str = "template0") -> AsyncIterator[str]:
    """The owner's address of a database that is dropped afterwards, whoever is still connected."""
    name = f"test_{secrets.token_hex(6)}"
    server = await asyncpg.connect(embedded.owner_url)
    try:
        await server.execute(f"create database {name} template {template}")
        yield embedded.owner_url.replace("@/postgres?", f"@/{name}?")
        await server.execute(f"drop database {name} with (force)")
    finally:
        await server.close()


@pytest.fixture(scope="session")
async def owner_url(embedded: EmbeddedPostgres) -> AsyncIterator[str]:
    async with new_database(embedded) as url:
        await migrate(url, app_password=None, dimension=DIMENSION)
        yield url


@pytest.fixture(scope="session")
async def database_url(owner_url: str) -> str:
    return await migrate(owner_url, app_password=None, dimension=DIMENSION)


@pytest.fixture(scope="session")
async def database(database_url: str) -> AsyncIterator[Database]:
    database = await Database.open(database_url, pool_size=8)
    yield database
    await database.close()


@pytest.fixture
async def empty_database_url(embedded: EmbeddedPostgres) -> AsyncIterator[str]:
    async with new_database(embedded) as url:
        yield url


@contextlib.asynccontextmanager
async def _workspace(database: Database) -> AsyncIterator[WorkspaceId]:
    workspace = WorkspaceId(f"ws-{secrets.token_hex(6)}")
    async with database.transaction() as connection:
        await connection.execute(text("insert into workspaces (id) values (:id)"), {"id": workspace})
    yield workspace
    async with database.transaction() as connection:
        await connection.execute(text("delete from workspaces where id = :id"), {"id": workspace})


@pytest.fixture
async def workspace(database: Database) -> AsyncIterator[WorkspaceId]:
    async with _workspace(database) as workspace:
        yield workspace


@pytest.fixture
async def other_workspace(database: Database) -> AsyncIterator[WorkspaceId]:
    async with _workspace(database) as workspace:
        yield workspace
