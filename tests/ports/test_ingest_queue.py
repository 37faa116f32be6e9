"""What every `IngestQueue` does, in memory and in PostgreSQL.

Nobody waits for a lease to run out: `later` moves the jobs' own times into the past.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, Literal, Protocol, TypedDict, get_args
from urllib.parse import parse_qs, urlsplit, urlunsplit

import asyncpg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import text
from tests.chaos.background import background
from tests.chaos.tcp_proxy import tcp_proxy
from tests.fakes import InMemoryCatalog, InMemoryIngestQueue, MemoryState

from sherlock.rag import tracing
from sherlock.rag.adapters.postgres import Database
from sherlock.rag.adapters.postgres_catalog import PostgresCatalog
from sherlock.rag.adapters.postgres_queue import CLAIM, KEEP_TO_THE_INDEX, PostgresIngestQueue
from sherlock.rag.domain.correlation import UNKNOWN, Correlation
from sherlock.rag.domain.errors import DatabaseUnavailable, LeaseLost, NotFound
from sherlock.rag.domain.models import (
    ChunkingStrategy,
    Encoder,
    IngestJob,
    LastError,
    Lease,
    Published,
    ReadingNotes,
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
NOTES = ReadingNotes("cp1252", 12, "3, 7-9")
PUBLISHED = Published(chunk_count=3, window_count=4, usage_bytes=500, notes=NOTES)
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


async def test_a_job_remembers_the_request_that_queued_it(queue: IngestQueue, attach: Attach) -> None:
    asked = Correlation("asked-by-me", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
    with tracing.resumed(asked):
        await attach()
    await attach()
    first, second = await claimed(queue), await claimed(queue)
    assert (first.correlation, second.correlation) == (asked, UNKNOWN)
    await queue.release(first.lease)
    assert (await claimed(queue)).correlation == asked


async def test_activity_tells_how_the_queue_stands(queue: IngestQueue, attach: Attach) -> None:
    before = await queue.activity()
    assert (before.waiting, before.running, before.oldest_age_s) == (0, 0, 0)
    for _ in range(3):
        await attach()
    job = await claimed(queue)
    now = await queue.activity()
    assert (now.waiting, now.running) == (2, 1)
    assert 0 <= now.oldest_age_s < 60
    await queue.complete(job.lease, PUBLISHED)
    assert (await queue.activity()).running == 0


async def test_activity_tells_the_mean_times_of_the_last_jobs(queue: IngestQueue, attach: Attach) -> None:
    for number in range(25):
        await attach()
        job = await claimed(queue)
        stage_ms = {"parse": float(number), "embed": 8.0} if number > 5 else {"parse": 1e9}
        await queue.complete(job.lease, replace(PUBLISHED, stage_ms=stage_ms))
    await attach()
    await queue.fail((await claimed(queue)).lease, ERROR)
    now = await queue.activity()
    # Of the last 20, of which the first is from before the stages were measured whole.
    assert now.recent_jobs == 20
    assert now.stage_ms == {"parse": round((1e9 + sum(range(6, 25))) / 20, 1), "embed": 8.0}


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
    assert done.notes == NOTES
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
    for number in range(1, MAX_ATTEMPTS + 1):
        job = await claimed(queue)
        assert await queue.retry(job.lease, 0, ERROR, counted=True) == (number < MAX_ATTEMPTS)
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
    assert (await member(catalog, job)).status == "in_progress", "the last one may still say that it lives"
    await later(LEASE_S)
    assert await queue.claim("worker", LEASE_S) is None
    failed = await member(catalog, job)
    assert failed.status == "failed"
    assert failed.last_error is not None
    assert failed.last_error.code == "server_error"
    assert await queue.depth() == 0
    assert await lost(queue, job.lease)


async def test_a_worker_that_comes_back_in_time_keeps_even_a_job_that_would_fail(
    catalog: Catalog, queue: IngestQueue, attach: Attach, later: Later
) -> None:
    await attach()
    for _ in range(MAX_ATTEMPTS - 1):
        await queue.retry((await claimed(queue)).lease, 0, ERROR, counted=True)
    job = await claimed(queue)
    await later(LEASE_S + 1)
    assert await queue.claim("another", LEASE_S) is None
    await queue.renew(job.lease, LEASE_S)
    await later(LEASE_S - 1)
    await queue.complete(job.lease, PUBLISHED)
    assert (await member(catalog, job)).status == "completed"


async def test_a_worker_that_lives_gives_back_what_it_does_not_run(
    catalog: Catalog, queue: IngestQueue, attach: Attach
) -> None:
    await attach()
    await attach()
    for attempt in range(1, MAX_ATTEMPTS + 3):
        job = await claimed(queue, "cut off")
        assert job.lease.attempt == attempt
        others = await claimed(queue, "another")
        await queue.vouch("cut off")
        assert await lost(queue, job.lease)
        await queue.renew(others.lease, LEASE_S)
        await queue.release(others.lease)


async def test_a_job_that_keeps_its_workers_from_renewing_ends_all_the_same(
    catalog: Catalog, queue: IngestQueue, attach: Attach, later: Later
) -> None:
    await attach()
    for _ in range(MAX_ATTEMPTS + 1):
        job = await claimed(queue, "frozen")
        await later(LEASE_S + 1)
        after = await claimed(queue, "another")
        await queue.vouch("frozen")
        await queue.release(after.lease)
        assert (await member(catalog, job)).status == "in_progress"
    job = await claimed(queue, "frozen")
    await later(OUTAGE_LIMIT_S)
    await queue.vouch("frozen")
    assert (await member(catalog, job)).status == "failed"
    assert await queue.depth() == 0


Attempt = Literal["counted", "its worker died", "its worker was cut off", "not settled", "released", "outage"]


@given(attempts=st.lists(st.sampled_from(get_args(Attempt)), max_size=8))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_only_faults_and_dead_workers_count(
    catalog: Catalog, queue: IngestQueue, attach: Attach, later: Later, attempts: list[Attempt]
) -> None:
    await attach()
    counted = 0
    for number, attempt in enumerate(attempts):
        owner = f"worker {number}"
        job = await claimed(queue, owner)
        match attempt:
            case "counted":
                await queue.retry(job.lease, 0, ERROR, counted=True)
            case "its worker died":
                await later(2 * LEASE_S + 1)
            case "its worker was cut off":
                await later(LEASE_S + 1)
                after = await queue.claim("another", LEASE_S)
                assert (after is None) == (counted + 1 == MAX_ATTEMPTS), "the last one has a lease more"
                await queue.vouch(owner)
                await queue.vouch(owner)
                if after is not None:
                    await queue.release(after.lease)
            case "not settled":
                await queue.vouch(owner)
            case "released":
                await queue.release(job.lease)
            case "outage":
                await queue.retry(job.lease, 0, ERROR, counted=False)
        counted += attempt in ("counted", "its worker died")
        if counted == MAX_ATTEMPTS:
            break
    last = await queue.claim("the last", LEASE_S)
    assert (last is None) == (counted == MAX_ATTEMPTS)
    if last is not None:
        await queue.complete(last.lease, PUBLISHED)
        assert (await member(catalog, last)).status == "completed"
    else:
        assert (await member(catalog, job)).status == "failed"


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


async def test_a_cancelled_file_is_given_to_nobody(
    catalog: Catalog, queue: IngestQueue, workspace: WorkspaceId, attach: Attach
) -> None:
    running, waiting = await attach(), await attach()
    job = await claimed(queue)
    assert job.file_id == running
    for file_id in (running, waiting):
        cancelled = await catalog.cancel_file(workspace, STORE, file_id)
        assert (cancelled.status, cancelled.last_error) == ("cancelled", None)
    assert await lost(queue, job.lease)
    assert await queue.claim("worker", LEASE_S) is None
    assert await queue.depth() == 0

    again = await catalog.attach_file(
        workspace, STORE, running, attributes=None, chunking=job.chunking, chunking_given=False
    )
    assert again.status == "in_progress"
    assert (await claimed(queue)).file_id == running
    assert await lost(queue, job.lease)


async def test_an_ended_file_is_not_cancelled(
    catalog: Catalog, queue: IngestQueue, workspace: WorkspaceId, attach: Attach
) -> None:
    for completed in (True, False):
        file_id = await attach()
        job = await claimed(queue)
        await (queue.complete(job.lease, PUBLISHED) if completed else queue.fail(job.lease, ERROR))
        before = await member(catalog, job)
        assert await catalog.cancel_file(workspace, STORE, file_id) == before
    with pytest.raises(NotFound):
        await catalog.cancel_file(workspace, STORE, "file-unknown")


# ── letting go ──


@pytest.mark.parametrize("gone", ["cancelled", "detached", "file deleted", "store deleted", "taken over"])
async def test_a_worker_hears_within_two_seconds_that_its_job_is_of_no_use(
    catalog: Catalog, queue: IngestQueue, workspace: WorkspaceId, attach: Attach, later: Later, gone: str
) -> None:
    file_id, other_file = await attach(), await attach()
    job, other = await claimed(queue), await claimed(queue)
    assert (job.file_id, other.file_id) == (file_id, other_file)
    watching = asyncio.create_task(queue.watch(job.lease))
    watching_other = asyncio.create_task(queue.watch(other.lease))
    await asyncio.sleep(0.1)
    assert not watching.done()
    if gone == "cancelled":
        await catalog.cancel_file(workspace, STORE, file_id)
    elif gone == "detached":
        await catalog.detach_file(workspace, STORE, file_id)
    elif gone == "file deleted":
        await catalog.delete_file(workspace, file_id)
    elif gone == "store deleted":
        await catalog.delete_vector_store(workspace, STORE)
    else:
        await queue.renew(other.lease, 10 * LEASE_S)
        await later(LEASE_S + 1)
        assert (await claimed(queue)).file_id == file_id
    async with asyncio.timeout(2):
        await watching
    if gone != "store deleted":
        assert not watching_other.done()
        watching_other.cancel()
    async with asyncio.timeout(2):
        await asyncio.wait([watching_other])


# ── turns ──

KIB, MIB = 1024, 1024 * 1024
JOB_BYTES = 64 * KIB
"""What a job costs its workspace beside its file's bytes."""


