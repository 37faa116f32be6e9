"""`/v1/responses`: create, retrieve, delete, list what one was made from, count tokens."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, HTTPException, Query, Request
from fastapi.responses import Response
from pydantic_core import to_json

from sherlock import http_errors
from sherlock.deps import CallerDep, IncludeDep, Limit, Order, ServicesDep
from sherlock.event_stream import EventStream, collected, frame, opening, while_connected
from sherlock.http_errors import CLIENT_GONE, documented
from sherlock.json_body import JsonRoute
from sherlock.rag.domain.errors import InvalidRequest, NotFound, SherlockError
from sherlock.rag.domain.models import PageRequest, ResponseTurn
from sherlock.response_object_schemas import (
    DeletedResponse,
    InputTokens,
    ResponseItemObject,
    ResponseObject,
    ResponseStreamEvent,
    item_object,
    response_object,
)
from sherlock.response_schemas import CreateResponseRequest
from sherlock.response_writer import ResponseWriter
from sherlock.schemas import ListObject, list_object
from sherlock.search_schemas import stages_headers
from sherlock.wiring import Services

router = APIRouter(prefix="/v1/responses", tags=["responses"], route_class=JsonRoute)

CREATED: dict[int | str, dict[str, Any]] = {
    200: {
        "model": ResponseObject,
        "description": "The response; with `stream`, its making as server-sent events.",
        "content": {"text/event-stream": {"schema": {"$ref": "#/components/schemas/ResponseStreamEvent"}}},
    }
}
STORED: dict[int | str, dict[str, Any]] = {
    200: {"model": ResponseObject, "description": "The response as it was made."}
}
ITEMS: dict[int | str, dict[str, Any]] = {
    200: {"model": ListObject[ResponseItemObject], "description": "Items, those of earlier turns included."}
}


# ── create ──────────────────────────────────────────────────────────────────


@router.post(
    "",
    operation_id="createResponse",
    response_model=None,
    responses=CREATED | documented(400, 404, 409, 413, 429, 500, 503),
)
async def create_response(
    body: CreateResponseRequest, request: Request, caller: CallerDep, services: ServicesDep
) -> Response:
    """Answer, from files where the tool `file_search` names vector stores, and remember it."""
    turn = asked_turn(body, services)
    settings = services.settings
    stores = turn.store and services.rag is not None
    echo = body.echo(turn.model, settings.retrieval_top_k, settings.hybrid_alpha, stores=stores)
    writer = ResponseWriter(echo, body.included)
    events = services.responses.answer(caller, turn, writer)
    read = await while_connected(
        request, opening(events, lambda _: writer.begun) if body.stream else collected(events)
    )
    if read is None:
        return Response(status_code=CLIENT_GONE)
    headers = stages_headers(writer.retrieval)
    if body.stream:
        return EventStream(frames(read, events, writer), events, headers)
    return Response(to_json(read[-1]["response"]), headers=headers, media_type="application/json")


@router.post(
    "/input_tokens",
    operation_id="Getinputtokencounts",
    responses=documented(400, 404, 413, 500, 503),
)
async def count_input_tokens(
    body: CreateResponseRequest, caller: CallerDep, services: ServicesDep
) -> InputTokens:
    """Tokens that a response would give the model to read; without passages, since nothing is searched."""
    turn = asked_turn(body, services)
    tokens = await services.responses.input_tokens(caller, turn)
    return {"object": "response.input_tokens", "input_tokens": tokens}


def asked_turn(body: CreateResponseRequest, services: Services) -> ResponseTurn:
    """Raises `RagDisabled`, `NotFound` and `InvalidRequest` for what cannot be answered."""
    if body.needs_rag:
        services.require_rag()
    if body.conversation_id is not None:
        raise NotFound("Conversation", body.conversation_id, param="conversation")
    default = services.chat_model.name if services.chat_model else ""
    if services.chat_model is not None and not (body.model or default):
        raise InvalidRequest(
            "Missing required parameter: 'model'.", param="model", code="missing_required_parameter"
        )
    model = services.chat.model_for(body.model or default)
    settings = services.settings
    return body.to_domain(model, settings.retrieval_top_k, settings.hybrid_alpha)


async def frames(
    head: Sequence[ResponseStreamEvent], rest: AsyncIterator[ResponseStreamEvent], writer: ResponseWriter
) -> AsyncGenerator[bytes]:
    """The stream as it goes over the wire. A failure half way is told in its last two events."""
    try:
        for event in head:
            yield frame(event, event=event["type"])
        async for event in rest:
            yield frame(event, event=event["type"])
    except SherlockError as error:
        for event in writer.fail(http_errors.error_body(error)["error"], error):
            yield frame(event, event=event["type"])
    except Exception as error:
        http_errors.log_unexpected(error)
        for event in writer.fail(http_errors.internal_error_body()["error"]):
            yield frame(event, event=event["type"])


# ── what is stored ──────────────────────────────────────────────────────────


@router.get(
    "/{response_id}",
    operation_id="getResponse",
    response_model=None,
    responses=STORED | documented(400, 404, 500, 503),
)
async def retrieve_response(
    response_id: str,
    caller: CallerDep,
    services: ServicesDep,
    include: IncludeDep,
    stream: Annotated[Literal["true", "false"] | None, Query()] = None,
) -> Response:
    """A response that was stored."""
    if stream == "true":
        raise InvalidRequest("The events of a response are not kept.", param="stream")
    stored = await services.responses.get(caller, response_id)
    return Response(to_json(response_object(stored, include)), media_type="application/json")


@router.delete("/{response_id}", operation_id="deleteResponse", responses=documented(404, 500, 503))
async def delete_response(response_id: str, caller: CallerDep, services: ServicesDep) -> DeletedResponse:
    """Forget a response. Those that go on with it stay, and can no longer be gone on with."""
    await services.responses.delete(caller, response_id)
    return {"id": response_id, "object": "response", "deleted": True}


@router.post("/compact", include_in_schema=False)
async def compact_response() -> Response:
    """Not offered. Without this route it would be a wrong method on a response named so."""
    raise HTTPException(404)


@router.post(
    "/{response_id}/cancel",
    operation_id="cancelResponse",
    response_model=None,
    responses=STORED | documented(400, 404, 500, 503),
)
async def cancel_response(response_id: str, caller: CallerDep, services: ServicesDep) -> Response:
    """Refused: only a response that is made in the background can be cancelled, and none is."""
    await services.responses.get(caller, response_id)
    raise InvalidRequest("Only a response that is made in the background can be cancelled.", param="id")


@router.get(
    "/{response_id}/input_items",
    operation_id="listInputItems",
    response_model=None,
    responses=ITEMS | documented(400, 404, 500, 503),
)
async def list_input_items(
    response_id: str,
    caller: CallerDep,
    services: ServicesDep,
    include: IncludeDep,
    limit: Limit = 20,
    order: Order = "desc",
    after: str | None = None,
) -> Response:
    """What a response was made from: its input, and the turns that it goes on with."""
    page = await services.responses.input_items(caller, response_id, PageRequest(limit, order, after))
    items = list_object(page, lambda item: item_object(item, include))
    return Response(to_json(items), media_type="application/json")
