"""The chat use case: a LangGraph graph `retrieve -> generate` whose answer is a stream of events.

Plain and streamed answers, HTTP and messages all read the same events.
"""

import asyncio
import json
import logging
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypedDict

from langgraph.graph import END, START, StateGraph
from langgraph.runtime import Runtime
from langsmith import tracing_context

from sherlock.process import cancelled
from sherlock.rag import instruments
from sherlock.rag.application import ground, spans
from sherlock.rag.application.cite import citations
from sherlock.rag.application.markers import MarkerFilter
from sherlock.rag.application.passages import passages
from sherlock.rag.application.relevance import any_relevant
from sherlock.rag.application.retrieve import Retriever
from sherlock.rag.application.rewrite import in_context
from sherlock.rag.domain.errors import (
    ChatModelNotConfigured,
    ChatModelUnavailable,
    ModelNotFound,
    RagDisabled,
    Unavailable,
)
from sherlock.rag.domain.models import (
    AnswerEvent,
    ChatMessage,
    ChatRequest,
    Citations,
    Done,
    Finished,
    Passage,
    RefusalDelta,
    Result,
    Retrieval,
    Retrieved,
    SearchQuery,
    TextDelta,
    ToolCallDelta,
    Usage,
    WorkspaceId,
)
from sherlock.rag.domain.ports import ChatModel, TokenCounter

log = logging.getLogger(__name__)

QUESTION_CHARS = 4_000
"""A pasted document is not searched for as a whole: its end, where the question stands, is."""


class State(TypedDict, total=False):
    results: tuple[Result, ...] | None
    """`None`: the answer is not grounded, since there was nothing to search in or the search failed."""


@dataclass(frozen=True, slots=True)
class Run:
    """One chat, as the nodes see it."""

    workspace_id: WorkspaceId
    request: ChatRequest
    emit: Callable[[AnswerEvent], None]
    """Takes the answer's events. LangGraph's own stream would cost two more tasks for each of them."""


