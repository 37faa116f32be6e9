"""File batches and the job log in memory, over the state of the other fakes."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tests.fakes import InMemoryCatalog, MembershipKey, MemoryJob, page_of

from sherlock.rag.domain.errors import NotFound
from sherlock.rag.domain.models import (
    Attachment,
    FileBatch,
    FileCounts,
    JobRecord,
    JobState,
    Page,
    PageRequest,
    Status,
    VectorStoreFile,
    WorkspaceId,
)


@dataclass
class MemoryBatch:
    value: FileBatch
    files: list[MembershipKey]
    ended: dict[MembershipKey, Status] = field(default_factory=dict)
    """How files had ended that are attached anew."""


class InMemoryFileBatches:
    """`FileBatchCatalog` beside an `InMemoryCatalog`."""

    def __init__(self, catalog: InMemoryCatalog) -> None:
        self.catalog = catalog
        self.batches: dict[tuple[WorkspaceId, str, str], MemoryBatch] = {}
        catalog.state.on_restart.append(self._remember)

    async def add(self, batch: FileBatch, attachments: Sequence[Attachment]) -> FileBatch:
        self.catalog.attach(batch.workspace_id, batch.vector_store_id, attachments)
        files = [(batch.workspace_id, batch.vector_store_id, one.file_id) for one in attachments]
        self.batches[batch.workspace_id, batch.vector_store_id, batch.id] = MemoryBatch(batch, files)
        return await self.get(batch.workspace_id, batch.vector_store_id, batch.id)

    async def get(self, workspace_id: WorkspaceId, vector_store_id: str, batch_id: str) -> FileBatch:
        batch = self._batch(workspace_id, vector_store_id, batch_id)
        statuses = [self._status(batch, key) for key in self._files(batch)]
        counts = FileCounts(
            in_progress=statuses.count("in_progress"),
            completed=statuses.count("completed"),
            failed=statuses.count("failed"),
            cancelled=statuses.count("cancelled"),
        )
        return replace(batch.value, file_counts=counts)

    async def cancel(self, workspace_id: WorkspaceId, vector_store_id: str, batch_id: str) -> FileBatch:
        batch = self._batch(workspace_id, vector_store_id, batch_id)
        going_on = [key for key in self._files(batch) if self._status(batch, key) == "in_progress"]
        for key in going_on:
            self.catalog.state.cancel(key)
        if going_on:
            batch.value = replace(batch.value, cancelled=True)
        return await self.get(workspace_id, vector_store_id, batch_id)

    async def list_files(
        self,
        workspace_id: WorkspaceId,
        vector_store_id: str,
        batch_id: str,
        page: PageRequest,
        status: Status | None = None,
    ) -> Page[VectorStoreFile]:
        batch = self._batch(workspace_id, vector_store_id, batch_id)
        memberships, came = self.catalog.state.memberships, list(self.catalog.state.files)
        places = {
            key[2]: (memberships[key].attached_at, came.index((key[0], key[2]))) for key in self._files(batch)
        }
        members = [memberships[key].value for key in self._files(batch)]
        shown = [member for member in members if status in (None, member.status)]
        return page_of(shown, lambda member: places[member.file_id], places, page, "VectorStoreFile")

    def _batch(self, workspace_id: WorkspaceId, vector_store_id: str, batch_id: str) -> MemoryBatch:
        key = (workspace_id, vector_store_id, batch_id)
        if (workspace_id, vector_store_id) not in self.catalog.state.stores or key not in self.batches:
            raise NotFound("VectorStoreFileBatch", batch_id)
        return self.batches[key]

    def _files(self, batch: MemoryBatch) -> list[MembershipKey]:
        batch.files = [key for key in batch.files if key in self.catalog.state.memberships]
        return batch.files

    def _status(self, batch: MemoryBatch, key: MembershipKey) -> Status:
        return batch.ended.get(key) or self.catalog.state.memberships[key].value.status

    def _remember(self, key: MembershipKey, status: Status) -> None:
        for batch in self.batches.values():
            if key in batch.files:
                batch.ended.setdefault(key, status)


class InMemoryJobLog:
    """`JobLog` over the state of an `InMemoryCatalog`."""

    def __init__(self, catalog: InMemoryCatalog) -> None:
        self.state = catalog.state

    async def list(
        self, state: JobState | None, workspace_id: WorkspaceId | None, limit: int, before: int | None = None
    ) -> Sequence[JobRecord]:
        newest_first = sorted(self.state.all_jobs.values(), key=lambda job: -job.id)
        return [
            self._record(job)
            for job in newest_first
            if state in (None, job.state)
            and workspace_id in (None, job.membership[0])
            and (before is None or job.id < before)
        ][:limit]

    async def get(self, job_id: int) -> JobRecord:
        if job_id not in self.state.all_jobs:
            raise NotFound("IngestJob", str(job_id))
        return self._record(self.state.all_jobs[job_id])

    def _record(self, job: MemoryJob) -> JobRecord:
        workspace_id, vector_store_id, file_id = job.membership
        return JobRecord(
            id=job.id,
            workspace_id=workspace_id,
            vector_store_id=vector_store_id,
            file_id=file_id,
            filename=self.state.files[workspace_id, file_id].filename,
            state=job.state,
            attempt=job.attempt,
            failures=job.failures,
            created_at=job.created_at,
            run_after=int(time.time() + job.run_after - time.monotonic()),
            finished_at=job.finished_at,
            reason=job.reason,
            notes=self.state.memberships[job.membership].value.notes,
        )
