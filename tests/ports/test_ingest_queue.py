"""What every `IngestQueue` does, in memory and in PostgreSQL.

Nobody waits for a lease to run out: `later` moves the jobs' own times into the past.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypedDict

import pytest
from sqlalchemy import text
from tests.fakes import InMemoryCatalog, InMemoryIngestQueue, MemoryState

from sherlock.rag.adapters.postgres import Database
from sherlock.rag.adapters.postgres_catalog import PostgresCatalog
from sherlock.rag.adapters.postgres_queue import PostgresIngestQueue
from sherlock.rag.domain.errors import LeaseLost
from sherlock.rag.domain.models import (
    ChunkingStrategy,
    Encoder,
    IngestJob,
    LastError,
    Lease,
    Published,
    StoredFile,
    VectorStore,
    VectorStoreFile,
    WorkspaceId,
)
from sherlock.rag.domain.ports import Catalog, IngestQueue


class Limits(TypedDict):
    max_attempts: int
    outage_limit_s: float


MAX_ATTEMPTS = 2
LEASE_S = 30.0
OUTAGE_LIMIT_S = 3600.0
LIMITS: Limits = {"max_attempts": MAX_ATTEMPTS, "outage_limit_s": OUTAGE_LIMIT_S}
ERROR = LastError("server_error", "The encoder did not answer.")
PUBLISHED = Published(chunk_count=3, window_count=4, usage_bytes=500)
STORE = "vs_queue"

Attach = Callable[[], Awaitable[str]]
Later = Callable[[float], Awaitable[None]]

AGE_JOBS = text("""
    update ingest_jobs set outage_since = outage_since - make_interval(secs => :seconds),
        run_after = run_after - make_interval(secs => :seconds),
        lease_until = lease_until - make_interval(secs => :seconds)
    where workspace_id = :workspace
