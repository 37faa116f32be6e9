"""The ingest worker: claim a job, hold its lease, run it, settle it.

A job is settled in one of four ways: completed; failed for good (the document is at fault); given back with a
delay (something was down); released unharmed (this worker is stopping). A worker that is killed settles
nothing: its lease runs out and another claims the job, going on from the chunks that were staged.
"""

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import Awaitable
from dataclasses import dataclass, field
from random import Random

from sherlock import observability, wiring
from sherlock.config import Settings
from sherlock.process import cancelled, stop_on_signals, until, watched_parent
from sherlock.rag.application.ingest import Ingestor, retry_delay_s
from sherlock.rag.domain.errors import IngestError, LeaseLost, SherlockError, Unavailable
from sherlock.rag.domain.models import IngestJob, LastError
from sherlock.rag.domain.ports import IngestQueue

log = logging.getLogger(__name__)

POLL_S = 5.0
"""Longest sleep without a wake-up: finds jobs whose lease ran out, and those whose NOTIFY was lost."""
OUTAGE_PAUSE_S = 1.0


def owner_name() -> str:
    """Tells this process from every other, on any machine."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"


@dataclass(frozen=True, slots=True)
class Worker:
    queue: IngestQueue
    ingestor: Ingestor
    slots: int
    """Jobs run side by side."""
    lease_s: float
    owner: str = field(default_factory=owner_name)
    random: Random = field(default_factory=Random)

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop` is set; then give running jobs back and return."""
        log.info("worker started", extra={"owner": self.owner, "slots": self.slots})
        async with asyncio.TaskGroup() as group:
            for _ in range(self.slots):
                group.create_task(self._work(stop))
        log.info("worker stopped", extra={"owner": self.owner})

    async def _work(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            try:
                job = await self.queue.claim(self.owner, self.lease_s)
                if job is None:
                    await until(stop, self.queue.wait_for_work(POLL_S))
                else:
                    await self._run(job, stop)
            except Unavailable as error:
                log.warning("ingest queue unavailable", extra={"reason": error.message})
                await until(stop, asyncio.sleep(OUTAGE_PAUSE_S))

    async def _run(self, job: IngestJob, stop: asyncio.Event) -> None:
        """Run one job to its settlement. Raises `Unavailable` when it could not be settled."""
        running = asyncio.ensure_future(self.ingestor.run(job))
        heartbeat = asyncio.ensure_future(self._hold(job))
        stopping = asyncio.ensure_future(stop.wait())
        context = {"job": job.lease.job_id, "attempt": job.lease.attempt}
        try:
            await asyncio.wait({running, heartbeat, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                await self.queue.complete(job.lease, running.result())
                log.info("job completed", extra=context | {"chunks": running.result().chunk_count})
            elif heartbeat.done():
                raise LeaseLost
            else:
                await cancelled(running)
                await self.queue.release(job.lease)
                log.info("job released", extra=context)
        except LeaseLost:
            log.info("job lost: taken over, cancelled or deleted", extra=context)
        except IngestError as error:
            await self._settle(job, self.queue.fail(job.lease, LastError(error.code, error.message)))
            log.info("job failed", extra=context | {"code": error.code})
        except SherlockError as error:
            await self._give_back(job, error.message)
            log.warning("job given back", extra=context | {"reason": error.message})
        except Exception as error:
            # A fault of ours: its text may hold anything, so only its kind is kept.
            await self._give_back(job, "The file could not be processed because of an internal error.")
            log.error(
                "job given back after an internal error", extra=context | {"error": type(error).__name__}
            )
        finally:
            for task in (running, heartbeat, stopping):
                await cancelled(task)

    async def _hold(self, job: IngestJob) -> None:
        """Renew the lease three times as often as it runs out; returns when it is lost."""
        while True:
            await asyncio.sleep(self.lease_s / 3)
            try:
                await self.queue.renew(job.lease, self.lease_s)
            except LeaseLost:
                return
            except Unavailable:
                continue  # the lease may outlive a short outage; if not, the fence stops our writes

    async def _give_back(self, job: IngestJob, reason: str) -> None:
        delay_s = retry_delay_s(job.lease.attempt, self.random)
        await self._settle(job, self.queue.retry(job.lease, delay_s, LastError("server_error", reason)))

    async def _settle(self, job: IngestJob, settlement: Awaitable[None]) -> None:
        try:
            await settlement
        except LeaseLost:
            log.info("job lost before it was settled", extra={"job": job.lease.job_id})


async def serve(settings: Settings, *, parent: int = 0) -> None:
    """The worker process; with `parent`, it stops when that process is no longer its parent."""
    observability.configure(settings.log_level)

    async def work(stop: asyncio.Event) -> None:
        async with (
            watched_parent(parent, stop),
            wiring.open_services(settings, warm_up={"embedder"}) as services,
        ):
            rag = services.require_rag()
            worker = Worker(rag.queue, rag.ingestor, slots=settings.workers, lease_s=settings.job_lease_s)
            await worker.run(stop)

    await stop_on_signals(work)