class Chat:
    """Answers chats, from passages of vector stores where a chat has a `file_search` tool.

    `trim_history` drops the oldest turns of a conversation that is longer than the model's `context_tokens`:
    right for a small local model, wrong for a gateway.
    """

    def __init__(
        self,
        chat_model: ChatModel | None,
        retriever: Retriever | None,
        counter: TokenCounter,
        *,
        system_prompt: str,
        trim_history: bool,
    ) -> None:
        self._chat_model = chat_model
        self._retriever = retriever
        self._counter = counter
        self._system_prompt = system_prompt
        self._trim_history = trim_history
        graph = StateGraph(State, context_schema=Run)
        graph.add_node("retrieve", self._retrieve)
        graph.add_node("generate", self._generate)
        graph.add_edge(START, "retrieve")
        graph.add_edge("retrieve", "generate")
        graph.add_edge("generate", END)
        self._graph = graph.compile()

    def model_for(self, name: str) -> str:
        """The full name of the model asked for. Raises `ModelNotFound`, `ChatModelNotConfigured`.

        Where no name is configured the upstream knows its models, and every name passes.
        """
        full = self._model().name
        if not full:
            return name
        if name not in (full, full.rpartition("/")[2]):
            raise ModelNotFound(name)
        return full

    def _model(self) -> ChatModel:
        if self._chat_model is None:
            raise ChatModelNotConfigured
        return self._chat_model

    async def prompt_tokens(self, request: ChatRequest) -> int:
        """cl100k_base tokens of messages, system prompt and tools, without passages: nothing is searched."""
        return await asyncio.to_thread(self._prompt_tokens, request)

    def _prompt_tokens(self, request: ChatRequest) -> int:
        tokens = ground.prompt_tokens(request.messages, self._counter)
        if request.file_search is not None:
            tokens += self._counter.count(self._system_prompt)
        if tools := request.options.get("tools"):
            tokens += self._counter.count(json.dumps(tools))
        return tokens

    async def answer(self, workspace_id: WorkspaceId, request: ChatRequest) -> AsyncGenerator[AnswerEvent]:
        """`Retrieved` first where the chat searches files, then the answer's pieces, `Done` last.

        Closing the iterator stops the model at once. Raises what `ChatModel.stream` raises, `RagDisabled` and
        `ChatModelNotConfigured`; a search that is down is no error: the answer goes on without passages, and
        `Retrieved` says so.
        """
        if request.file_search is not None and self._retriever is None:
            raise RagDisabled
        request = replace(request, model=self.model_for(request.model))
        events: asyncio.Queue[AnswerEvent | None] = asyncio.Queue()
        # A task of its own: when a client goes, the server cancels through a scope that the clean-up of
        # LangGraph's stream does not survive (its issues 8302 and 5682), and the model would go on unheard.
        run = asyncio.create_task(self._run(Run(workspace_id, request, events.put_nowait), events))
        try:
            while (event := await events.get()) is not None:
                yield event
            await asyncio.wait({run})
            if run.cancelled():  # from inside, or its reader would not be here
                raise ChatModelUnavailable("The answer was broken off.")
            run.result()
        finally:
            await cancelled(run)

    async def _run(self, run: Run, events: "asyncio.Queue[AnswerEvent | None]") -> None:
        """Run through the graph, and put `None` into `events` at the end, however it ends."""
        try:
            if run.request.file_search is None:
                # One step is no graph: LangGraph would cost a gateway more than all the rest together.
                await self._generate({"results": None}, Runtime(context=run))
                return
            # LangChain would send what passes here to LangSmith wherever its environment variables are set.
            with tracing_context(enabled=False):
                await self._graph.ainvoke({}, context=run)
        finally:
            events.put_nowait(None)

    # ── nodes ───────────────────────────────────────────────────────────────

    async def _retrieve(self, state: State, runtime: Runtime[Run]) -> State:
        run = runtime.context
        search = run.request.file_search
        messages = run.request.messages
        asked = in_context(messages, ground.question(messages)[-QUESTION_CHARS:])
        if self._retriever is None or search is None or not search.vector_store_ids or not asked:
            run.emit(Retrieved(Retrieval(queries=(), results=())))
            return {"results": None}
        try:
            query = SearchQuery((asked,), search.vector_store_ids, search.options, run.request)
            retrieval = await self._retriever.search(run.workspace_id, query)
        except Unavailable as error:
            instruments.errors.add(1, {"stage": "retrieve"})
            instruments.degraded.add(1, {"part": "retrieve"})
            log.warning("chat goes on without retrieval", extra={"error": type(error).__name__})
            run.emit(Retrieved(Retrieval((asked,), (), degraded=(f"retrieve: {error.message}",))))
            return {"results": None}
        run.emit(Retrieved(retrieval))
        return {"results": retrieval.results}

    async def _generate(self, state: State, runtime: Runtime[Run]) -> State:
        request, emit, results = runtime.context.request, runtime.context.emit, state["results"]
        found: tuple[Passage, ...] = ()
        notice = ""
        grounded = results is not None
        if grounded or self._trim_history:
            # Counting tokens and comparing sentences takes milliseconds a page: not on the event loop.
            request, found, notice = await asyncio.to_thread(self._grounded, request, results)
        asked = request
        written = Written(frozenset(passage.number for passage in found) if grounded else None, notice)
        usage: Usage | None = None
        with spans.stage("chat.generate", passages=len(found)) as span, instruments.model_time("llm"):
            spans.content(span, messages=lambda: json.dumps(asked.messages, default=str))
            waiting_since: float | None = time.perf_counter()
            async with self._model().stream(request) as events:
                async for event in events:
                    if isinstance(event, Usage):
                        usage = event
                        continue
                    if waiting_since is not None:
                        instruments.first_piece.record(time.perf_counter() - waiting_since)
                        waiting_since = None
                    for shown in written.add(event):
                        emit(shown)
                    if isinstance(event, Finished) and found:
                        # Before the choice is finished: nothing may follow a finish reason.
                        cited = await asyncio.to_thread(citations, written.text(event.choice), found)
                        if cited:
                            emit(Citations(cited, event.choice))
                    if isinstance(event, Finished):
                        emit(event)
            spans.content(span, answer=lambda: "".join(written.pieces))
        if usage is None:
            usage = await asyncio.to_thread(self._counted, request, written)
        emit(Done(usage))
        return {}

    def _counted(self, request: ChatRequest, written: "Written") -> Usage:
        """For models that do not say what they used."""
        prompt = ground.prompt_tokens(request.messages, self._counter)
        return Usage(prompt, self._counter.count("".join(written.pieces)))

    def _grounded(
        self, request: ChatRequest, results: tuple[Result, ...] | None
    ) -> tuple[ChatRequest, tuple[Passage, ...], str]:
        """The request as the model gets it, the passages it was given, and what is said before its answer."""
        room = self._model().context_tokens
        messages: list[ChatMessage] = list(request.messages)
        if self._trim_history:
            share = 1.0 if results is None else 1 - ground.PASSAGES_SHARE
            messages = ground.trimmed(messages, self._counter, int(room * share))
        found: tuple[Passage, ...] = ()
        notice = ""
        if results is not None:
            if worth_showing(results, request):
                budget = ground.passage_budget(self._system_prompt, messages, self._counter, room)
                found = passages(results, self._counter, budget)
            instruction = ""
            if not found:
                instruction, notice = ground.nothing_found(messages, request.options)
            messages = ground.grounded_messages(self._system_prompt, found, messages, instruction)
        return replace(request, messages=tuple(messages)), found, notice