class Queued(Protocol):
    async def __call__(self, *sizes: int, workspace: WorkspaceId | None = None) -> list[str]: ...


@pytest.fixture
def queued(catalog: Catalog, workspace: WorkspaceId) -> Queued:
    """Queue files of these sizes together, in a new store; their ids."""
    home = workspace

    async def queued(*sizes: int, workspace: WorkspaceId | None = None) -> list[str]:
        tenant = workspace or home
        ids = [f"file-{secrets.token_hex(6)}" for _ in sizes]
        for file_id, size in zip(ids, sizes, strict=True):
            await catalog.add_file(StoredFile(file_id, tenant, "a.txt", "assistants", size, "00", 0))
        store = VectorStore(f"vs_{secrets.token_hex(6)}", tenant, "", None, None, Encoder("hash", 384), 0, 0)
        await catalog.add_vector_store(store, ids, ChunkingStrategy(512, 50))
        return ids

    return queued


async def claim_all(queue: IngestQueue) -> list[IngestJob]:
    jobs = []
    while (job := await queue.claim("worker", LEASE_S)) is not None:
        jobs.append(job)
    return jobs


@pytest.mark.parametrize("behind", ["the same workspace", "another workspace"])
async def test_a_page_does_not_wait_for_large_files(
    queue: IngestQueue,
    queued: Queued,
    workspace: WorkspaceId,
    other_workspace: WorkspaceId,
    behind: str,
) -> None:
    await queued(*[20 * MIB] * 100)
    for _ in range(3):
        await claimed(queue)
    (page,) = await queued(
        20 * KIB, workspace=workspace if behind == "the same workspace" else other_workspace
    )
    assert page in [(await claimed(queue)).file_id for _ in range(2)]


