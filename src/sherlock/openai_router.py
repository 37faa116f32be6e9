"""`/v1/chat/completions` and `/v1/models`."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

import anyio
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic_core import to_json
from starlette.convertors import Convertor, register_url_convertor
from starlette.types import Receive, Scope, Send

from sherlock import http_errors
from sherlock.chat_schemas import (
    ChatCompletion,
    ChatCompletionChunk,
    ChatCompletionRequest,
    ChunkWriter,
    completion,
)
from sherlock.deps import CallerDep, ServicesDep
from sherlock.http_errors import CLIENT_GONE, documented
from sherlock.json_body import JsonRoute
from sherlock.process import cancelled
from sherlock.rag.domain.errors import ChatModelNotConfigured, ModelNotFound, SherlockError
from sherlock.rag.domain.models import AnswerEvent, Retrieved
from sherlock.schemas import ListObject, ModelList, ModelObject, model_list, model_object
from sherlock.search_schemas import stages_header
from sherlock.wiring import Services

router = APIRouter(prefix="/v1", tags=["chat"], route_class=JsonRoute)

KEEP_ALIVE_S = 15.0
"""Longest silence of a stream; a comment line, which every client passes over, ends it."""

T = TypeVar("T")


# ── models ──────────────────────────────────────────────────────────────────


@router.get("/models", operation_id="listModels", responses=documented(500, 503))
async def list_models(request: Request, services: ServicesDep) -> ModelList:
    """Chat models first, then the encoder."""
    return model_list(await model_names(services), request.state.started_at)


class ModelName(Convertor[str]):
    """Whatever stands behind `/models/`: names have slashes, and line ends are no reason for another 404."""

    regex = r"[\s\S]+"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("model_name", ModelName())


@router.get("/models/{model:model_name}", operation_id="retrieveModel", responses=documented(404, 500, 503))
async def retrieve_model(model: str, request: Request, services: ServicesDep) -> ModelObject:
    """By the full name or its last part."""
    return model_object(await full_name(model, services), request.state.started_at)


@router.delete(
    "/models/{model:model_name}",
    operation_id="deleteModel",
    response_class=JSONResponse,
    response_model=None,
    status_code=403,
    responses=documented(403, 404, 500, 503),
)
async def delete_model(model: str, services: ServicesDep) -> JSONResponse:
    """Always refused: the models of a server are chosen where it is set up."""
    name = await full_name(model, services)
    message = f"The model '{name}' belongs to the server and cannot be deleted."
    return JSONResponse(http_errors.envelope(message, http_errors.INVALID_REQUEST), 403)


async def full_name(model: str, services: Services) -> str:
    """Of the model with that name or last part of a name. Raises `ModelNotFound`."""
    for name in await model_names(services):
        if model in (name, name.rpartition("/")[2]):
            return name
    raise ModelNotFound(model)


async def model_names(services: Services) -> list[str]:
    if services.chat_model is None and services.rag is None:
        raise ChatModelNotConfigured
    chat_models = await services.chat_model.models() if services.chat_model else []
    return [*chat_models, *([services.rag.embedder.encoder.name] if services.rag else [])]


# ── chat ────────────────────────────────────────────────────────────────────

CHAT_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "model": ChatCompletion,
        "description": "The answer; with `stream`, chunks as server-sent events and `[DONE]`.",
        "content": {"text/event-stream": {"schema": {"$ref": "#/components/schemas/ChatCompletionChunk"}}},
    }
}


@router.post(
    "/chat/completions",
    operation_id="createChatCompletion",
    response_model=None,
    responses=CHAT_RESPONSES | documented(400, 404, 409, 413, 429, 500, 503),
)
async def create_chat_completion(
    body: ChatCompletionRequest, request: Request, caller: CallerDep, services: ServicesDep
) -> Response:
    """Answer a conversation, from files where the tool `file_search` names vector stores."""
    if body.file_search_tools:
        services.require_rag()
    settings = services.settings
    asked = body.to_domain(settings.retrieval_top_k, settings.hybrid_alpha)
    model = services.chat.model_for(asked.model)
    base_url = str(request.base_url).rstrip("/")
    events = services.chat.answer(caller, asked)
    # Of a stream the beginning is read before the status is sent: up to there a failure has its own status.
    read = await while_connected(request, opening(events) if body.stream else collected(events))
    if read is None:
        return Response(status_code=CLIENT_GONE)
    if body.stream:
        writer = ChunkWriter(model, choices=body.choices, include_usage=body.include_usage, base_url=base_url)
        return EventStream(read, events, writer, headers=stages_of(read))
    answer = completion(read, model, base_url=base_url, metadata=body.metadata)
    return Response(to_json(answer), headers=stages_of(read), media_type="application/json")


@router.get("/chat/completions", operation_id="listChatCompletions", responses=documented(500, 503))
async def list_chat_completions() -> ListObject[ChatCompletion]:
    """Answers are not kept, so there are none to list."""
    return {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}


async def collected(events: AsyncIterator[AnswerEvent]) -> list[AnswerEvent]:
    return [event async for event in events]


async def opening(events: AsyncIterator[AnswerEvent]) -> list[AnswerEvent]:
    """The events up to the first that the model has written."""
    head: list[AnswerEvent] = []
    async for event in events:
        head.append(event)
        if not isinstance(event, Retrieved):
            break
    return head


def stages_of(events: Sequence[AnswerEvent]) -> dict[str, str]:
    found = [event.retrieval for event in events if isinstance(event, Retrieved)]
    return {"sherlock-stages": stages_header(found[0])} if found else {}


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T | None:
    """The result of `work`; `None` when the client goes before: then `work` is cancelled."""
    working = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(disconnected(request))
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        await cancelled(working, gone)


async def disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


# ── server-sent events ──────────────────────────────────────────────────────


class EventStream(StreamingResponse):
    """An answer as server-sent events. When the client goes, the answer is closed before the request ends.

    Left to the garbage collector, the model would go on for as long as something refers to the stream.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        head: Sequence[AnswerEvent],
        rest: AsyncGenerator[AnswerEvent],
        writer: ChunkWriter,
        headers: Mapping[str, str],
    ) -> None:
        self._answer = rest
        self._stream = kept_alive(frames(head, rest, writer))
        super().__init__(
            self._stream, headers={"cache-control": "no-cache", "x-accel-buffering": "no", **headers}
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._stream.aclose()
            await self._answer.aclose()  # a stream that was never begun closes nothing


async def frames(
    head: Sequence[AnswerEvent], rest: AsyncIterator[AnswerEvent], writer: ChunkWriter
) -> AsyncGenerator[bytes]:
    """The stream as it goes over the wire. A failure half way is its last frame, without a `[DONE]`."""
    try:
        for chunk in writer.begin():
            yield frame(chunk)
        for event in head:
            for chunk in writer.write(event):
                yield frame(chunk)
        async for event in rest:
            for chunk in writer.write(event):
                yield frame(chunk)
    except SherlockError as error:
        yield frame(http_errors.error_body(error))
    except Exception as error:
        http_errors.log_unexpected(error)
        yield frame(http_errors.internal_error_body())
    else:
        yield b"data: [DONE]\n\n"


def frame(data: ChatCompletionChunk | http_errors.ErrorResponse) -> bytes:
    return b"data: " + to_json(data) + b"\n\n"


async def kept_alive(source: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    """The same stream, with a comment line wherever nothing has come for `KEEP_ALIVE_S`.

    Pieces that come at once leave at once: a write for each would cost more than all that made them.
    """
    ready: asyncio.Queue[bytes | None] = asyncio.Queue()
    reading = asyncio.create_task(read_into(ready, source))
    try:
        while True:
            try:
                async with asyncio.timeout(KEEP_ALIVE_S):
                    pieces = [await ready.get()]
            except TimeoutError:
                yield b": keep-alive\n\n"
                continue
            while not ready.empty():
                pieces.append(ready.get_nowait())
            if together := b"".join(piece for piece in pieces if piece is not None):
                yield together
            if pieces[-1] is None:
                reading.result()
                return
    finally:
        # Starlette cancels through a scope that cancels whatever is awaited next, too.
        with anyio.CancelScope(shield=True):
            await cancelled(reading)  # the source ends in the task that reads it


async def read_into(ready: "asyncio.Queue[bytes | None]", source: AsyncGenerator[bytes]) -> None:
    """Put what the source brings into `ready`, and `None` at its end, however it ends."""
    try:
        async for piece in source:
            ready.put_nowait(piece)
    finally:
        ready.put_nowait(None)
        await source.aclose()
