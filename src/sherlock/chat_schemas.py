"""The OpenAI shapes of chat completions: the request in, the events of an answer out.

`ChunkWriter` frames events as `chat.completion.chunk`s, `completion` folds the same events into one object.
"""

import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, NotRequired

from pydantic import ConfigDict, Discriminator, Field, StringConstraints, field_validator, model_validator
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict

from sherlock.rag.domain.errors import InvalidRequest
from sherlock.rag.domain.models import (
    AnswerEvent,
    ChatRequest,
    Citation,
    Citations,
    Done,
    Finished,
    FinishReason,
    RefusalDelta,
    Retrieval,
    Retrieved,
    TextDelta,
    ToolCallDelta,
    Usage,
)
from sherlock.schemas import MetadataInput, OpenModel, refuse_infinite, refuse_stream_options
from sherlock.search_schemas import CitedPassage, GroundingObject, cited_passage, grounding_object
from sherlock.tool_schemas import FileSearchTool, Name, allowed_tools, function_options, may_search

# ── request ─────────────────────────────────────────────────────────────────


CONTENT: dict[str, Any] = {"content": {"type": ["string", "array"]}}


class ChatMessageInput(OpenModel):
    role: Literal["developer", "system", "user", "assistant", "tool", "function"]
    content: str | list[dict[str, Any]] | None = None

    model_config = ConfigDict(
        json_schema_extra={
            "anyOf": [
                {"properties": {"role": {"enum": ["assistant", "function"]}}},
                {
                    "properties": {"role": {"enum": ["developer", "system", "user"]}} | CONTENT,
                    "required": ["content"],
                },
                {
                    "properties": {"role": {"const": "tool"}, "tool_call_id": {"type": "string"}} | CONTENT,
                    "required": ["content", "tool_call_id"],
                },
            ]
        }
    )
    """What `_complete` asks for, in the document."""

    @model_validator(mode="after")
    def _complete(self) -> "ChatMessageInput":
        extra = self.model_extra or {}
        if self.role == "tool" and not isinstance(extra.get("tool_call_id"), str):
            raise PydanticCustomError("tool_call_id", "a message with role 'tool' needs a tool_call_id")
        if self.content is None and self.role not in ("assistant", "function"):
            raise PydanticCustomError("content", "a message with this role needs content")
        return self


class FunctionDefinition(OpenModel):
    name: Name


class FunctionTool(OpenModel):
    type: Literal["function"]
    function: FunctionDefinition


ToolInput = Annotated[FunctionTool | FileSearchTool, Discriminator("type")]


class StreamOptions(OpenModel):
    include_usage: bool | None = None


class PlainFormat(OpenModel):
    type: Literal["text", "json_object"]


class JsonSchema(OpenModel):
    name: Name


class JsonSchemaFormat(OpenModel):
    type: Literal["json_schema"]
    json_schema: JsonSchema


ResponseFormat = Annotated[PlainFormat | JsonSchemaFormat, Discriminator("type")]
StopSequence = Annotated[str, StringConstraints(min_length=1)]
TokenId = Annotated[str, StringConstraints(pattern=r"^[0-9]+$")]

MAX_CHOICES = 128
MAX_MESSAGES = 2048


