"""What every `IngestRequests` does: the in-memory one and PostgreSQL's behave alike."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from sqlalchemy import text
from tests.fakes import InMemoryCatalog, MemoryState
from tests.fakes_requests import InMemoryIngestRequests

from sherlock.rag.adapters.postgres import Database
from sherlock.rag.adapters.postgres_catalog import PostgresCatalog
from sherlock.rag.adapters.postgres_ingest_requests import PostgresIngestRequests
from sherlock.rag.domain.messages import IngestRequest, IngestRequests
from sherlock.rag.domain.models import ChunkingStrategy, Encoder, StoredFile, VectorStore, WorkspaceId
from sherlock.rag.domain.ports import Catalog

STORE = "vs_requests"
LEASE_S = 30.0
CHUNKING = ChunkingStrategy(512, 50)

END = text("""
    update vector_store_files set status = :status,
        error_code = case :status when 'failed' then 'invalid_file' end,
        error_message = case :status when 'failed' then 'It is broken.' end
    where workspace_id = :workspace and file_id = :file
""")
AGE = text("""
    update ingest_requests set published_at = published_at - make_interval(secs => :seconds),
        claimed_until = claimed_until - make_interval(secs => :seconds)
    where workspace_id = :workspace
""")


class Bench:
    """A store whose files begin in progress."""

    def __init__(self, database: Database, workspace: WorkspaceId) -> None:
        self.database = database
        self.catalog: Catalog = PostgresCatalog(database)
        self.workspace = workspace

    async def request(self) -> IngestRequest:
        file = StoredFile(f"file-{secrets.token_hex(6)}", self.workspace, "a.txt", "assistants", 9, "00", 0)
        await self.catalog.add_file(file)
        await self.catalog.attach_file(
            self.workspace, STORE, file.id, attributes=None, chunking=CHUNKING, chunking_given=False
        )
        span = f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-01"
        message_id = secrets.token_hex(6)
        return IngestRequest(self.workspace, message_id, "req_1", STORE, file.id, "my.inbox", span)

    async def end(self, request: IngestRequest, status: str = "completed") -> None:
        await self._run(END, status=status, file=request.file_id)

    async def later(self, seconds: float) -> None:
        await self._run(AGE, seconds=seconds)

    async def _run(self, statement: object, **parameters: object) -> None:
        async with self.database.transaction() as connection:
            await connection.execute(statement, {"workspace": self.workspace, **parameters})  # type: ignore[call-overload]


class MemoryBench(Bench):
    """The same in memory."""

    def __init__(self, state: MemoryState) -> None:
        self.state = state
        self.catalog = InMemoryCatalog(state)
        self.workspace = WorkspaceId("here")
        self.requests = InMemoryIngestRequests(state)

    async def end(self, request: IngestRequest, status: str = "completed") -> None:
        self.state.change((self.workspace, STORE, request.file_id), status=status)

    async def later(self, seconds: float) -> None:
        for one in self.requests.requests.values():
            one.claimed_until -= seconds
            one.settled_at = one.settled_at and one.settled_at - seconds


@pytest.fixture
async def memory_bench() -> Bench:
    return await with_store(MemoryBench(MemoryState()))


@pytest.fixture
async def postgres_bench(database: Database, workspace: WorkspaceId) -> Bench:
    return await with_store(Bench(database, workspace))


async def with_store(bench: Bench) -> Bench:
    store = VectorStore(STORE, bench.workspace, "", None, None, Encoder("hash", 384), 0, 0)
    await bench.catalog.add_vector_store(store, [], CHUNKING)
    return bench


@pytest.fixture(params=["memory_bench", "postgres_bench"])
def bench(request: pytest.FixtureRequest) -> Bench:
    bench: Bench = request.getfixturevalue(request.param)
    return bench


@pytest.fixture
async def requests(bench: Bench) -> AsyncIterator[IngestRequests]:
    if isinstance(bench, MemoryBench):
        yield bench.requests
        return
    requests = PostgresIngestRequests(bench.database)
    yield requests
    await requests.close()


async def test_a_result_is_owed_once_the_ingest_has_ended(requests: IngestRequests, bench: Bench) -> None:
    first, second = await bench.request(), await bench.request()
    await requests.add(first)
    await requests.add(second)
    assert await requests.claim_ended(10, LEASE_S) == []
    await bench.end(second, "failed")
    assert await requests.claim_ended(10, LEASE_S) == [second]
    await bench.end(first)
    assert await requests.claim_ended(10, LEASE_S) == [first]
    await requests.settle([first, second])
    await bench.later(LEASE_S * 2)
    assert await requests.claim_ended(10, LEASE_S) == []


@pytest.mark.parametrize("gone", ["file", "membership", "store"])
async def test_what_has_gone_has_ended(requests: IngestRequests, bench: Bench, gone: str) -> None:
    request = await bench.request()
    await requests.add(request)
    if gone == "file":
        await bench.catalog.delete_file(bench.workspace, request.file_id)
    elif gone == "membership":
        await bench.catalog.detach_file(bench.workspace, STORE, request.file_id)
    else:
        await bench.catalog.delete_vector_store(bench.workspace, STORE)
    assert await requests.claim_ended(10, LEASE_S) == [request]


async def test_the_oldest_come_first_to_one_caller_only(requests: IngestRequests, bench: Bench) -> None:
    made = [await bench.request() for _ in range(5)]
    for request in made:
        await requests.add(request)
        await bench.end(request)
    claims = await asyncio.gather(*(requests.claim_ended(2, LEASE_S) for _ in range(3)))
    assert sorted(r.message_id for c in claims for r in c) == sorted(r.message_id for r in made)
    await bench.later(LEASE_S * 2)
    assert await requests.claim_ended(10, LEASE_S) == made, "whoever claimed them is gone"


async def test_a_message_is_known_for_a_day(requests: IngestRequests, bench: Bench) -> None:
    request = await bench.request()
    assert not await requests.known(bench.workspace, request.message_id)
    await requests.add(request)
    await requests.add(replace(request, request_id="req_2"))
    await bench.end(request)
    assert await requests.claim_ended(10, LEASE_S) == [request], "the first stays as it is"
    await requests.settle([request])
    assert await requests.known(bench.workspace, request.message_id)
    assert not await requests.known(WorkspaceId("elsewhere"), request.message_id)
    assert await requests.forget_settled(10) == 0
    await bench.later(86_500)
    assert await requests.forget_settled(10) == 1
    assert not await requests.known(bench.workspace, request.message_id)


async def test_requests_are_forgotten_few_at_a_time_and_never_those_owed(
    requests: IngestRequests, bench: Bench
) -> None:
    made = [await bench.request() for _ in range(4)]
    for request in made:
        await requests.add(request)
    await requests.settle(made[:3])
    await bench.later(86_500)
    assert sorted(await asyncio.gather(*(requests.forget_settled(2) for _ in range(3)))) == [0, 1, 2]
    assert [await requests.known(bench.workspace, one.message_id) for one in made] == [False] * 3 + [True]


async def test_whoever_waits_is_woken(requests: IngestRequests, bench: Bench) -> None:
    request, deleted = await bench.request(), await bench.request()
    for owed in (request, deleted):
        await requests.add(owed)
    await requests.wait_for_ended(0)  # connects
    for end in (bench.end(request), bench.catalog.delete_file(bench.workspace, deleted.file_id)):
        waiting = asyncio.ensure_future(requests.wait_for_ended(20))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await end
        await asyncio.wait_for(waiting, 5)


async def test_nobody_is_woken_for_what_no_message_asked(requests: IngestRequests, bench: Bench) -> None:
    request = await bench.request()
    await requests.wait_for_ended(0)
    waiting = asyncio.ensure_future(requests.wait_for_ended(0.3))
    await bench.end(request)
    await asyncio.sleep(0.1)
    assert not waiting.done()
    await waiting
