"""`ChatModel` over any server that speaks OpenAI's chat completions: OpenAI, vLLM, Ollama, LM Studio,
llama.cpp.

Always streamed: one path to maintain, and the only one that can be stopped half way. Sherlock does not
retry; its own callers do, and retries at both ends would multiply.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from email.utils import parsedate_to_datetime
from typing import Any, Literal, cast, get_args

import httpx2
import openai
from openai import AsyncOpenAI, AsyncStream
from openai.types import CompletionUsage
from openai.types.chat import ChatCompletionChunk
from openai.types.chat.chat_completion_chunk import Choice

from sherlock.rag.domain.errors import (
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

CONNECT_TIMEOUT_S = 10.0
PROBE_TIMEOUT_S = 2.5
"""Less than a readiness check waits, so that a server that hangs is found out and not just waited for."""
MODELS_CACHE_S = 30.0
"""How long the upstream's list of models, and what it says about its health, stays good."""

_OURS = ("model", "messages", "stream", "stream_options")
"""Members of the request that this adapter sets itself."""
_UNREACHABLE = "The language model server cannot be reached."
_BROKE_OFF = "The language model server broke off its answer."


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
        with _translated(model, self._timeout_s):
            async with asyncio.timeout(self._timeout_s):
                upstream = await self._open(model, request)
        try:
            yield self._events(upstream, model, choices=request.options.get("n") or 1)
        finally:
            await upstream.close()

    async def models(self) -> list[str]:
        if self._model:
            return [self._model]
        await self._check()
        if self._status.state == "unavailable":
            raise ChatModelUnavailable(self._status.reason or _UNREACHABLE)
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

    async def _open(self, model: str, request: ChatRequest) -> AsyncStream[ChatCompletionChunk]:
        options = {name: value for name, value in request.options.items() if name not in _OURS}
        if self._asks_for_usage:
            options["stream_options"] = {"include_usage": True}
        try:
            return await self._client.chat.completions.create(
                model=model,
                messages=cast(Any, [dict(message) for message in request.messages]),
                stream=True,
                extra_body=options,  # as they came: the client's types know only OpenAI's own
            )
        except openai.APIStatusError as error:
            refused = error.status_code in (400, 422) and "stream_options" in str(error.body)
            if not (refused and self._asks_for_usage):
                raise
            self._asks_for_usage = False  # an older server; the caller counts tokens then
            return await self._open(model, request)

    async def _events(
        self, upstream: AsyncStream[ChatCompletionChunk], model: str, choices: int
    ) -> AsyncIterator[ModelEvent]:
        usage: Usage | None = None
        finished: set[int] = set()
        chunks = aiter(upstream)
        while True:
            with _translated(model, self._timeout_s, disconnected=_BROKE_OFF):
                async with asyncio.timeout(self._timeout_s):
                    chunk = await anext(chunks, None)
            if chunk is None:
                break
            if chunk.usage is not None:
                usage = _usage(chunk.usage)
            for choice in chunk.choices or ():
                for event in _choice_events(choice):
                    if isinstance(event, Finished):
                        if event.choice in finished:
                            continue
                        finished.add(event.choice)
                    yield event
        if len(finished) < choices:  # a cut connection looks like an end; only this tells
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
        reason = None
        try:
            with _translated(self._model, PROBE_TIMEOUT_S):
                async with asyncio.timeout(PROBE_TIMEOUT_S):
                    page = await self._client.models.list()
            self._listed = [model.id for model in page.data or ()]
        except ChatModelUnavailable as error:
            reason = error.message
        except SherlockError:
            pass  # it answers, but has no such list
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


def _choice_events(choice: Choice) -> Iterator[ModelEvent]:
    delta = choice.delta
    logprobs = choice.logprobs.model_dump() if choice.logprobs else None
    if delta is not None:
        if delta.content or (logprobs and logprobs.get("content")):
            yield TextDelta(delta.content or "", choice.index, logprobs)
        if delta.refusal:
            yield RefusalDelta(delta.refusal, choice.index)
        for call in delta.tool_calls or ():
            function = call.function
            yield ToolCallDelta(
                index=call.index,
                id=call.id,
                name=function.name if function else None,
                arguments=(function.arguments if function else None) or "",
                choice=choice.index,
            )
    if choice.finish_reason:
        # Servers add reasons of their own ("eos", "abort"); callers know OpenAI's.
        known = choice.finish_reason in get_args(FinishReason)
        yield Finished(choice.finish_reason if known else "stop", choice.index)


def _usage(usage: CompletionUsage) -> Usage:
    details = {
        name: part.model_dump(exclude_none=True)
        for name in ("prompt_tokens_details", "completion_tokens_details")
        if (part := getattr(usage, name)) is not None
    }
    return Usage(usage.prompt_tokens or 0, usage.completion_tokens or 0, details)


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
        return ChatModelUnavailable("The language model server refused Sherlock's key.")
    if body.get("code") == "model_not_found" or (status == 404 and message):
        return ModelNotFound(model)
    if status == 404:
        return ChatModelUnavailable("The language model server does not know the route; check its base URL.")
    if status == 408 or not 400 <= status < 500:
        return ChatModelUnavailable(f"The language model server failed (status {status}).")
    return UpstreamRejected(
        str(message) if message else f"The language model server rejected the request (status {status}).",
        param=_text_or_none(body.get("param")),
        code=_text_or_none(body.get("code")),
    )


def _text_or_none(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Seconds, from `retry-after` as seconds or as a date (RFC 9110, section 10.2.3)."""
    value = headers.get("retry-after")
    if not value:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return None