async def test_large_files_do_not_wait_for_ever_either(queue: IngestQueue, queued: Queued) -> None:
    (large,) = await queued(5 * MIB)
    await queued(*[20 * KIB] * 100)
    turn = [job.file_id for job in await claim_all(queue)].index(large)
    assert 50 < turn <= 5 * MIB / (20 * KIB + JOB_BYTES) + 2


@given(
    ours=st.lists(st.integers(0, 400 * KIB), min_size=5, max_size=25),
    theirs=st.lists(st.integers(0, 400 * KIB), min_size=5, max_size=25),
    head_start=st.integers(0, 4),
)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_workspaces_share_by_bytes(
    queue: IngestQueue,
    queued: Queued,
    workspace: WorkspaceId,
    other_workspace: WorkspaceId,
    ours: list[int],
    theirs: list[int],
    head_start: int,
) -> None:
    """While both have files waiting, neither gets ahead by more than a job in each size class."""
    files = {workspace: len(await queued(*ours))}
    for _ in range(head_start):
        files[workspace] -= 1
        await claimed(queue)
    files[other_workspace] = len(await queued(*theirs, workspace=other_workspace))
    done = {workspace: 0, other_workspace: 0}
    longest = 2 * (400 * KIB + JOB_BYTES)
    while all(files.values()):
        job = await claimed(queue)
        files[job.workspace_id] -= 1
        done[job.workspace_id] += job.bytes + JOB_BYTES
        assert abs(done[workspace] - done[other_workspace]) <= longest
    await claim_all(queue)