class ChatCompletionRequest(OpenModel):
    """Members that Sherlock acts on; all others go to the model as they came."""

    model: str
    # None at all is an error with a code of its own.
    messages: list[ChatMessageInput] = Field(max_length=MAX_MESSAGES, json_schema_extra={"minItems": 1})
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = Field(None, ge=1, le=MAX_CHOICES)
    tools: list[ToolInput] | None = Field(None, max_length=128)
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any] | None = None
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, ge=0, le=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    max_tokens: int | None = Field(None, ge=1, deprecated=True)
    stop: StopSequence | Annotated[list[StopSequence], Field(min_length=1, max_length=4)] | None = None
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    logit_bias: dict[TokenId, Annotated[float, Field(ge=-100, le=100)]] | None = None
    seed: int | None = None
    response_format: ResponseFormat | None = None
    store: bool | None = Field(None, description="Accepted; completions are not stored.")
    metadata: MetadataInput | None = None
    safety_identifier: str | None = Field(None, max_length=128)
    modalities: list[Literal["text"]] | None = None

    OURS: ClassVar[frozenset[str]] = frozenset(
        {"model", "messages", "stream", "stream_options", "tools", "tool_choice"}
    )
    CHOICES: ClassVar[tuple[str, ...]] = ("function", "file_search", "allowed_tools")
    """Objects that `tool_choice` may be, by their `type`."""
    REFUSED: ClassVar[Mapping[str, str]] = {
        "functions": "use 'tools' instead",
        "function_call": "use 'tool_choice' instead",
        "audio": "answers are text",
    }
    """Unless they are empty, or ask for nothing."""
    KEPT_BACK: ClassVar[frozenset[str]] = frozenset({"store", "metadata", "modalities", *REFUSED})
    """Acted on or ignored here: an upstream that stored the chat would store the passages."""

    @field_validator("messages")
    @classmethod
    def _some_messages(cls, messages: list[ChatMessageInput]) -> list[ChatMessageInput]:
        if not messages:
            raise InvalidRequest(
                "'messages' must hold at least one message.", param="messages", code="bad_request"
            )
        return messages

    @model_validator(mode="after")
    def _supported(self) -> "ChatCompletionRequest":
        for name, reason in self.REFUSED.items():
            if (self.model_extra or {}).get(name) not in (None, [], {}, "none"):
                raise InvalidRequest(
                    f"Unsupported parameter: '{name}' ({reason}).", param=name, code="unsupported_parameter"
                )
        if not self.stream:
            refuse_stream_options(self.stream_options)
        if self.top_logprobs is not None and not self.logprobs:
            raise InvalidRequest("'top_logprobs' needs 'logprobs' to be true.", param="top_logprobs")
        if not self.tools and self.tool_choice not in (None, "none", "auto"):
            raise InvalidRequest("'tool_choice' is only allowed beside 'tools'.", param="tool_choice")
        if isinstance(self.tool_choice, dict) and self.tool_choice.get("type") not in self.CHOICES:
            raise InvalidRequest(
                f"Invalid value: 'tool_choice' takes the types {', '.join(self.CHOICES)}.",
                param="tool_choice.type",
                code="invalid_value",
            )
        if len(self.file_search_tools) > 1:
            raise InvalidRequest("Only one 'file_search' tool can be used at a time.", param="tools")
        self._known_choice()
        return self

    def _known_choice(self) -> None:
        """Raises `InvalidRequest` for the choice of a tool that is not there."""
        choice = self.tool_choice
        if not isinstance(choice, dict):
            return
        names = {tool.function.name for tool in self.function_tools}
        for tool in allowed_tools(choice) if choice.get("type") == "allowed_tools" else [choice]:
            if tool.get("type") == "file_search":
                known = bool(self.file_search_tools)
            else:
                function = tool.get("function")
                named = function.get("name") if isinstance(function, dict) else tool.get("name")
                known = isinstance(named, str) and named in names
            if not known:
                raise InvalidRequest(
                    "Invalid 'tool_choice': the tool it names is not among 'tools'.", param="tool_choice"
                )

    @property
    def file_search_tools(self) -> list[FileSearchTool]:
        return [tool for tool in self.tools or () if isinstance(tool, FileSearchTool)]

    @property
    def function_tools(self) -> list[FunctionTool]:
        return [tool for tool in self.tools or () if isinstance(tool, FunctionTool)]

    @property
    def _search(self) -> FileSearchTool | None:
        """The search that is done, if any."""
        return next(iter(self.file_search_tools), None) if may_search(self.tool_choice) else None

    @property
    def choices(self) -> int:
        return self.n or 1

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    def to_domain(self, default_limit: int, default_alpha: float) -> ChatRequest:
        """Raises `InvalidRequest` for numbers that only a longer notation could hold."""
        search = self._search
        messages = tuple(message.model_dump(exclude_unset=True) for message in self.messages)
        options = self._options()
        refuse_infinite({"messages": messages} | options)
        return ChatRequest(
            model=self.model,
            messages=messages,
            file_search=search.to_domain(default_limit, default_alpha) if search else None,
            options=options,
        )

    def _options(self) -> dict[str, Any]:
        """What goes to the model as it came: all but our own members and `null`s."""
        given = self.model_dump(exclude_unset=True, exclude=set(self.OURS | self.KEPT_BACK))
        options = {name: value for name, value in given.items() if value is not None}
        if "max_completion_tokens" in options:
            options.pop("max_tokens", None)
        functions = [tool.model_dump(exclude_unset=True) for tool in self.function_tools]
        if not functions:
            options.pop("parallel_tool_calls", None)
        return options | function_options(functions, self.tool_choice, searched=self._search is not None)


