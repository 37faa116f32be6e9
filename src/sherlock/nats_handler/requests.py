"""Search, embed and chat by message: at most once, answered to the reply inbox and the result subject."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from sherlock.chat_schemas import completion
from sherlock.message_schemas import (
    EMBED,
    INGEST,
    PLAIN_CHAT,
    RAG_CHAT,
    SEARCH,
    EmbedMessage,
    Exchange,
    PlainChatMessage,
    RagChatMessage,
    SearchMessage,
    search_members,
)
from sherlock.nats_handler.exchange import Asked, Results, answerable, asked, read, validated
from sherlock.nats_handler.telemetry import Measured, measured
from sherlock.rag.application.embed import check_model, read_input
from sherlock.rag.domain.correlation import request_id
from sherlock.rag.domain.errors import ChatModelNotConfigured, SherlockError, Unavailable
from sherlock.rag.domain.messages import Message, MessageBroker
from sherlock.rag.domain.models import DEFAULT_WORKSPACE, ChatRequest, WorkspaceId
from sherlock.wiring import Services

log = logging.getLogger(__name__)

SIDE_BY_SIDE = 16
"""Requests of one subject that are worked on at the same time; each subject has places of its own."""
MAX_WAITING = 128
"""Requests of one subject that wait for a place. More are refused at once: they would wait too long."""
FINISH_S = 10.0
"""How long requests that have begun may take when the process is asked to stop."""

Answer = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]
"""From the request's payload to the members of its result."""


class Busy(Unavailable):
    """More requests wait than will be done in time."""

    def __init__(self) -> None:
        super().__init__("Too many requests are waiting; send it again later.")


@dataclass(slots=True)
class Places:
    """Where the requests of one subject are worked on."""

    free: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(SIDE_BY_SIDE))
    taken: int = 0
    """Those that wait included."""


