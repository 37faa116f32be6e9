"""`ChatModel` over any server that speaks OpenAI's chat completions: OpenAI, vLLM, Ollama, LM Studio,
llama.cpp.

Always streamed: one path to maintain, and the only one that can be stopped half way. Sherlock does not
retry; its own callers do, and retries at both ends would multiply.
"""

import asyncio
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from email.utils import parsedate_to_datetime
from typing import Annotated, Any, Literal, TypeGuard, get_args

import httpx2
import openai
from openai import AsyncOpenAI, AsyncStream
from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError
from pydantic_core import to_json

from sherlock.rag import tracing
from sherlock.rag.domain.correlation import request_id
from sherlock.rag.domain.errors import (
    ChatModelMisconfigured,
    ChatModelRateLimited,
    ChatModelUnavailable,
    InvalidRequest,
    ModelNotFound,
    SherlockError,
    UpstreamRejected,
)
from sherlock.rag.domain.models import (
    ChatRequest,
    ComponentStatus,
    Finished,
    FinishReason,
    ModelEvent,
    RefusalDelta,
    TextDelta,
    ToolCallDelta,
    Usage,
)
from sherlock.rag.surrogates import whole_characters

CONNECT_TIMEOUT_S = 10.0
PROBE_TIMEOUT_S = 2.5
"""Less than a readiness check waits, so that a server that hangs is found out and not just waited for."""
MODELS_CACHE_S = 30.0
"""How long the upstream's list of models, and what it says about its health, stays good."""

TURN_BYTES = 256 * 1024
"""How much is written before the event loop has another turn: about a millisecond's work."""

_OURS = ("model", "messages", "stream", "stream_options")
"""Members of the request that this adapter sets itself."""
_UNREACHABLE = "The language model server cannot be reached."
_BROKE_OFF = "The language model server broke off its answer."
_NOT_THE_API = (
    "The language model server does not speak the OpenAI API at this address; "
    "does SHERLOCK_LLM_BASE_URL lack /v1?"
)

MAX_RETRY_AFTER_S = 120.0
"""Official clients sleep for whatever they are told, so an upstream may not tell them anything."""
UNLIKELY = -9999.0
"""How OpenAI writes the log probability of a token that is very unlikely; JSON knows no infinity."""


