"""The ingest worker: claim a job, hold its lease, run it, settle it.

A job is settled in one of four ways: completed; failed for good (the document is at fault); given back with a
delay (something was down, which does not count against it, or we are at fault, which does); released unharmed
(this worker is stopping). A worker that is killed settles nothing: its lease runs out, which counts, and
another claims the job, going on from the chunks that were staged. One that was only cut off, or stood still,
vouches for itself when it is back, and the count is taken back.

A job that was cancelled, or whose file is being deleted, is let go at once. Its waiting ends there and then:
for the file store, for a statement (which is cancelled on the server too), for its place at the encoder; the
process that reads the file is killed. What runs in a thread cannot be stopped (the encoder's current batch):
it runs out beside the next job, can write nothing, and there is at most one such remnant a slot.
"""

import asyncio
import logging
import os
import secrets
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from random import Random
from typing import Any

from opentelemetry.trace import SpanKind

from sherlock import observability, telemetry, wiring
from sherlock.config import Settings
from sherlock.process import cancelled, stop_on_signals, until, watched_parent
from sherlock.rag import instruments, parsers, tracing
from sherlock.rag.application.housekeeping import Housekeeper
from sherlock.rag.application.ingest import Ingestor, retry_delay_s
from sherlock.rag.application.reconcile import Reconciler
from sherlock.rag.application.spans import content, span
from sherlock.rag.domain.errors import IngestError, LeaseLost, Unavailable
from sherlock.rag.domain.messages import IngestStage
from sherlock.rag.domain.models import IngestJob, LastError, Lease, Orphans
from sherlock.rag.domain.ports import IngestQueue
from sherlock.rag.working_folders import remove_abandoned
from sherlock.sampling import sampled

log = logging.getLogger(__name__)

POLL_S = 5.0
"""Longest sleep without a wake-up: finds jobs whose lease ran out, and those whose NOTIFY was lost."""
OUTAGE_PAUSE_S = 1.0
RUN_OUT_S = 0.5
"""How long a slot waits for work that was cancelled to end, before it takes the next job beside it."""
HOUSEKEEPING_S = 15.0
"""Between two rounds, give or take half: workers that were started together soon take turns."""

RECONCILING_S = 600.0
"""How often a worker asks whether it is to compare the file store with the records, and what was found."""


