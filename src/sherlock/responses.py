"""The use case of `/v1/responses`: a chat that knows what came before, and is remembered in turn."""

import logging
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing

from sherlock.graph import Chat
from sherlock.rag import instruments
from sherlock.rag.application.transcript import transcript
from sherlock.rag.domain.errors import NotFound, RagDisabled, Unavailable
from sherlock.rag.domain.models import (
    ChatRequest,
    Page,
    PageRequest,
    ResponseItem,
    ResponseTurn,
    StoredResponse,
    WorkspaceId,
)
from sherlock.rag.domain.ports import ResponseStore
from sherlock.response_item_schemas import new_id
from sherlock.response_object_schemas import ResponseStreamEvent
from sherlock.response_writer import ResponseWriter

log = logging.getLogger(__name__)


class Responses:
    """`store`: `None` where retrieval is off; nothing is kept then, and nothing can be referred to."""

    def __init__(self, chat: Chat, store: ResponseStore | None) -> None:
        self._chat = chat
        self._store = store

    async def answer(
        self, workspace_id: WorkspaceId, turn: ResponseTurn, writer: ResponseWriter
    ) -> AsyncGenerator[ResponseStreamEvent]:
        """The events of the response, as `writer` writes them. It is stored before the last one comes.

        Closing the iterator stops the model at once, and nothing is stored. Raises what `Chat.answer` raises,
        and `NotFound` and `InvalidRequest` for what the turn refers to. Storing that fails is no error: the
        response says that it is not stored.
        """
        asked, request = await self._prepared(workspace_id, turn)
        for written in writer.begin():
            yield written
        async with aclosing(self._chat.answer(workspace_id, request)) as answer:
            async for event in answer:
                for written in writer.write(event):
                    yield written
        if turn.store and self._store is not None:
            await self._keep(self._store, writer, writer.stored(workspace_id, asked))
        yield writer.end()

    async def input_tokens(self, workspace_id: WorkspaceId, turn: ResponseTurn) -> int:
        """Tokens that the turn would give the model to read, but for the passages it would find."""
        _, request = await self._prepared(workspace_id, turn)
        return await self._chat.prompt_tokens(request)

    async def get(self, workspace_id: WorkspaceId, response_id: str) -> StoredResponse:
        return await self._stored().get(workspace_id, response_id)

    async def delete(self, workspace_id: WorkspaceId, response_id: str) -> None:
        await self._stored().delete(workspace_id, response_id)

    async def input_items(
        self, workspace_id: WorkspaceId, response_id: str, page: PageRequest
    ) -> Page[ResponseItem]:
        return await self._stored().list_input_items(workspace_id, response_id, page)

    def _stored(self) -> ResponseStore:
        if self._store is None:
            raise RagDisabled
        return self._store

    async def _prepared(
        self, workspace_id: WorkspaceId, turn: ResponseTurn
    ) -> tuple[tuple[ResponseItem, ...], ChatRequest]:
        """The turn's own items, as they are to be stored, and the chat that it is."""
        context: tuple[ResponseItem, ...] = ()
        if turn.previous_response_id is not None:
            context = await self._stored().context(workspace_id, turn.previous_response_id)
        asked = await self._resolved(workspace_id, turn.input)
        request = ChatRequest(
            model=turn.model,
            messages=transcript(turn.instructions, (*context, *asked)),
            file_search=turn.file_search,
            options=turn.options,
        )
        return with_ids_of_their_own(asked, {item["id"] for item in context}), request

    async def _resolved(
        self, workspace_id: WorkspaceId, items: tuple[ResponseItem, ...]
    ) -> tuple[ResponseItem, ...]:
        """The items, with those that are referred to in the place of the references."""
        ids = [item["id"] for item in items if item["type"] == "item_reference"]
        if not ids:
            return items
        found = await self._stored().find_items(workspace_id, ids)
        for missing in (id for id in ids if id not in found):
            raise NotFound("ResponseItem", missing, param="input")
        return tuple(found[item["id"]] if item["type"] == "item_reference" else item for item in items)

    async def _keep(self, store: ResponseStore, writer: ResponseWriter, response: StoredResponse) -> None:
        try:
            await store.add(response)
        except Unavailable as error:
            instruments.errors.add(1, {"stage": "store"})
            instruments.degraded.add(1, {"part": "store"})
            log.warning("response is not stored", extra={"error": type(error).__name__})
            writer.not_stored(error.message)


def with_ids_of_their_own(items: Iterable[ResponseItem], taken: set[str]) -> tuple[ResponseItem, ...]:
    """The items; one whose id is taken already gets another, since lists are paged by ids."""
    distinct: list[ResponseItem] = []
    for item in items:
        if item["id"] in taken:
            item = {**item, "id": new_id(item["id"].partition("_")[0][:8] or "item")}
        taken.add(item["id"])
        distinct.append(item)
    return tuple(distinct)