class OpenAIChatModel:
    """`model` empty: the request's own model is passed on. `api_key` empty: none is sent that means anything.

    `timeout_s` bounds the wait for the first piece of an answer and for each further one.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str = "",
        model: str = "",
        *,
        context_tokens: int = 6000,
        timeout_s: float = 120.0,
    ) -> None:
        self._model = model
        self._context_tokens = context_tokens
        self._timeout_s = timeout_s
        self._client = AsyncOpenAI(
            base_url=base_url,
            api_key=api_key or "none",  # the client insists on one
            timeout=openai.Timeout(timeout_s, connect=min(timeout_s, CONNECT_TIMEOUT_S)),
            max_retries=0,
        )
        self._asks_for_usage = True
        self._listed: list[str] = []
        self._failure: ChatModelUnavailable | None = None
        self._status = ComponentStatus("idle", int(time.time()), model=model or None)
        self._checked_at = float("-inf")
        self._probe: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        return self._model

    @property
    def context_tokens(self) -> int:
        return self._context_tokens

    @asynccontextmanager
    async def stream(self, request: ChatRequest) -> AsyncIterator[AsyncIterator[ModelEvent]]:
        model = self._resolve(request.model)
        _refuse_what_has_no_event(request.options)
        async with AsyncExitStack() as opened:
            first = await self._opened(model, request, opened)
            yield self._events(first, model, request, opened)

    async def models(self) -> list[str]:
        if self._model:
            return [self._model]
        await self._check()
        if self._failure is not None:
            raise type(self._failure)(self._failure.message)
        return list(self._listed)

    async def status(self) -> ComponentStatus:
        await self._check()
        return self._status

    async def close(self) -> None:
        if self._probe is not None:
            self._probe.cancel()
            await asyncio.wait({self._probe})
        await self._client.close()

    def _resolve(self, asked: str) -> str:
        """The upstream's name of the model; the full name and its last part both mean the configured one."""
        if not self._model:
            return asked
        if asked in ("", self._model, self._model.rpartition("/")[2]):
            return self._model
        raise ModelNotFound(asked)

    async def _opened(
        self, model: str, request: ChatRequest, opened: AsyncExitStack, **more: Any
    ) -> AsyncStream[object]:
        """One more answer of the upstream, closed together with `opened`; `more` overrides the options."""
        with _translated(model, self._timeout_s):
            async with asyncio.timeout(self._timeout_s):
                upstream = await self._ask_for_answer(model, request, more)
        opened.push_async_callback(upstream.close)
        return upstream

    async def _ask_for_answer(
        self, model: str, request: ChatRequest, more: Mapping[str, Any]
    ) -> AsyncStream[object]:
        body = {name: value for name, value in request.options.items() if name not in _OURS}
        body |= {"model": model, "stream": True, **more}
        if self._asks_for_usage:
            body["stream_options"] = {"include_usage": True}
        try:
            # `chat.completions.create` would walk through every message on the event loop, to bring it into
            # the shape it has already.
            return await self._client.post(
                "/chat/completions",
                cast_to=object,
                content=await _as_json(body, request.messages),
                options={"headers": _correlation()},
                stream=True,
                stream_cls=AsyncStream[object],
            )
        except openai.APIStatusError as error:
            refused = error.status_code in (400, 422) and "stream_options" in str(error.body)
            if not (refused and self._asks_for_usage):
                raise
            self._asks_for_usage = False  # an older server; the caller counts tokens then
            return await self._ask_for_answer(model, request, more)

    async def _events(
        self, upstream: AsyncStream[object], model: str, request: ChatRequest, opened: AsyncExitStack
    ) -> AsyncIterator[ModelEvent]:
        """The events of as many choices as were asked for.

        Many servers answer one choice however many are asked for; what is missing is asked for again. Every
        answer brings at least one choice, so there are at most as many requests as choices.
        """
        wanted: int = request.options.get("n") or 1
        usages: list[Usage | None] = []
        begun = 0
        while True:
            finished: set[int] = set()
            usage = None
            async for event in self._choices(upstream, model, first=begun, last=wanted - 1):
                if isinstance(event, Usage):
                    usage = event
                    continue
                if isinstance(event, Finished):
                    finished.add(event.choice)
                yield event
            usages.append(usage)
            begun += len(finished)
            if begun == wanted:
                break
            upstream = await self._opened(model, request, opened, n=wanted - begun)
        if known := _all_known(usages):
            yield _sum(known)

    async def _choices(
        self, upstream: AsyncStream[object], model: str, *, first: int, last: int
    ) -> AsyncIterator[ModelEvent]:
        """The events of one answer, its choices numbered from `first`; those after `last` are left out."""
        begun: set[int] = set()
        finished: set[int] = set()
        usage: Usage | None = None
        empty = True
        with _translated(model, self._timeout_s, disconnected=_BROKE_OFF):
            chunks = aiter(upstream)
            while True:
                async with asyncio.timeout(self._timeout_s):
                    chunk = await anext(chunks, None)
                if chunk is None:
                    break
                read = _Chunk.model_validate(chunk)
                empty = False
                if read.usage is not None:
                    usage = _usage(read.usage) or usage
                for choice in read.choices or ():
                    index = first + choice.index
                    if index in finished or not first <= index <= last:
                        continue
                    begun.add(index)
                    for event in _choice_events(choice, index):
                        yield event
                    if choice.finish_reason:
                        finished.add(index)
        if empty and "event-stream" not in upstream.response.headers.get("content-type", ""):
            raise ChatModelMisconfigured(_NOT_THE_API)
        # A cut connection looks like an end; only this tells.
        if finished != set(range(first, max(begun, default=first) + 1)):
            raise ChatModelUnavailable(_BROKE_OFF)
        if usage is not None:
            yield usage

    async def _check(self) -> None:
        """Know how the upstream does: asked just now, or by whoever is asking it at this moment."""
        if time.monotonic() - self._checked_at < MODELS_CACHE_S:
            return
        if self._probe is None or self._probe.done():
            self._probe = asyncio.create_task(self._ask())
        await asyncio.shield(self._probe)  # a caller that gives up takes the answer from nobody

    async def _ask(self) -> None:
        """Ask the upstream for its models, which also tells whether it works."""
        self._failure = None
        try:
            with _translated(self._model, PROBE_TIMEOUT_S):
                async with asyncio.timeout(PROBE_TIMEOUT_S):
                    page = await self._client.get("/models", cast_to=object)
                if not isinstance(page, Mapping):
                    raise ChatModelMisconfigured(_NOT_THE_API)
                self._listed = [model.id for model in _Models.model_validate(page).data or ()]
        except ChatModelUnavailable as error:
            self._failure = error
        except SherlockError:
            pass  # it answers, but has no such list
        reason = self._failure.message if self._failure else None
        state: Literal["ready", "unavailable"] = "unavailable" if reason else "ready"
        if (state, reason) != (self._status.state, self._status.reason):
            self._status = ComponentStatus(state, int(time.time()), reason, self._model or None)
        self._checked_at = time.monotonic()


