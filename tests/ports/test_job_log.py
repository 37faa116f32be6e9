"""What every `JobLog` does, in memory and in PostgreSQL; and the use cases on top of it."""

import time
from dataclasses import dataclass

import pytest
from tests.fakes import InMemoryCatalog, InMemoryIngestQueue
from tests.fakes_batches import InMemoryJobLog

from sherlock.rag.adapters.postgres import Database
from sherlock.rag.adapters.postgres_catalog import PostgresCatalog
from sherlock.rag.adapters.postgres_job_log import PostgresJobLog
from sherlock.rag.adapters.postgres_queue import PostgresIngestQueue
from sherlock.rag.application.jobs import Jobs
from sherlock.rag.domain.errors import Conflict, NotFound
from sherlock.rag.domain.models import (
    ChunkingStrategy,
    Encoder,
    LastError,
    Published,
    ReadingNotes,
    StoredFile,
    VectorStore,
    WorkspaceId,
)
from sherlock.rag.domain.ports import Catalog, IngestQueue, JobLog

CHUNKING = ChunkingStrategy(700, 70)
STORE = "vs_jobs"
ERROR = LastError("invalid_file", "There is no text in it.")


@dataclass
class Parts:
    catalog: Catalog
    queue: IngestQueue
    log: JobLog

    @property
    def jobs(self) -> Jobs:
        return Jobs(self.log, self.catalog)

    async def attach(self, workspace: WorkspaceId, *files: str) -> None:
        for file in files:
            await self.catalog.add_file(StoredFile(file, workspace, f"{file}.txt", "assistants", 9, "0", 0))
        store = VectorStore(STORE, workspace, "", None, None, Encoder("hash", 384), 0, 0)
        await self.catalog.add_vector_store(store, files, CHUNKING)


@pytest.fixture(params=["memory", "postgres"])
def parts(request: pytest.FixtureRequest, database: Database) -> Parts:
    if request.param == "memory":
        catalog = InMemoryCatalog()
        return Parts(catalog, InMemoryIngestQueue(catalog.state), InMemoryJobLog(catalog))
    return Parts(PostgresCatalog(database), PostgresIngestQueue(database), PostgresJobLog(database))


async def test_jobs_are_listed_newest_first_by_state_and_workspace(
    parts: Parts, workspace: WorkspaceId, other_workspace: WorkspaceId
) -> None:
    await parts.attach(workspace, "file-a", "file-b", "file-c")
    await parts.attach(other_workspace, "file-d")
    failed = await parts.queue.claim("worker", 30)
    assert failed is not None
    await parts.queue.fail(failed.lease, ERROR)

    everything = await parts.log.list(None, None, 10)
    assert [job.file_id for job in everything] == ["file-d", "file-c", "file-b", "file-a"]
    assert [job.file_id for job in await parts.log.list(None, None, 2, everything[1].id)] == [
        "file-b",
        "file-a",
    ]
    assert [job.file_id for job in await parts.log.list("waiting", workspace, 10)] == ["file-c", "file-b"]
    assert [job.workspace_id for job in await parts.log.list(None, other_workspace, 10)] == [other_workspace]
    assert await parts.log.list(None, WorkspaceId("nul\0"), 10) == []
    (job,) = await parts.log.list("failed", None, 10)
    assert (job.filename, job.attempt, job.failures, job.reason) == ("file-a.txt", 1, 1, ERROR.message)
    assert job.finished_at is not None
    assert abs(job.created_at - time.time()) < 60
    assert await parts.log.get(job.id) == job


@pytest.mark.parametrize("id", [0, -1, 2**40, 2**70, -(2**70)])
async def test_an_unknown_job_is_not_found(parts: Parts, id: int) -> None:
    for call in (parts.jobs.get(id), parts.jobs.retry(id), parts.jobs.cancel(id)):
        with pytest.raises(NotFound):
            await call


async def test_a_failed_job_is_tried_again_with_the_sizes_it_had(
    parts: Parts, workspace: WorkspaceId
) -> None:
    await parts.attach(workspace, "file-a")
    first = await parts.queue.claim("worker", 30)
    assert first is not None
    with pytest.raises(Conflict, match="running"):
        await parts.jobs.retry(first.lease.job_id)
    await parts.queue.fail(first.lease, ERROR)
    await parts.jobs.retry(first.lease.job_id)
    again = await parts.queue.claim("worker", 30)
    assert again is not None
    assert (again.file_id, again.chunking) == ("file-a", CHUNKING)
    assert (await parts.log.get(again.lease.job_id)).notes is None
    notes = ReadingNotes(page_count=3, skipped_pages="2")
    await parts.queue.complete(again.lease, Published(1, 1, 1, notes))
    assert (await parts.log.get(again.lease.job_id)).notes == notes
    with pytest.raises(Conflict, match="done"):
        await parts.jobs.retry(again.lease.job_id)


async def test_all_failed_jobs_are_tried_again(
    parts: Parts, workspace: WorkspaceId, other_workspace: WorkspaceId
) -> None:
    await parts.attach(workspace, "file-a", "file-b")
    await parts.attach(other_workspace, "file-c")
    while job := await parts.queue.claim("worker", 30):
        await parts.queue.fail(job.lease, ERROR)
    assert await parts.jobs.retry_failed(workspace) == 2
    assert {job.file_id for job in await parts.jobs.list("waiting")} == {"file-a", "file-b"}
    assert await parts.jobs.retry_failed() == 1
    assert await parts.jobs.retry_failed() == 0
    assert await parts.queue.waiting(10) == 3


async def test_a_job_is_cancelled_once(parts: Parts, workspace: WorkspaceId) -> None:
    await parts.attach(workspace, "file-a", "file-b")
    running = await parts.queue.claim("worker", 30)
    assert running is not None
    for job in await parts.jobs.list():
        await parts.jobs.cancel(job.id)
        with pytest.raises(Conflict, match="cancelled"):
            await parts.jobs.cancel(job.id)
        cancelled = await parts.jobs.get(job.id)
        assert (cancelled.state, cancelled.finished_at is None) == ("cancelled", False)
    assert await parts.queue.depth() == 0
    await parts.jobs.retry((await parts.jobs.list())[0].id)
    assert await parts.queue.depth() == 1