# ── objects ─────────────────────────────────────────────────────────────────


class UrlCitation(CitedPassage):
    """OpenAI's four members, and what Sherlock knows besides."""

    url: str
    title: str


class Annotation(TypedDict):
    type: Literal["url_citation"]
    url_citation: UrlCitation


class FunctionCall(TypedDict):
    name: str
    arguments: str


class ToolCall(TypedDict):
    id: str
    type: Literal["function"]
    function: FunctionCall


class AnswerMessage(TypedDict):
    role: Literal["assistant"]
    content: str | None
    refusal: str | None
    annotations: list[Annotation]
    tool_calls: NotRequired[list[ToolCall]]


class Choice(TypedDict):
    index: int
    finish_reason: FinishReason
    logprobs: dict[str, Any] | None
    message: AnswerMessage


class UsageObject(TypedDict):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: NotRequired[dict[str, Any]]
    completion_tokens_details: NotRequired[dict[str, Any]]


class ChatCompletion(TypedDict):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[Choice]
    usage: UsageObject
    metadata: NotRequired[dict[str, str]]
    sherlock: NotRequired[GroundingObject]


class ChunkChoice(TypedDict):
    index: int
    delta: dict[str, Any]
    finish_reason: FinishReason | None
    logprobs: NotRequired[dict[str, Any]]


class ChatCompletionChunk(TypedDict):
    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: NotRequired[UsageObject | None]
    sherlock: NotRequired[GroundingObject]


def annotation(citation: Citation, base_url: str) -> Annotation:
    return {
        "type": "url_citation",
        "url_citation": {
            "url": f"{base_url}/v1/files/{citation.file_id}/content",
            "title": citation.filename,
            **cited_passage(citation),
        },
    }


def usage_object(usage: Usage) -> UsageObject:
    shown: UsageObject = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
    }
    if prompt := usage.details.get("prompt_tokens_details"):
        shown["prompt_tokens_details"] = present_members(prompt)
    if answer := usage.details.get("completion_tokens_details"):
        shown["completion_tokens_details"] = present_members(answer)
    return shown


def present_members(details: Mapping[str, Any]) -> dict[str, Any]:
    """Upstreams write `null` for figures they do not have; the API has no place for it."""
    return {name: value for name, value in details.items() if value is not None}


# ── an answer, streamed ─────────────────────────────────────────────────────


class ChunkWriter:
    """Events of one answer -> chunks, in the order that both official stream helpers rely on.

    The last chunk with choices is held back until the answer has ended, to carry `sherlock`.
    """

    def __init__(self, model: str, *, choices: int, include_usage: bool, base_url: str) -> None:
        self.id = f"chatcmpl-{secrets.token_hex(16)}"
        self.created = int(time.time())
        self._model = model
        self._choices = choices
        self._include_usage = include_usage
        self._base_url = base_url
        self._retrieval: Retrieval | None = None
        self._grounded = False
        self._called: set[tuple[int, int]] = set()
        self._held: ChatCompletionChunk | None = None

    def begin(self) -> Iterator[ChatCompletionChunk]:
        """Every choice is introduced before any has content: helpers index choices as they appear."""
        for index in range(self._choices):
            yield self._chunk(index, {"role": "assistant", "content": "", "refusal": None})

    def write(self, event: AnswerEvent) -> Iterator[ChatCompletionChunk]:
        if isinstance(event, Retrieved):
            self._retrieval = event.retrieval
            return
        if isinstance(event, Done):
            yield from self._end(event.usage)
            return
        if self._held is not None:
            yield self._held
            self._held = None
        if isinstance(event, Finished):
            self._held = self._chunk(event.choice, {}, event.reason)
        elif isinstance(event, TextDelta):
            chunk = self._chunk(event.choice, {"content": event.text})
            if event.logprobs is not None:
                chunk["choices"][0]["logprobs"] = {"content": None, "refusal": None, **event.logprobs}
            yield chunk
        elif isinstance(event, RefusalDelta):
            yield self._chunk(event.choice, {"refusal": event.text})
        elif isinstance(event, ToolCallDelta):
            yield self._chunk(event.choice, {"tool_calls": [self._tool_call(event)]})
        elif event.citations:
            self._grounded = True
            entries = [annotation(citation, self._base_url) for citation in event.citations]
            yield self._chunk(event.choice, {"annotations": entries})

    def _tool_call(self, event: ToolCallDelta) -> dict[str, Any]:
        """`id` and `name` only once a call: helpers append what they get."""
        call: dict[str, Any] = {"index": event.index, "function": {"arguments": event.arguments}}
        if (event.choice, event.index) not in self._called:
            self._called.add((event.choice, event.index))
            call |= {"id": event.id or f"call_{secrets.token_hex(12)}", "type": "function"}
            call["function"] = {"name": event.name or "", "arguments": event.arguments}
        return call

    def _end(self, usage: Usage) -> Iterator[ChatCompletionChunk]:
        if self._held is not None:
            if self._retrieval is not None:
                self._held["sherlock"] = grounding_object(self._retrieval, grounded=self._grounded)
            yield self._held
        if self._include_usage:
            yield {**self._empty(), "usage": usage_object(usage)}

    def _chunk(
        self, index: int, delta: dict[str, Any], reason: FinishReason | None = None
    ) -> ChatCompletionChunk:
        chunk = self._empty()
        chunk["choices"] = [{"index": index, "delta": delta, "finish_reason": reason}]
        if self._include_usage:
            chunk["usage"] = None
        return chunk

    def _empty(self) -> ChatCompletionChunk:
        return {
            "id": self.id,
            "object": "chat.completion.chunk",
            "created": self.created,
            "model": self._model,
            "choices": [],
        }