def worth_showing(results: Sequence[Result], request: ChatRequest) -> bool:
    """Whether the model is to see what was found; who sets a threshold has said himself what is relevant."""
    search = request.file_search
    if search is None or search.options.score_threshold > 0:
        return bool(results)
    return any_relevant(ground.question(request.messages), results, dense=search.options.alpha > 0)


@dataclass(slots=True)
class Written:
    """What the model has written so far, and what of it is shown."""

    passages: frozenset[int] | None
    """The numbers that a marker may have; `None`: the answer is not grounded, and brackets are brackets."""
    notice: str = ""
    """Stands before the text of each choice, and alone where the model writes nothing."""
    pieces: list[str] = field(default_factory=list)
    """Everything the model wrote, calls of functions included, in the order it came."""
    texts: defaultdict[int, list[str]] = field(default_factory=lambda: defaultdict(list))
    """The pieces of text of each choice, as they are shown."""
    filters: dict[int, MarkerFilter] = field(default_factory=dict)
    begun: set[int] = field(default_factory=set)
    """Choices that have begun: with text, a refusal or a call."""

    def add(self, event: TextDelta | RefusalDelta | ToolCallDelta | Finished) -> list[AnswerEvent]:
        """What there is to show now, but for the end of a choice."""
        return [*self._opening(event), *self._shown(event)]

    def _opening(self, event: TextDelta | RefusalDelta | ToolCallDelta | Finished) -> list[AnswerEvent]:
        if event.choice in self.begun or (isinstance(event, TextDelta) and not event.text):
            return []
        self.begun.add(event.choice)
        if not self.notice or not isinstance(event, TextDelta | Finished):
            return []
        return [TextDelta(self.notice + "\n\n" * isinstance(event, TextDelta), event.choice)]

    def _shown(self, event: TextDelta | RefusalDelta | ToolCallDelta | Finished) -> list[AnswerEvent]:
        if isinstance(event, TextDelta | RefusalDelta):
            self.pieces.append(event.text)
        elif isinstance(event, ToolCallDelta):
            self.pieces.append((event.name or "") + event.arguments)
        if isinstance(event, TextDelta):
            shown = self._filter(event.choice).feed(event.text) if self.passages is not None else event.text
            self.texts[event.choice].append(shown)
            return [replace(event, text=shown)] if shown or event.logprobs or not event.text else []
        if isinstance(event, Finished):
            rest = self.filters[event.choice].end() if event.choice in self.filters else ""
            self.texts[event.choice].append(rest)
            return [TextDelta(rest, event.choice)] if rest else []
        return [event]

    def _filter(self, choice: int) -> MarkerFilter:
        return self.filters.setdefault(choice, MarkerFilter(self.passages or ()))

    def text(self, choice: int) -> str:
        return "".join(self.texts[choice])
