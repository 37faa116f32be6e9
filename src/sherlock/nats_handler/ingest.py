"""Ingest by message: requests out of their stream, results when the jobs have ended.

A request is settled as soon as the job and what is owed for it are rows in the database: from then on the job
ends however often brokers, workers and this process are killed, and whichever Sherlock is up publishes the
result. The stream need not hold a message for as long as its job takes, nor anybody a place for it.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from sherlock.message_schemas import INGEST, REPLY_TO_HEADER, IngestMessage
from sherlock.nats_handler.exchange import Asked, Results, answerable, asked, correlation, read, validated
from sherlock.nats_handler.telemetry import Measured, measured
from sherlock.process import cancelled
from sherlock.rag import tracing
from sherlock.rag.domain.correlation import request_id
from sherlock.rag.domain.errors import InvalidRequest, RequestError, Unavailable
from sherlock.rag.domain.messages import Delivery, IngestRequest, MessageBroker, Parked
from sherlock.rag.domain.models import DEFAULT_WORKSPACE, VectorStoreFile
from sherlock.wiring import Rag

log = logging.getLogger(__name__)

BATCH = 100
"""Results that are published together."""
LEASE_S = 30.0
"""How long the results that a killed process was publishing wait for another one."""
POLL_S = 5.0
"""Longest sleep without a wake-up."""
PAUSE_S = 1.0


class Ingests:
    def __init__(self, broker: MessageBroker, rag: Rag, results: Results) -> None:
        self._broker = broker
        self._rag = rag
        self._results = results

    # ── requests ────────────────────────────────────────────────────────────

    async def settle(self, delivery: Delivery) -> Parked | None:
        """Queue the job and note what is owed; a request that can never be done is answered and parked.

        Raises `Unavailable`: then it is delivered again.
        """
        with measured(INGEST, delivery.message) as request:
            parked = await self._settle(delivery, request)
            if parked is not None:
                request.failed()
            return parked

    async def _settle(self, delivery: Delivery, measuring: Measured) -> Parked | None:
        workspace_id = DEFAULT_WORKSPACE
        if await self._rag.ingest_requests.known(workspace_id, delivery.id):
            return None
        message = delivery.message
        reply_to = next(
            (value for name, value in message.headers.items() if name.lower() == REPLY_TO_HEADER.lower()),
            None,
        )
        who, body = asked(INGEST, message, None), None
        try:
            body = read(message.data)
            who = asked(INGEST, message, body)
            request_id.set(who.headers.get("x-request-id"))
            measuring.identified(who.headers.get("x-request-id"))
            request = validated(IngestMessage, body)
            if reply_to is not None and not answerable(reply_to):
                raise InvalidRequest(
                    f"The header {REPLY_TO_HEADER} names no subject that can be answered to."
                )
            attached = await self._rag.vector_stores.attach(
                workspace_id, request.vector_store_id, request.file_id
            )
        except RequestError as error:
            result = who.failure(error)
            await self._send(delivery.id, reply_to if answerable(reply_to) else None, who, result)
            await self._broker.flush()
            return Parked(error.message)
        await self._rag.ingest_requests.add(
            IngestRequest(
                workspace_id,
                delivery.id,
                who.request_id,
                request.vector_store_id,
                request.file_id,
                reply_to,
                tracing.current().traceparent,
            )
        )
        if attached.status != "in_progress":
            await self._publish_ended()
        return None

    # ── results ─────────────────────────────────────────────────────────────

    @asynccontextmanager
    async def results_published(self) -> AsyncIterator[None]:
        """Until the block ends, whatever result is owed is published when its ingest has ended."""
        publishing = asyncio.create_task(self._keep_publishing())
        try:
            yield
        finally:
            await cancelled(publishing)

    async def _keep_publishing(self) -> None:
        while True:
            try:
                await self._broker.connected()
                await self._publish_ended()
                await self._rag.ingest_requests.wait_for_ended(POLL_S)
            except Unavailable as error:
                log.warning("results of ingests wait", extra={"reason": error.message})
                await asyncio.sleep(PAUSE_S)
            except Exception as error:
                log.error("results of ingests wait", extra={"error": type(error).__name__})
                await asyncio.sleep(PAUSE_S)

    async def _publish_ended(self) -> None:
        while claimed := await self._rag.ingest_requests.claim_ended(BATCH, LEASE_S):
            told = [request for request in claimed if await self._publish(request)]
            await self._broker.flush()
            await self._rag.ingest_requests.settle(told)

    async def _publish(self, request: IngestRequest) -> bool:
        """Whether the result was published: a file that is being ingested anew has none yet."""
        file = await self._rag.vector_stores.wait(
            request.workspace_id, request.vector_store_id, request.file_id, 0
        )
        if file.status == "in_progress":
            return False
        ids = {"file_id": request.file_id, "vector_store_id": request.vector_store_id}
        headers = correlation(request.request_id)
        if request.traceparent is not None:
            headers["traceparent"] = request.traceparent
        who = Asked(request.request_id, ids, headers, INGEST.when_failed)
        await self._send(request.message_id, request.reply_to, who, outcome(who, file))
        return True

    async def _send(self, message_id: str, reply_to: str | None, who: Asked, result: dict[str, Any]) -> None:
        """More than once if a process dies here; the header lets a stream or a reader tell."""
        for subject in (INGEST.result_subject, *([reply_to] if reply_to else [])):
            await self._results.send([subject], who, result, {"Nats-Msg-Id": f"{message_id}:{subject}"})


def outcome(who: Asked, file: VectorStoreFile) -> dict[str, Any]:
    if file.status == "completed":
        return who.success({"status": "completed", "chunk_count": file.chunk_count})
    if file.last_error is None:
        return who.failed("The ingest was cancelled.", None)
    return who.failed(file.last_error.message, file.last_error.code)