# ── an answer, whole ────────────────────────────────────────────────────────


def completion(
    events: Sequence[AnswerEvent], model: str, *, base_url: str, metadata: dict[str, str] | None = None
) -> ChatCompletion:
    """The events of one answer, folded. The last one is `Done`."""
    usage = next(event.usage for event in reversed(events) if isinstance(event, Done))
    reasons = {event.choice: event.reason for event in events if isinstance(event, Finished)}
    folded: ChatCompletion = {
        "id": f"chatcmpl-{secrets.token_hex(16)}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [
            {
                "index": index,
                "finish_reason": reasons[index],
                "logprobs": folded_logprobs(events, index),
                "message": folded_message(events, index, base_url),
            }
            for index in sorted(reasons)
        ],
        "usage": usage_object(usage),
    }
    if metadata:
        folded["metadata"] = metadata
    for event in events:
        if isinstance(event, Retrieved):
            grounded = any(isinstance(other, Citations) and other.citations for other in events)
            folded["sherlock"] = grounding_object(event.retrieval, grounded=grounded)
    return folded


def folded_message(events: Sequence[AnswerEvent], choice: int, base_url: str) -> AnswerMessage:
    text = [event.text for event in events if isinstance(event, TextDelta) and event.choice == choice]
    refusal = [event.text for event in events if isinstance(event, RefusalDelta) and event.choice == choice]
    calls = folded_tool_calls(events, choice)
    message: AnswerMessage = {
        "role": "assistant",
        "content": None if not text and (refusal or calls) else "".join(text),
        "refusal": "".join(refusal) if refusal else None,
        "annotations": [
            annotation(citation, base_url)
            for event in events
            if isinstance(event, Citations) and event.choice == choice
            for citation in event.citations
        ],
    }
    if calls:
        message["tool_calls"] = calls
    return message


def folded_tool_calls(events: Sequence[AnswerEvent], choice: int) -> list[ToolCall]:
    calls: dict[int, ToolCall] = {}
    for event in events:
        if not isinstance(event, ToolCallDelta) or event.choice != choice:
            continue
        if event.index not in calls:
            calls[event.index] = {
                "id": event.id or f"call_{secrets.token_hex(12)}",
                "type": "function",
                "function": {"name": event.name or "", "arguments": ""},
            }
        calls[event.index]["function"]["arguments"] += event.arguments
    return [calls[index] for index in sorted(calls)]


def folded_logprobs(events: Sequence[AnswerEvent], choice: int) -> dict[str, Any] | None:
    pieces = [
        event.logprobs
        for event in events
        if isinstance(event, TextDelta) and event.choice == choice and event.logprobs is not None
    ]
    if not pieces:
        return None
    return {
        name: [entry for piece in pieces for entry in piece.get(name) or ()] or None
        for name in ("content", "refusal")
    }
