"""What every `ReconciliationRecords` does: the in-memory one and PostgreSQL's behave alike."""

import asyncio
import time
from dataclasses import replace

import pytest
from sqlalchemy import text
from tests.fakes import InMemoryCatalog, MemoryState
from tests.fakes_reconciling import InMemoryReconciliation
from tests.ports.test_catalog import a_file

from sherlock.rag.adapters.postgres import Database
from sherlock.rag.adapters.postgres_catalog import PostgresCatalog
from sherlock.rag.adapters.postgres_reconciliation import PostgresReconciliation
from sherlock.rag.domain.models import Orphans, WorkspaceId
from sherlock.rag.domain.ports import Catalog, ReconciliationRecords

_FORGET = text("delete from reconciliation")


Parts = tuple[Catalog, ReconciliationRecords]


@pytest.fixture
def memory() -> Parts:
    state = MemoryState()
    return InMemoryCatalog(state), InMemoryReconciliation(state)


@pytest.fixture
async def postgres(database: Database) -> Parts:
    async with database.transaction() as connection:
        await connection.execute(_FORGET)
    return PostgresCatalog(database), PostgresReconciliation(database)


@pytest.fixture(params=["memory", "postgres"])
def parts(request: pytest.FixtureRequest) -> Parts:
    parts: Parts = request.getfixturevalue(request.param)
    return parts


@pytest.fixture
def catalog(parts: Parts) -> Catalog:
    return parts[0]


@pytest.fixture
def records(parts: Parts) -> ReconciliationRecords:
    return parts[1]


async def test_one_begins_and_then_nobody_for_a_while(records: ReconciliationRecords) -> None:
    assert sorted(await asyncio.gather(*(records.begin(60) for _ in range(4)))) == [False] * 3 + [True]
    assert not await records.begin(60)
    assert await records.begin(0)
    assert not await records.begin(60)


async def test_what_was_found_last_is_kept(records: ReconciliationRecords) -> None:
    assert await records.latest() is None
    await records.begin(60)
    assert await records.latest() is None, "nothing has been found yet"
    await records.end(Orphans(3, 1))
    assert await records.latest() == Orphans(3, 1)
    assert not await records.begin(60), "the end is no beginning"
    await records.end(Orphans(0, 0))
    assert await records.latest() == Orphans(0, 0)


async def test_somebody_who_never_began_may_say_what_there_is(records: ReconciliationRecords) -> None:
    await records.end(Orphans(0, 2))
    assert await records.latest() == Orphans(0, 2)


async def test_files_of_all_workspaces_are_walked_in_order(
    catalog: Catalog, records: ReconciliationRecords, workspace: WorkspaceId, other_workspace: WorkspaceId
) -> None:
    files = [a_file(space) for space in (workspace, other_workspace) * 3]
    expired = replace(a_file(workspace), expires_at=int(time.time()) - 5)
    for file in (*files, expired):
        await catalog.add_file(file)
    walked: list[tuple[str, str]] = []
    after = 0
    while page := await records.files(after, 2):
        assert len(page) <= 2
        assert [after, *(number for number, *_ in page)] == sorted({after, *(n for n, *_ in page)})
        walked += [(space, file) for _, space, file in page if space in (workspace, other_workspace)]
        after = page[-1][0]
    assert walked == [(file.workspace_id, file.id) for file in files]