""")


@pytest.fixture(params=["memory", "postgres"])
async def parts(
    request: pytest.FixtureRequest, database: Database
) -> AsyncIterator[tuple[Catalog, IngestQueue]]:
    if request.param == "memory":
        state = MemoryState()
        yield InMemoryCatalog(state), InMemoryIngestQueue(state, **LIMITS)
        return
    queue = PostgresIngestQueue(database, **LIMITS)
    yield PostgresCatalog(database), queue
    await queue.close()


@pytest.fixture
def catalog(parts: tuple[Catalog, IngestQueue]) -> Catalog:
    return parts[0]


@pytest.fixture
def queue(parts: tuple[Catalog, IngestQueue]) -> IngestQueue:
    return parts[1]


@pytest.fixture
async def attach(catalog: Catalog, workspace: WorkspaceId) -> Attach:
    """Attach a new file to the one store; returns its id."""
    chunking = ChunkingStrategy(512, 50)
    store = VectorStore(STORE, workspace, "", None, None, Encoder("hash", 384), 0, 0)
    await catalog.add_vector_store(store, [], chunking)

    async def attach() -> str:
        file = StoredFile(f"file-{secrets.token_hex(6)}", workspace, "a.txt", "assistants", 9, "00", 0)
        await catalog.add_file(file)
        await catalog.attach_file(
            workspace, STORE, file.id, attributes=None, chunking=chunking, chunking_given=False
        )
        return file.id

    return attach


@pytest.fixture
def later(catalog: Catalog, database: Database, workspace: WorkspaceId) -> Later:
    """As if so many seconds had gone by since everything that happened to the jobs."""

    async def later(seconds: float) -> None:
        if isinstance(catalog, InMemoryCatalog):
            for job in catalog.state.jobs.values():
                job.run_after -= seconds
                job.lease_until -= seconds
                if job.outage_since is not None:
                    job.outage_since -= seconds
            return
        async with database.transaction() as connection:
            await connection.execute(AGE_JOBS, {"seconds": seconds, "workspace": workspace})

    return later


async def claimed(queue: IngestQueue, owner: str = "worker") -> IngestJob:
    job = await queue.claim(owner, LEASE_S)
    assert job is not None
    return job


async def member(catalog: Catalog, job: IngestJob) -> VectorStoreFile:
    return await catalog.get_membership(job.workspace_id, job.vector_store_id, job.file_id)


def ways_to_use(queue: IngestQueue, lease: Lease) -> list[Awaitable[None]]:
    return [
        queue.renew(lease, LEASE_S),
        queue.complete(lease, PUBLISHED),
        queue.fail(lease, ERROR),
        queue.retry(lease, 0, ERROR, counted=True),
        queue.retry(lease, 0, ERROR, counted=False),
        queue.release(lease),
    ]


async def lost(queue: IngestQueue, lease: Lease) -> bool:
    """Whether every use of the lease is refused."""
    for use in ways_to_use(queue, lease):
        with pytest.raises(LeaseLost):
            await use
    return True


async def test_jobs_are_claimed_oldest_first_and_once(queue: IngestQueue, attach: Attach) -> None:
    files = [await attach() for _ in range(3)]
    jobs = [await claimed(queue) for _ in files]
    assert [job.file_id for job in jobs] == files
    assert [job.lease.attempt for job in jobs] == [1, 1, 1]
    assert {job.lease.owner for job in jobs} == {"worker"}
    assert await queue.claim("worker", LEASE_S) is None
    assert await queue.depth() == 3


async def test_of_concurrent_claims_each_gets_another_job(queue: IngestQueue, attach: Attach) -> None:
    files = {await attach() for _ in range(3)}
    claims = await asyncio.gather(*(queue.claim(f"worker {n}", LEASE_S) for n in range(6)))
    jobs = [job for job in claims if job is not None]
    # A claim may pass over a job that another one is just looking at; nobody gets the same one.
    while (job := await queue.claim("last", LEASE_S)) is not None:
        jobs.append(job)
    assert {job.file_id for job in jobs} == files
    assert len(jobs) == 3


async def test_a_completed_job_shows_in_its_membership(
    catalog: Catalog, queue: IngestQueue, attach: Attach
) -> None:
    await attach()
    job = await claimed(queue)
    await queue.complete(job.lease, PUBLISHED)
    done = await member(catalog, job)
    assert (done.status, done.chunk_count, done.usage_bytes) == ("completed", 3, 500)
    assert await queue.depth() == 0
    assert await lost(queue, job.lease)
    assert await member(catalog, job) == done


async def test_a_failed_job_shows_its_error_for_good(
    catalog: Catalog, queue: IngestQueue, attach: Attach
) -> None:
    await attach()
    job = await claimed(queue)
    await queue.fail(job.lease, LastError("unsupported_file", "No parser reads it."))
    failed = await member(catalog, job)
    assert (failed.status, failed.last_error) == (
        "failed",
        LastError("unsupported_file", "No parser reads it."),
    )
    assert await queue.claim("worker", LEASE_S) is None
    assert await queue.depth() == 0
    assert await lost(queue, job.lease)
    assert await member(catalog, job) == failed


@pytest.mark.parametrize("counted", [True, False])
async def test_a_retried_job_is_due_after_its_delay(
    catalog: Catalog, queue: IngestQueue, attach: Attach, later: Later, counted: bool
) -> None:
    await attach()
    job = await claimed(queue)
    await queue.retry(job.lease, 60, ERROR, counted=counted)
    assert await queue.depth() == 1
    assert await lost(queue, job.lease)
    await later(30)
    assert await queue.claim("worker", LEASE_S) is None
    await later(31)
    again = await claimed(queue)
    assert (again.file_id, again.lease.attempt) == (job.file_id, 2)
    assert (await member(catalog, job)).status == "in_progress"


async def test_retries_are_bounded(catalog: Catalog, queue: IngestQueue, attach: Attach) -> None:
    await attach()
    for _ in range(MAX_ATTEMPTS):
        job = await claimed(queue)
        await queue.retry(job.lease, 0, ERROR, counted=True)
    failed = await member(catalog, job)
    assert (failed.status, failed.last_error) == ("failed", ERROR)
    assert await queue.claim("worker", LEASE_S) is None
    assert await queue.depth() == 0
    assert await lost(queue, job.lease)


async def test_an_outage_uses_up_no_attempts(
    catalog: Catalog, queue: IngestQueue, attach: Attach, later: Later
) -> None:
    await attach()
    for _ in range(MAX_ATTEMPTS + 3):
        job = await claimed(queue)
        await queue.retry(job.lease, 300, ERROR, counted=False)
        await later(300)
    for _ in range(MAX_ATTEMPTS):
        assert (await member(catalog, job)).status == "in_progress"
        job = await claimed(queue)
        await queue.retry(job.lease, 0, ERROR, counted=True)
    assert (await member(catalog, job)).status == "failed"


async def test_an_outage_that_goes_on_for_too_long_fails_the_job(
    catalog: Catalog, queue: IngestQueue, attach: Attach, later: Later
) -> None:
    await attach()
    await later(OUTAGE_LIMIT_S)  # waiting its turn is no outage
    for _ in range(3):
        job = await claimed(queue)
        await queue.retry(job.lease, 0, ERROR, counted=False)
        assert (await member(catalog, job)).status == "in_progress"
        await later(OUTAGE_LIMIT_S / 3 + 1)
    job = await claimed(queue)
    await queue.retry(job.lease, 0, ERROR, counted=False)
    failed = await member(catalog, job)
    assert (failed.status, failed.last_error) == ("failed", ERROR)
    assert await queue.claim("worker", LEASE_S) is None
    assert await queue.depth() == 0
    assert await lost(queue, job.lease)


async def test_a_counted_attempt_ends_an_outage(
    catalog: Catalog, queue: IngestQueue, attach: Attach, later: Later
) -> None:
    await attach()
    for counted in (False, True, False):
        job = await claimed(queue)
        await queue.retry(job.lease, 0, ERROR, counted=counted)
        assert (await member(catalog, job)).status == "in_progress"
        await later(OUTAGE_LIMIT_S)


async def test_a_job_whose_lease_ran_out_is_taken_up_again(
    catalog: Catalog, queue: IngestQueue, attach: Attach, later: Later
) -> None:
    await attach()
    dead = await claimed(queue, owner="dead worker")
    assert await queue.claim("worker", LEASE_S) is None
    await later(LEASE_S + 1)
    job = await claimed(queue)
    assert (job.file_id, job.lease.job_id, job.lease.attempt) == (dead.file_id, dead.lease.job_id, 2)
    # The old worker comes back to life: it can no longer do any harm.
    assert await lost(queue, dead.lease)
    await queue.complete(job.lease, PUBLISHED)
    assert (await member(catalog, job)).status == "completed"


async def test_lost_workers_are_bounded(
    catalog: Catalog, queue: IngestQueue, attach: Attach, later: Later
) -> None:
    """A file that kills every worker that takes it up."""
    await attach()
    for _ in range(MAX_ATTEMPTS):
        job = await claimed(queue)
        await later(LEASE_S + 1)
    assert await queue.claim("worker", LEASE_S) is None
    failed = await member(catalog, job)
    assert failed.status == "failed"
    assert failed.last_error is not None
    assert failed.last_error.code == "server_error"
    assert await queue.depth() == 0
    assert await lost(queue, job.lease)


async def test_a_renewed_lease_holds_on(queue: IngestQueue, attach: Attach, later: Later) -> None:
    await attach()
    job = await claimed(queue)
    await later(LEASE_S - 10)
    await queue.renew(job.lease, LEASE_S)
    await later(LEASE_S - 10)
    assert await queue.claim("worker", LEASE_S) is None
    await queue.complete(job.lease, PUBLISHED)


async def test_a_released_job_is_due_at_once_and_not_counted(
    catalog: Catalog, queue: IngestQueue, attach: Attach
) -> None:
    await attach()
    attempts = []
    for _ in range(MAX_ATTEMPTS + 3):
        job = await claimed(queue)
        attempts.append(job.lease.attempt)
        await queue.release(job.lease)
    assert attempts == sorted(set(attempts))
    assert await lost(queue, job.lease)
    last = await claimed(queue)
    await queue.retry(last.lease, 0, ERROR, counted=True)
    assert (await member(catalog, last)).status == "in_progress"


async def test_another_owner_or_attempt_holds_nothing(queue: IngestQueue, attach: Attach) -> None:
    await attach()
    lease = (await claimed(queue)).lease
    assert await lost(queue, Lease(lease.job_id, lease.attempt, "another"))
    assert await lost(queue, Lease(lease.job_id, lease.attempt + 1, lease.owner))
    assert await lost(queue, Lease(lease.job_id + 1_000_000, lease.attempt, lease.owner))
    await queue.renew(lease, LEASE_S)


@pytest.mark.parametrize("gone", ["detached", "file deleted", "store deleted"])
async def test_a_file_that_goes_takes_its_job_along(
    catalog: Catalog, queue: IngestQueue, workspace: WorkspaceId, attach: Attach, gone: str
) -> None:
    file_id = await attach()
    job = await claimed(queue)
    if gone == "detached":
        await catalog.detach_file(workspace, STORE, file_id)
    elif gone == "file deleted":
        await catalog.delete_file(workspace, file_id)
    else:
        await catalog.delete_vector_store(workspace, STORE)
    assert await queue.depth() == 0
    assert await lost(queue, job.lease)


async def test_an_attached_file_wakes_who_waits(queue: IngestQueue, attach: Attach) -> None:
    await queue.wait_for_work(0.05)  # the first wait may return early: something may have come before
    await queue.wait_for_work(0.05)
    waiters = [asyncio.create_task(queue.wait_for_work(600)) for _ in range(2)]
    await asyncio.sleep(0.05)
    await attach()
    async with asyncio.timeout(60):
        await asyncio.gather(*waiters)


async def test_waiting_ends_by_itself(queue: IngestQueue) -> None:
    await queue.wait_for_work(0.01)
    begun = time.monotonic()
    async with asyncio.timeout(60):
        await queue.wait_for_work(0.2)
    assert time.monotonic() - begun > 0.15


async def test_a_cancelled_membership_is_given_to_nobody(
    database: Database, workspace: WorkspaceId, attach: Attach, catalog: Catalog, queue: IngestQueue
) -> None:
    running, waiting = await attach(), await attach()
    job = await claimed(queue)
    assert job.file_id == running
    for file_id in (running, waiting):
        await cancel(catalog, database, workspace, file_id)
    assert await lost(queue, job.lease)
    assert await queue.claim("worker", LEASE_S) is None
    assert (await member(catalog, job)).status == "cancelled"

    again = await catalog.attach_file(
        workspace, STORE, running, attributes=None, chunking=job.chunking, chunking_given=False
    )
    assert again.status == "in_progress"
    assert (await claimed(queue)).file_id == running
    assert await lost(queue, job.lease)


async def cancel(catalog: Catalog, database: Database, workspace: WorkspaceId, file_id: str) -> None:
    """No port cancels yet, so it is done behind them."""
    if isinstance(catalog, InMemoryCatalog):
        catalog.state.change((workspace, STORE, file_id), status="cancelled")
        return
    async with database.transaction() as connection:
        await connection.execute(
            text("""
                update vector_store_files set status = 'cancelled'
                where workspace_id = :workspace and file_id = :file
            """),
            {"workspace": workspace, "file": file_id},
        )
