"""What is measured of no request, but looked at from time to time: the event loop and the queue."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sherlock.config import Settings
from sherlock.process import cancelled
from sherlock.rag import instruments
from sherlock.rag.application.activity import Activity

LAG_EVERY_S = 0.5
QUEUE_EVERY_S = 10.0

loop_lag = instruments.timer(
    "sherlock.process.loop_lag",
    "how much later than asked the event loop woke up: as long every request waited",
)


@asynccontextmanager
async def sampled(settings: Settings, activity: Activity | None = None) -> AsyncIterator[None]:
    """Measure until the block ends; nothing where telemetry goes nowhere."""
    if not settings.otel_exporter_otlp_endpoint:
        yield
        return
    sampling = [asyncio.create_task(sample_loop())]
    if activity is not None:
        sampling.append(asyncio.create_task(sample_queue(activity)))
    try:
        yield
    finally:
        await cancelled(*sampling)


async def sample_loop() -> None:
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + LAG_EVERY_S
        await asyncio.sleep(LAG_EVERY_S)
        loop_lag.record(max(0.0, loop.time() - due))


async def sample_queue(activity: Activity) -> None:
    while True:
        if (found := await activity()) is not None:
            instruments.queue_depth.set(found.waiting, {"state": "waiting"})
            instruments.queue_depth.set(found.running, {"state": "running"})
            instruments.queue_oldest_age.set(found.oldest_age_s)
        await asyncio.sleep(QUEUE_EVERY_S)
