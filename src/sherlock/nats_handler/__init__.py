"""Entry point: messages (NATS). The same use cases as over HTTP, reached by subjects instead of paths.

requests    search, embed and chat: asked and answered while both sides are there
ingest      ingest requests out of their durable stream, and the results owed for them
exchange    what both share: reading a request, sending a result
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sherlock.message_schemas import INGEST, INGEST_STREAM
from sherlock.nats_handler.exchange import Results
from sherlock.nats_handler.ingest import Ingests
from sherlock.nats_handler.requests import Requests
from sherlock.wiring import Services


@asynccontextmanager
async def answering(services: Services) -> AsyncIterator[None]:
    """Answer messages until the block ends, then finish what has begun; nothing, when messages are off."""
    broker = services.broker
    if broker is None:
        yield
        return
    group = services.settings.nats_queue_group
    results = Results(broker)
    requests = Requests(services, results)
    requests.subscribe(broker, group)
    ingests = None
    if services.rag is not None:
        ingests = Ingests(broker, services.rag, results)
        broker.consume(INGEST_STREAM, INGEST.request_subject, group, ingests.settle)
    broker.start()
    try:
        if ingests is None:
            yield
        else:
            async with ingests.results_published():
                yield
    finally:
        await broker.stop_receiving()
        await requests.finish()