async def test_files_attached_together_come_smallest_class_first_then_in_order(
    queue: IngestQueue, queued: Queued
) -> None:
    ids = await queued(3 * MIB, 10, MIB, 20, 4 * MIB, 2 * MIB)
    assert [job.file_id for job in await claim_all(queue)] == [ids[n] for n in (1, 3, 2, 5, 0, 4)]


async def test_a_job_given_back_keeps_its_turn(queue: IngestQueue, queued: Queued) -> None:
    first, second = await queued(10, 10)
    job = await claimed(queue)
    assert job.file_id == first
    await queue.release(job.lease)
    assert [job.file_id for job in await claim_all(queue)] == [first, second]


async def test_waiting_jobs_are_counted_up_to_a_limit(queue: IngestQueue, queued: Queued) -> None:
    await queued(*[10] * 5)
    assert [await queue.waiting(limit) for limit in (3, 5, 100)] == [3, 5, 5]
    await claimed(queue)
    assert await queue.waiting(100) == 4


# ── PostgreSQL alone ──


@given(workers=st.integers(2, 4), jobs=st.integers(1, 25), pauses=st.randoms(use_true_random=False))
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_racing_workers_claim_every_job_once(
    database: Database, workspace: WorkspaceId, workers: int, jobs: int, pauses: Random
) -> None:
    catalog = PostgresCatalog(database)
    queues = [PostgresIngestQueue(database, **LIMITS) for _ in range(workers)]
    ids = [f"file-{secrets.token_hex(6)}" for _ in range(jobs)]
    for file_id in ids:
        await catalog.add_file(StoredFile(file_id, workspace, "a.txt", "assistants", 10, "00", 0))
    store = VectorStore(f"vs_{secrets.token_hex(6)}", workspace, "", None, None, Encoder("hash", 384), 0, 0)
    await catalog.add_vector_store(store, ids, ChunkingStrategy(512, 50))
    claims: list[str] = []

    async def work(queue: IngestQueue, name: str) -> None:
        while await queue.waiting(1):
            if (job := await queue.claim(name, LEASE_S)) is not None:
                claims.append(job.file_id)
                await asyncio.sleep(pauses.random() / 500)
                await queue.complete(job.lease, PUBLISHED)

    async with asyncio.timeout(60):
        await asyncio.gather(*(work(queue, f"worker {n}") for n, queue in enumerate(queues)))
    assert sorted(claims) == sorted(ids)
    for queue in queues:
        await queue.close()