def owner_name() -> str:
    """Tells this process from every other, on any machine."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"


@dataclass(frozen=True, slots=True)
class Settlement:
    """How a job ends here: what is told to the queue, and what is said in the log once it is told."""

    said: str
    tell: Callable[[], Awaitable[bool | None]] | None = None
    """`None`: the job is not ours any more."""
    stage: IngestStage = "postponed"
    chunks: int = 0
    level: int = logging.INFO
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Worker:
    queue: IngestQueue
    ingestor: Ingestor
    slots: int
    """Jobs run side by side."""
    lease_s: float
    owner: str = field(default_factory=owner_name)
    """Each slot adds its number: it holds one lease at a time."""
    random: Random = field(default_factory=Random)
    _remnants: "set[asyncio.Future[Any]]" = field(default_factory=set, init=False)
    """What runs out of jobs that were let go."""

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop` is set; then give running jobs back and return."""
        log.info("worker started", extra={"owner": self.owner, "slots": self.slots})
        async with asyncio.TaskGroup() as group:
            for slot in range(self.slots):
                group.create_task(self._work(f"{self.owner}/{slot}", stop))
        if self._remnants:
            await asyncio.wait(self._remnants)
        log.info("worker stopped", extra={"owner": self.owner})

    async def _work(self, owner: str, stop: asyncio.Event) -> None:
        in_doubt = False  # whether the queue takes us for dead, or for the holder of what we do not run
        while not stop.is_set():
            try:
                if in_doubt:
                    await self.queue.vouch(owner)
                    in_doubt = False
                job = await self.queue.claim(owner, self.lease_s)
                if job is None:
                    await until(stop, self.queue.wait_for_work(POLL_S))
                else:
                    in_doubt = await self._run(job, stop) == "lost"
            except Unavailable as error:
                # A claim may have come through without its answer, and a job's end may not be told.
                in_doubt = True
                log.warning("ingest queue unavailable", extra={"reason": error.message})
                await until(stop, asyncio.sleep(OUTAGE_PAUSE_S))
            except Exception as error:
                # A fault of ours must not end the worker: others of its jobs may be sound.
                log.error("the worker failed and goes on", extra={"error": type(error).__name__})
                await until(stop, asyncio.sleep(OUTAGE_PAUSE_S))

    async def _run(self, job: IngestJob, stop: asyncio.Event) -> str:
        """Run one job for the request it came from, then settle it; the outcome in a word.

        Raises `Unavailable` when it could not be settled.
        """
        began, extension = time.perf_counter(), parsers.known_extension(job.filename)
        outcome = "unsettled"
        try:
            with (
                tracing.resumed(job.correlation),
                span(
                    "ingest.job",
                    {
                        "extension": extension,
                        "attempt": job.lease.attempt,
                        "request_id": job.correlation.request_id,
                    },
                    kind=SpanKind.CONSUMER,
                ) as opened,
            ):
                content(opened, filename=lambda: job.filename)
                outcome = await self._settle(job, await self._ingest(job, stop))
                opened.set_attribute("outcome", outcome)
            return outcome
        finally:
            took = time.perf_counter() - began
            instruments.ingest_latency.record(took, {"extension": extension, "outcome": outcome})

    async def _settle(self, job: IngestJob, settlement: Settlement) -> str:
        """Tell the queue how the job ended, and everybody else; returns it in a word."""
        context = {"job": job.lease.job_id, "attempt": job.lease.attempt} | settlement.details
        try:
            goes_on = await settlement.tell() if settlement.tell is not None else None
        except LeaseLost:
            log.info("job lost before it was settled", extra=context)
            return "lost"
        given_up = goes_on is False
        log.log(settlement.level, "job failed" if given_up else settlement.said, extra=context)
        if settlement.tell is None:
            return "lost"
        stage = "failed" if given_up else settlement.stage
        await self.ingestor.progress.report(job, stage, settlement.chunks)
        return stage

    async def _ingest(self, job: IngestJob, stop: asyncio.Event) -> Settlement:
        """Ingest until it ends, the job is to be let go or `stop` is set; says how it is to be settled."""
        running = asyncio.ensure_future(self.ingestor.run(job))
        heartbeat = asyncio.ensure_future(self._hold(job.lease))
        watching = asyncio.ensure_future(self.queue.watch(job.lease))
        stopping = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait({running, heartbeat, watching, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                published = running.result()
                return Settlement(
                    "job completed",
                    partial(self.queue.complete, job.lease, published),
                    stage="completed",
                    chunks=published.chunk_count,
                    details={"chunks": published.chunk_count},
                )
            if heartbeat.done():
                heartbeat.result()  # raises whatever ended it
            if watching.done():
                watching.result()
                raise LeaseLost
            await cancelled(running)
            return Settlement("job released", partial(self.queue.release, job.lease))
        except LeaseLost:
            await self._let_go(running)
            return Settlement("job lost: taken over, cancelled or deleted")
        except IngestError as error:
            told = LastError(error.code, error.message)
            return Settlement(
                "job failed",
                partial(self.queue.fail, job.lease, told),
                stage="failed",
                details={"code": error.code},
            )
        except Unavailable as error:
            return self._given_back(job.lease, error.message, {"reason": error.message}, counted=False)
        except Exception as error:
            # A fault of ours: its text may hold anything, so only its kind is kept.
            message = "The file could not be processed because of an internal error."
            return self._given_back(job.lease, message, {"error": type(error).__name__}, counted=True)
        finally:
            await cancelled(heartbeat, watching, stopping)
            if running not in self._remnants:
                await cancelled(running)

    async def _let_go(self, running: "asyncio.Future[Any]") -> None:
        """Cancel, and wait a little; what goes on in a thread becomes a remnant."""
        running.cancel()
        await asyncio.wait({running}, timeout=RUN_OUT_S)
        while not running.done() and len(self._remnants) >= self.slots:
            await asyncio.wait({running, *self._remnants}, return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            self._remnants.add(running)
            running.add_done_callback(self._forget)

    def _forget(self, remnant: "asyncio.Future[Any]") -> None:
        self._remnants.discard(remnant)
        if not remnant.cancelled():
            remnant.exception()  # looked at, so that asyncio does not report it as lost

    async def _hold(self, lease: Lease) -> None:
        """Renew the lease at every third of its length, and soon after an outage. Raises `LeaseLost`."""
        pause_s = every_s = self.lease_s / 3
        while True:
            await asyncio.sleep(pause_s)
            try:
                await self.queue.renew(lease, self.lease_s)
                pause_s = every_s
            except Unavailable:
                # One that ran out is renewed too, unless the job was taken: then the fence stops our writes.
                pause_s = min(every_s, OUTAGE_PAUSE_S)

    def _given_back(
        self, lease: Lease, message: str, details: dict[str, Any], *, counted: bool
    ) -> Settlement:
        delay_s = retry_delay_s(lease.attempt, self.random)
        told = LastError("server_error", message)
        return Settlement(
            "job given back",
            partial(self.queue.retry, lease, delay_s, told, counted=counted),
            level=logging.ERROR if counted else logging.WARNING,
            details=details,
        )


async def keep_house(
    housekeeper: Housekeeper, stop: asyncio.Event, *, every_s: float = HOUSEKEEPING_S
) -> None:
    """Rounds of housekeeping until `stop` is set, which may interrupt one anywhere."""
    random = Random()  # noqa: S311 - spreads load, hides nothing

    async def rounds() -> None:
        while True:
            more = await housekeeper.run_once()
            await asyncio.sleep(0 if more else random.uniform(0.5, 1.5) * every_s)

    await until(stop, rounds())


async def keep_reconciled(
    reconciler: Reconciler, stop: asyncio.Event, *, every_s: float = RECONCILING_S
) -> None:
    """Ask again and again whether the file store and the records are to be compared, until `stop` is set."""

    async def rounds() -> None:
        while True:
            try:
                found = await reconciler.run_if_due()
            except Exception as error:
                log.warning("reconciliation failed", extra={"error": type(error).__name__})
            else:
                if found is not None and found != Orphans(0, 0):
                    log.warning("the file store and the records differ", extra=asdict(found))
            await asyncio.sleep(every_s)

    await until(stop, rounds())


async def serve(settings: Settings, *, parent: int = 0) -> None:
    """The worker process; with `parent`, it stops when that process is no longer its parent."""
    observability.configure(settings.log_level)
    if removed := remove_abandoned():
        log.info("removed what killed workers left behind", extra={"folders": removed})

    async def work(stop: asyncio.Event) -> None:
        async with (
            watched_parent(parent, stop),
            wiring.open_services(settings, warm_up={"embedder"}) as services,
            sampled(settings, services.require_rag().activity),
        ):
            rag = services.require_rag()
            if services.broker is not None:
                services.broker.start()
            worker = Worker(rag.queue, rag.ingestor, slots=settings.workers, lease_s=settings.job_lease_s)
            async with asyncio.TaskGroup() as group:
                group.create_task(keep_house(rag.housekeeper, stop))
                group.create_task(keep_reconciled(rag.reconciler, stop))
                group.create_task(worker.run(stop))

    with telemetry.exported(settings, process="worker"):
        await stop_on_signals(work)