def _refuse_what_has_no_event(options: Mapping[str, Any]) -> None:
    """Raises `InvalidRequest` for what the upstream would answer in a form that Sherlock cannot pass on."""
    if options.get("functions"):
        raise InvalidRequest("'functions' is not supported; use 'tools'.", param="functions")
    if any(tool.get("type") != "function" for tool in options.get("tools") or ()):
        raise InvalidRequest("Only tools of type 'function' are passed to the language model.", param="tools")


def _correlation() -> dict[str, str]:
    """What lets the upstream's logs and spans join the request's."""
    known = request_id.get()
    return tracing.headers() | ({"x-request-id": known} if known else {})


async def _as_json(body: Mapping[str, Any], messages: Sequence[Mapping[str, Any]]) -> bytes:
    """Message by message, with turns for others in between: a thread would hold the interpreter as well."""
    written, since_a_turn = [], 0
    for message in messages:
        written.append(to_json(message))
        since_a_turn += len(written[-1])
        if since_a_turn > TURN_BYTES:
            since_a_turn = 0
            await asyncio.sleep(0)
    return b'%b,"messages":[%b]}' % (to_json(body)[:-1], b",".join(written))


# ── what the upstream says ──────────────────────────────────────────────────


def _unicode(value: object) -> object:
    """JSON can write half a surrogate pair, UTF-8 cannot."""
    if not isinstance(value, str):
        return value
    return whole_characters(value)


def _finite(value: object) -> object:
    return UNLIKELY if value is None or (isinstance(value, float) and not math.isfinite(value)) else value


def _listed(value: object) -> object:
    return [] if value is None else value


_Text = Annotated[str, BeforeValidator(_unicode)]


class _Said(BaseModel):
    """A part of an answer. What is not read is passed over, and what is may be missing, but has its type."""

    model_config = ConfigDict(strict=True)


class _Function(_Said):
    name: _Text | None = None
    arguments: _Text | None = None


class _Call(_Said):
    index: int | None = None
    id: _Text | None = None
    function: _Function | None = None


class _Delta(_Said):
    content: _Text | None = None
    refusal: _Text | None = None
    tool_calls: list[_Call] | None = None


class _Token(_Said):
    token: _Text
    logprob: Annotated[float, BeforeValidator(_finite)]
    bytes: list[int] | None = None


class _LikelyToken(_Token):
    top_logprobs: Annotated[list[_Token], BeforeValidator(_listed)] = []


class _Logprobs(_Said):
    content: list[_LikelyToken] | None = None
    refusal: list[_LikelyToken] | None = None


class _Choice(_Said):
    index: int = 0
    delta: _Delta | None = None
    logprobs: _Logprobs | None = None
    finish_reason: str | None = None


class _Chunk(_Said):
    choices: list[_Choice] | None = None
    usage: Any = None


class _Model(_Said):
    id: _Text


class _Models(_Said):
    data: list[_Model] | None = None


_REASONS: Mapping[str, FinishReason] = {reason: reason for reason in get_args(FinishReason)}
"""Servers add reasons of their own ("eos", "abort"); callers know OpenAI's."""
_DETAILS = ("prompt_tokens_details", "completion_tokens_details")


