"""Ingest jobs, for whoever runs the service: seen, cancelled, tried again."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from sherlock.rag.domain.errors import Conflict, NotFound
from sherlock.rag.domain.models import JobRecord, JobState, WorkspaceId
from sherlock.rag.domain.ports import Catalog, JobLog

_PAGE = 500


@dataclass(frozen=True, slots=True)
class Jobs:
    log: JobLog
    catalog: Catalog

    async def list(
        self, state: JobState | None = None, workspace_id: WorkspaceId | None = None, limit: int = 50
    ) -> Sequence[JobRecord]:
        """The newest first, of all workspaces unless one is named."""
        return await self.log.list(state, workspace_id, limit)

    async def get(self, job_id: int) -> JobRecord:
        """Raises `NotFound`."""
        return await self.log.get(job_id)

    async def retry(self, job_id: int) -> None:
        """Queue the file of a failed or cancelled job anew, with the chunk sizes it had.

        It gets a job of a new number. Raises `NotFound`, and `Conflict` when the job has not failed.
        """
        job = await self.log.get(job_id)
        if job.state not in ("failed", "cancelled"):
            raise Conflict(f"The job is {job.state}; only a failed or cancelled one can be tried again.")
        await self._attach_again(job)

    async def retry_failed(self, workspace_id: WorkspaceId | None = None) -> int:
        """Queue every failed file anew; returns how many there were."""
        retried = 0
        async for job in self._failed(workspace_id):
            try:
                await self._attach_again(job)
            except NotFound:  # detached meanwhile
                continue
            retried += 1
        return retried

    async def cancel(self, job_id: int) -> None:
        """End the file's ingest. Raises `NotFound`, and `Conflict` when the job has ended."""
        job = await self.log.get(job_id)
        if job.state not in ("waiting", "running"):
            raise Conflict(f"The job is {job.state}; there is nothing to cancel.")
        await self.catalog.cancel_file(job.workspace_id, job.vector_store_id, job.file_id)

    async def _attach_again(self, job: JobRecord) -> None:
        key = (job.workspace_id, job.vector_store_id, job.file_id)
        member = await self.catalog.get_membership(*key)
        await self.catalog.attach_file(*key, attributes=None, chunking=member.chunking, chunking_given=False)

    async def _failed(self, workspace_id: WorkspaceId | None) -> AsyncIterator[JobRecord]:
        """Older and older ones, so that those which fail again meanwhile do not come twice."""
        before = None
        while page := await self.log.list("failed", workspace_id, _PAGE, before):
            for job in page:
                yield job
            before = page[-1].id