class Requests:
    def __init__(self, services: Services, results: Results) -> None:
        self._services = services
        self._results = results
        self._tasks: set[asyncio.Task[None]] = set()

    def subscribe(self, broker: MessageBroker, group: str) -> None:
        answers: dict[Exchange, Answer] = {
            SEARCH: self._search,
            EMBED: self._embed,
            RAG_CHAT: self._rag_chat,
            PLAIN_CHAT: self._plain_chat,
        }
        if self._services.rag is None:
            answers[INGEST] = self._refuse_ingest
        for exchange, answer in answers.items():
            receive = partial(self._receive, exchange, answer, Places())
            broker.subscribe(exchange.request_subject, group, receive)

    async def finish(self) -> None:
        """Wait for what has begun; what takes too long is broken off, and its sender told so."""
        if not self._tasks:
            return
        _, late = await asyncio.wait(self._tasks, timeout=FINISH_S)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late)

    # ── from message to result ──────────────────────────────────────────────

    def _receive(self, exchange: Exchange, answer: Answer, places: Places, message: Message) -> None:
        task = asyncio.create_task(self._handle(exchange, answer, places, message))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _handle(self, exchange: Exchange, answer: Answer, places: Places, message: Message) -> None:
        """The one place every request passes through."""
        with measured(exchange, message) as request:
            await self._answered(exchange, answer, places, message, request)

    async def _answered(
        self, exchange: Exchange, answer: Answer, places: Places, message: Message, request: Measured
    ) -> None:
        body: dict[str, Any] = {}
        refused: SherlockError | None = None
        try:
            body = read(message.data)
        except SherlockError as error:
            refused = error
        who = asked(exchange, message, body)
        request_id.set(who.headers.get("x-request-id"))
        request.identified(who.headers.get("x-request-id"))
        if refused is None and places.taken >= SIDE_BY_SIDE + MAX_WAITING:
            refused = Busy()
        if refused is not None:
            request.failed()
            await self._send(exchange, message, who, who.failure(refused))
            return
        places.taken += 1
        try:
            async with places.free:
                result = await self._result(answer, who, body)
        except asyncio.CancelledError:
            request.failed()
            result = who.failure(Unavailable("The server is stopping; send the request again."))
            await self._send(exchange, message, who, result)
            raise
        finally:
            places.taken -= 1
        if result["error"] is not None:
            request.failed()
        await self._send(exchange, message, who, result)

    async def _result(self, answer: Answer, who: Asked, body: dict[str, Any]) -> dict[str, Any]:
        try:
            return who.success(await answer(body))
        except SherlockError as error:
            return who.failure(error)
        except Exception as error:
            return who.fault(error)

    async def _send(self, exchange: Exchange, message: Message, who: Asked, result: dict[str, Any]) -> None:
        subjects = [exchange.result_subject]
        if message.reply_to is not None and answerable(message.reply_to):
            subjects.insert(0, message.reply_to)
        try:
            await self._results.send(subjects, who, result)
        except SherlockError as error:
            log.warning("a result could not be sent", extra={"reason": error.message})
        log.info("message answered", extra={"exchange": exchange.name, "failed": result["error"] is not None})

    def _workspace(self) -> WorkspaceId:
        """Every message works in the default workspace; whoever may publish is trusted by the broker."""
        return DEFAULT_WORKSPACE

    # ── one method for each exchange ────────────────────────────────────────

    async def _search(self, body: dict[str, Any]) -> dict[str, Any]:
        rag, settings = self._services.require_rag(), self._services.settings
        request = validated(SearchMessage, body)
        if len(request.vector_store_ids) == 1:
            # Among several an unknown one yields nothing; asked alone, it is an error.
            await rag.vector_stores.require(self._workspace(), request.vector_store_ids[0])
        query = request.to_query(settings.retrieval_top_k, settings.hybrid_alpha)
        retrieval = await rag.retriever.search(self._workspace(), query)
        return {"vector_store_ids": request.vector_store_ids} | search_members(request.query, retrieval)

    async def _embed(self, body: dict[str, Any]) -> dict[str, Any]:
        embedder = self._services.require_rag().embedder
        request = validated(EmbedMessage, body)
        if request.model is not None:
            check_model(request.model, embedder.encoder)
        texts, _ = await asyncio.to_thread(read_input, request.input, self._services.counter)
        vectors = await embedder.embed_texts(texts)
        return {"model": embedder.encoder.name, "embeddings": [vector.tolist() for vector in vectors]}

    async def _rag_chat(self, body: dict[str, Any]) -> dict[str, Any]:
        self._services.require_rag()
        settings = self._services.settings
        request = validated(RagChatMessage, body)
        model = request.model or await self._own_model()
        return await self._completion(
            request.to_domain(model, settings.retrieval_top_k, settings.hybrid_alpha)
        )

    async def _plain_chat(self, body: dict[str, Any]) -> dict[str, Any]:
        settings = self._services.settings
        # Whatever a chat request holds beside what is known goes to the model; this is not for it.
        given = {name: value for name, value in body.items() if name != "request_id"}
        request = validated(PlainChatMessage, given)
        if request.file_search_tools:
            self._services.require_rag()
        asked_for = request.to_domain(settings.retrieval_top_k, settings.hybrid_alpha)
        return await self._completion(asked_for, request.metadata)

    async def _refuse_ingest(self, body: dict[str, Any]) -> dict[str, Any]:
        self._services.require_rag()
        raise AssertionError("RAG is off, or ingest requests would come out of their stream")

    async def _own_model(self) -> str:
        model = self._services.chat_model
        if model is None:
            raise ChatModelNotConfigured
        return model.name or next(iter(await model.models()), "")

    async def _completion(
        self, request: ChatRequest, metadata: dict[str, str] | None = None
    ) -> dict[str, Any]:
        chat = self._services.chat
        model = chat.model_for(request.model)
        async with aclosing(chat.answer(self._workspace(), request)) as events:
            read_events = [event async for event in events]
        base_url = self._services.settings.root_path.rstrip("/")
        return dict(completion(read_events, model, base_url=base_url, metadata=metadata))