def _choice_events(choice: _Choice, index: int) -> Iterator[ModelEvent]:
    delta = choice.delta
    logprobs = choice.logprobs.model_dump() if choice.logprobs else None
    if delta is not None:
        if delta.content or (logprobs and logprobs["content"]):
            yield TextDelta(delta.content or "", index, logprobs)
        if delta.refusal:
            yield RefusalDelta(delta.refusal, index)
        for position, call in enumerate(delta.tool_calls or ()):
            function = call.function or _Function()
            yield ToolCallDelta(
                index=position if call.index is None else call.index,
                id=call.id,
                name=function.name,
                arguments=function.arguments or "",
                choice=index,
            )
    if choice.finish_reason:
        yield Finished(_REASONS.get(choice.finish_reason, "stop"), index)


def _usage(given: Any) -> Usage | None:
    """`None` where figures are missing or are none: the caller counts then."""
    if not isinstance(given, Mapping):
        return None
    prompt, answer = given.get("prompt_tokens"), given.get("completion_tokens")
    if not (_is_count(prompt) and _is_count(answer)):
        return None
    details = {
        name: {detail: count for detail, count in part.items() if _is_count(count)}
        for name in _DETAILS
        if isinstance(part := given.get(name), Mapping)
    }
    return Usage(prompt, answer, details)


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _all_known(usages: Sequence[Usage | None]) -> list[Usage]:
    """The usages; none where one of them is not known, since their sum would be too small."""
    known = [usage for usage in usages if usage is not None]
    return known if len(known) == len(usages) else []


def _sum(usages: Sequence[Usage]) -> Usage:
    details: dict[str, Counter[str]] = {}
    for usage in usages:
        for name, part in usage.details.items():
            details.setdefault(name, Counter()).update(part)
    return Usage(
        sum(usage.prompt_tokens for usage in usages),
        sum(usage.completion_tokens for usage in usages),
        {name: dict(part) for name, part in details.items()},
    )


# ── errors ──────────────────────────────────────────────────────────────────


@contextmanager
def _translated(model: str, timeout_s: float, disconnected: str = _UNREACHABLE) -> Iterator[None]:
    """The one place where the client's errors become Sherlock's; only a rejection keeps its own words."""
    try:
        yield
    except (TimeoutError, openai.APITimeoutError):
        raise ChatModelUnavailable(
            f"The language model server did not answer within {timeout_s:g} s."
        ) from None
    except openai.APIConnectionError as error:
        raise ChatModelUnavailable(disconnected) from error
    except openai.APIStatusError as error:
        raise _from_status(error, model) from None
    except openai.APIError as error:  # an error event inside the stream, or an answer that is not the API's
        raise ChatModelUnavailable("The language model server reported an error.") from error
    except ValidationError:
        raise ChatModelUnavailable(
            "The language model server sent an answer that is not one of the OpenAI API."
        ) from None
    except (httpx2.HTTPError, ValueError) as error:  # the client lets these through while it reads a stream
        raise ChatModelUnavailable(_BROKE_OFF) from error


def _from_status(error: openai.APIStatusError, model: str) -> SherlockError:
    status = error.status_code
    body: Mapping[str, Any] = error.body if isinstance(error.body, dict) else {}
    message = body.get("message")
    if status == 429:
        return ChatModelRateLimited(
            "The language model server is receiving too many requests.",
            retry_after_s=_retry_after_s(error.response.headers),
        )
    if status in (401, 403):
        return ChatModelMisconfigured("The language model server refused Sherlock's key.")
    if body.get("code") == "model_not_found" or (status == 404 and message):
        return ModelNotFound(model)
    if status == 404:
        return ChatModelMisconfigured(
            "The language model server does not know the route; check its base URL."
        )
    if status == 408 or not 400 <= status < 500:
        return ChatModelUnavailable(f"The language model server failed (status {status}).")
    return UpstreamRejected(
        _text_or_none(message) or f"The language model server rejected the request (status {status}).",
        param=_text_or_none(body.get("param")),
        code=_text_or_none(body.get("code")),
    )


def _text_or_none(value: object) -> str | None:
    return str(_unicode(value)) if isinstance(value, str) and value else None


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Seconds, from `retry-after` as seconds or as a date (RFC 9110, section 10.2.3)."""
    value = headers.get("retry-after", "")
    try:
        wait_s = float(value)
    except ValueError:
        try:
            wait_s = parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, OverflowError):
            return None
    return min(max(0.0, wait_s), MAX_RETRY_AFTER_S) if math.isfinite(wait_s) else None
