"""`/v1/chat/completions` and `/v1/models`."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic_core import to_json
from starlette.convertors import Convertor, register_url_convertor

from sherlock import http_errors
from sherlock.chat_schemas import (
    ChatCompletion,
    ChatCompletionRequest,
    ChunkWriter,
    completion,
)
from sherlock.deps import CallerDep, ServicesDep
from sherlock.event_stream import EventStream, collected, frame, opening, while_connected
from sherlock.http_errors import CLIENT_GONE, documented
from sherlock.json_body import JsonRoute
from sherlock.rag.domain.errors import ChatModelNotConfigured, ModelNotFound, SherlockError
from sherlock.rag.domain.models import AnswerEvent, Retrieval, Retrieved
from sherlock.schemas import ListObject, ModelList, ModelObject, model_list, model_object
from sherlock.search_schemas import stages_headers
from sherlock.wiring import Services

router = APIRouter(prefix="/v1", tags=["chat"], route_class=JsonRoute)


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
    read = await while_connected(request, opening(events, begun) if body.stream else collected(events))
    if read is None:
        return Response(status_code=CLIENT_GONE)
    headers = stages_headers(retrieval_of(read))
    if body.stream:
        writer = ChunkWriter(model, choices=body.choices, include_usage=body.include_usage, base_url=base_url)
        return EventStream(frames(read, events, writer), events, headers)
    answer = completion(read, model, base_url=base_url, metadata=body.metadata)
    return Response(to_json(answer), headers=headers, media_type="application/json")


@router.get("/chat/completions", operation_id="listChatCompletions", responses=documented(500, 503))
async def list_chat_completions() -> ListObject[ChatCompletion]:
    """Answers are not kept, so there are none to list."""
    return {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}


def begun(event: AnswerEvent) -> bool:
    """Whether the model has written something."""
    return not isinstance(event, Retrieved)


def retrieval_of(events: Sequence[AnswerEvent]) -> Retrieval | None:
    return next((event.retrieval for event in events if isinstance(event, Retrieved)), None)


# ── server-sent events ──────────────────────────────────────────────────────


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