async def test_after_an_outage_the_owners_of_leases_have_time_to_come_back(
    database: Database, database_url: str, workspace: WorkspaceId
) -> None:
    """A queue that was cut off takes nothing from those who were cut off as well; then all is as before."""
    file = StoredFile("file-cut", workspace, "a.txt", "assistants", 10, "00", 0)
    await PostgresCatalog(database).add_file(file)
    store = VectorStore(f"vs_{secrets.token_hex(6)}", workspace, "", None, None, Encoder("hash", 384), 0, 0)
    await PostgresCatalog(database).add_vector_store(store, [file.id], ChunkingStrategy(512, 50))
    with background() as loop, tcp_proxy(socket_of(database_url), loop) as network:
        cut_off = await Database.open(at_port(database_url, network.port), pool_size=2)
        queue = PostgresIngestQueue(cut_off, **LIMITS)

        async def outage(lease_s: float) -> None:
            network.cut()
            with pytest.raises(DatabaseUnavailable):
                await queue.claim("another", lease_s)
            async with database.transaction() as connection:
                await connection.execute(AGE_JOBS, {"seconds": LEASE_S + 1, "workspace": workspace})
            network.restore()

        job = await claimed(queue)
        await outage(LEASE_S)
        assert await queue.claim("another", LEASE_S) is None
        await queue.renew(job.lease, LEASE_S)
        await outage(0.1)
        await asyncio.sleep(0.2)
        assert (await claimed(queue)).lease.job_id == job.lease.job_id
        await cut_off.close()


def socket_of(url: str) -> Path:
    place = parse_qs(urlsplit(url).query)
    return Path(place["host"][0]) / f".s.PGSQL.{place['port'][0]}"


def at_port(url: str, port: int) -> str:
    """The same database where a port of this machine leads to it."""
    parts = urlsplit(url)
    return urlunsplit(
        (parts.scheme, f"{parts.netloc.rpartition('@')[0]}@127.0.0.1:{port}", parts.path, "", "")
    )


MANY_JOBS = text("""
    with file as (
        insert into knowledge_files (workspace_id, id, filename, purpose, bytes, sha256)
        select :workspace, 'file-' || n, 'a.txt', 'assistants', 9, '00' from generate_series(1, :jobs) n
        returning file_no, id
    ), store as (
        insert into vector_stores (workspace_id, id, encoder, dimension)
        values (:workspace, 'vs_many', 'hash', 384) returning store_no
    ), member as (
        insert into vector_store_files (workspace_id, vector_store_id, file_id, store_no, file_no,
                                        max_chunk_size_tokens, chunk_overlap_tokens)
        select :workspace, 'vs_many', id, store_no, file_no, 512, 50 from file, store
        returning file_id, file_no
    )
    insert into ingest_jobs (workspace_id, vector_store_id, file_id, turn)
    select :workspace, 'vs_many', file_id, file_no from member
""")


@pytest.mark.parametrize("statistics", ["none", "of an empty table", "of an ended queue"])
async def test_claiming_walks_the_index_of_turns_whatever_the_statistics_say(
    database: Database, workspace: WorkspaceId, owner_url: str, statistics: str
) -> None:
    owner = await asyncpg.connect(owner_url)
    many = {"workspace": workspace, "jobs": 3000}
    try:
        if statistics == "of an empty table":
            await owner.execute("analyze sherlock.ingest_jobs")
        async with database.transaction() as connection:
            if statistics == "of an ended queue":
                await connection.execute(MANY_JOBS, many)
                await connection.execute(text("update ingest_jobs set state = 'done'"))
                await connection.execute(text("analyze ingest_jobs"))
                await connection.execute(text("update ingest_jobs set state = 'waiting'"))
            else:
                await connection.execute(MANY_JOBS, many)
            await connection.execute(KEEP_TO_THE_INDEX)
            explained = text(f"explain (analyze, format json) {CLAIM.text}")
            plan = await connection.scalar(explained, {"owner": "worker", "lease_s": LEASE_S})
            await connection.rollback()
    finally:
        await owner.close()
    read = {node["Index Name"]: node for node in nodes(plan[0]["Plan"]) if "Index Name" in node}
    assert read["ingest_jobs_turn"]["Actual Rows"] == 1, "it stops at the first row"
    assert {node["Node Type"] for node in nodes(plan[0]["Plan"])}.isdisjoint({"Seq Scan", "Sort"})


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", []):
        yield from nodes(part)
