"""The OpenAI shapes of responses, of what streams of them consist of, and of their items."""

from collections.abc import Iterable
from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

from sherlock.rag.domain.models import ResponseItem, StoredResponse
from sherlock.search_schemas import GroundingObject

RESULTS = "file_search_call.results"
LOGPROBS = "message.output_text.logprobs"
"""What an answer shows only where `include` names it."""


class ResponseError(TypedDict):
    code: str
    message: str


class IncompleteDetails(TypedDict):
    reason: Literal["max_output_tokens", "content_filter"]


class InputTokensDetails(TypedDict):
    cached_tokens: int
    cache_write_tokens: int


class OutputTokensDetails(TypedDict):
    reasoning_tokens: int


class ResponseUsage(TypedDict):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseObject(TypedDict):
    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["completed", "failed", "in_progress", "incomplete"]
    completed_at: int | None
    background: bool
    error: ResponseError | None
    incomplete_details: IncompleteDetails | None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    model: str
    output: list[dict[str, Any]]
    parallel_tool_calls: bool
    previous_response_id: str | None
    reasoning: dict[str, Any]
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: Literal["auto", "disabled"]
    usage: NotRequired[ResponseUsage]
    user: NotRequired[str]
    safety_identifier: NotRequired[str]
    prompt_cache_key: NotRequired[str]
    sherlock: NotRequired[GroundingObject]


class ResponseStreamEvent(TypedDict):
    """An event of a stream. What else it holds depends on its type, as in OpenAI's API."""

    type: str
    sequence_number: int
    response: NotRequired[ResponseObject]


class DeletedResponse(TypedDict):
    id: str
    object: Literal["response"]
    deleted: Literal[True]


class ResponseItemObject(TypedDict):
    id: str
    type: str


class InputTokens(TypedDict):
    object: Literal["response.input_tokens"]
    input_tokens: int


def response_object(stored: StoredResponse, include: Iterable[str]) -> dict[str, Any]:
    return {**stored.body, "output": [item_object(item, include) for item in stored.output]}


def item_object(item: ResponseItem, include: Iterable[str]) -> dict[str, Any]:
    """An item as it is shown: results and log probabilities only to those who ask for them."""
    shown = dict(item)
    if item["type"] == "file_search_call" and RESULTS not in include:
        shown["results"] = None
    if item["type"] == "message" and item["role"] == "assistant" and LOGPROBS not in include:
        shown["content"] = [
            {**part, "logprobs": []} if part["type"] == "output_text" else part for part in item["content"]
        ]
    return shown
