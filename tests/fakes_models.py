"""In-memory models: deterministic, told beforehand what to say or how to fail.

Each passes the behaviour suite of its port in `tests/ports`.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from sherlock.rag.domain.errors import ChatModelUnavailable, ModelNotFound, RerankerUnavailable, SherlockError
from sherlock.rag.domain.models import (
    ChatRequest,
    ComponentStatus,
    Finished,
    ModelEvent,
    TextDelta,
    Usage,
)

FEWEST_RERANKED = 4


def _words(text: str) -> list[str]:
    return text.split()


def _texts(request: ChatRequest) -> list[str]:
    """The text of each message, whether its content is a string or a list of parts."""
    texts = []
    for message in request.messages:
        content = message.get("content") or ""
        if not isinstance(content, str):
            content = " ".join(part.get("text", "") for part in content)
        texts.append(content)
    return texts


@dataclass
class FakeChatModel:
    """Says `reply`, or repeats the last message, word by word; counts words as tokens.

    `events` replaces the whole answer. `error` is raised on entry, or after `error_after` events when that is
    set. What it was asked stands in `requests`; `stopped` counts contexts that were left before the end.
    """

    reply: str | None = None
    events: Sequence[ModelEvent] | None = None
    error: SherlockError | None = None
    error_after: int | None = None
    name: str = "fake-model"
    context_tokens: int = 6000
    delay_s: float = 0.0
    """How long it thinks before it says anything."""
    requests: list[ChatRequest] = field(default_factory=list)
    stopped: int = 0

    @asynccontextmanager
    async def stream(self, request: ChatRequest) -> AsyncIterator[AsyncIterator[ModelEvent]]:
        self.requests.append(request)
        if request.model not in ("", self.name, self.name.rpartition("/")[2]):
            raise ModelNotFound(request.model)
        if self.error is not None and self.error_after is None:
            raise self.error
        ended = False

        async def events() -> AsyncGenerator[ModelEvent, None]:
            nonlocal ended
            await asyncio.sleep(self.delay_s)
            for position, event in enumerate(self._answer(request)):
                if self.error is not None and position == self.error_after:
                    raise self.error
                yield event
            if self.error is not None:
                raise self.error
            ended = True

        iterator = events()
        try:
            yield iterator
        finally:
            await iterator.aclose()
            self.stopped += not ended

    def _answer(self, request: ChatRequest) -> list[ModelEvent]:
        if self.events is not None:
            return list(self.events)
        texts = _texts(request)
        words = _words(self.reply if self.reply is not None else texts[-1])
        limit = request.options.get("max_completion_tokens") or request.options.get("max_tokens")
        cut = words if limit is None else words[:limit]
        deltas = [TextDelta(word if position == 0 else f" {word}") for position, word in enumerate(cut)]
        prompt_tokens = sum(len(_words(text)) for text in texts)
        finished = Finished("stop" if len(cut) == len(words) else "length")
        return [*deltas, finished, Usage(prompt_tokens, len(cut))]

    async def models(self) -> list[str]:
        return [self.name]

    async def status(self) -> ComponentStatus:
        if isinstance(self.error, ChatModelUnavailable):
            return ComponentStatus("unavailable", 0, self.error.message, self.name)
        return ComponentStatus("ready", 0, model=self.name)


@dataclass
class FakeReranker:
    """Scores a text by the share of the query's words it holds. A text costs `cost_s` of the budget."""

    cost_s: float = 0.001
    error: RerankerUnavailable | None = None
    calls: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)

    async def rerank(self, query: str, texts: Sequence[str], budget_s: float) -> list[float]:
        self.calls.append((query, tuple(texts)))
        if self.error is not None:
            raise self.error
        affordable = min(len(texts), int(budget_s / self.cost_s))
        if affordable < min(FEWEST_RERANKED, len(texts)):
            return []
        wanted = set(query.lower().split())
        return [
            len(wanted & set(text.lower().split())) / len(wanted) if wanted else 0.0
            for text in texts[:affordable]
        ]

    async def status(self) -> ComponentStatus:
        if self.error is not None:
            return ComponentStatus("unavailable", 0, self.error.message, "fake-reranker")
        return ComponentStatus("ready", 0, model="fake-reranker")
