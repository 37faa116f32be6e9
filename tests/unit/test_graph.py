"""The chat use case on its own: order of events, what the model is shown, and how it is stopped."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from tests.fakes_models import FakeChatModel

from sherlock.graph import Chat, Written
from sherlock.rag.domain.errors import (
    ChatModelNotConfigured,
    ChatModelUnavailable,
    ModelNotFound,
    RagDisabled,
)
from sherlock.rag.domain.models import (
    DEFAULT_WORKSPACE,
    AnswerEvent,
    ChatRequest,
    Done,
    FileSearch,
    Finished,
    ModelEvent,
    RefusalDelta,
    SearchOptions,
    TextDelta,
    ToolCallDelta,
    Usage,
)
from sherlock.rag.tokens import Cl100kCounter

COUNTER = Cl100kCounter()
ASKED = ChatRequest("fake-model", ({"role": "user", "content": "How are you?"},))


def chat(model: FakeChatModel | None, *, trim_history: bool = False) -> Chat:
    return Chat(model, None, COUNTER, system_prompt="Cite.", trim_history=trim_history)


async def answer(chat: Chat, request: ChatRequest = ASKED) -> list[AnswerEvent]:
    return await collected(chat.answer(DEFAULT_WORKSPACE, request))


async def collected(events: AsyncIterator[AnswerEvent]) -> list[AnswerEvent]:
    return [event async for event in events]


async def test_events_of_a_plain_answer() -> None:
    model = FakeChatModel(reply="Very well")
    assert await answer(chat(model)) == [
        TextDelta("Very"),
        TextDelta(" well"),
        Finished("stop"),
        Done(Usage(3, 2)),
    ]
    assert model.requests == [ASKED]


async def test_usage_is_counted_where_the_model_gives_none() -> None:
    call = ToolCallDelta(0, "call_1", "weigh", '{"animal": "mouse"}')
    model = FakeChatModel(events=[TextDelta("Very well"), call, Finished("tool_calls")])
    done = (await answer(chat(model)))[-1]
    assert isinstance(done, Done)
    assert done.usage.prompt_tokens == COUNTER.count("How are you?") + 4
    assert done.usage.completion_tokens == COUNTER.count('Very wellweigh{"animal": "mouse"}')


async def test_tokens_are_not_counted_on_the_event_loop() -> None:
    class Watched(Cl100kCounter):
        threads: ClassVar[set[int]] = set()

        def count(self, text: str) -> int:
            self.threads.add(threading.get_ident())
            return super().count(text)

    model = FakeChatModel(events=[TextDelta("Very well"), Finished("stop")])
    await answer(Chat(model, None, Watched(), system_prompt="Cite.", trim_history=False))
    assert Watched.threads
    assert threading.get_ident() not in Watched.threads


async def test_history_is_trimmed_for_a_small_model_only() -> None:
    turns = [
        {"role": role, "content": f"{turn} " + "word " * 50}
        for turn in range(20)
        for role in ("user", "assistant")
    ]
    request = ChatRequest("fake-model", (*turns, {"role": "user", "content": "And now?"}))
    small, gateway = FakeChatModel(context_tokens=300), FakeChatModel(context_tokens=300)
    await answer(chat(small, trim_history=True), request)
    await answer(chat(gateway), request)
    assert gateway.requests[0].messages == request.messages
    kept = small.requests[0].messages
    assert kept == request.messages[-len(kept) :]
    assert 1 < len(kept) < 10


@pytest.mark.parametrize(
    ("configured", "asked", "found"),
    [
        ("fake-model", "fake-model", "fake-model"),
        ("org/fake-model", "fake-model", "org/fake-model"),
        ("org/fake-model", "org/fake-model", "org/fake-model"),
        ("org/fake-model", "org", None),
        ("fake-model", "FAKE-MODEL", None),
        ("", "anything/at-all", "anything/at-all"),
    ],
)
def test_names_of_the_model(configured: str, asked: str, found: str | None) -> None:
    use_case = chat(FakeChatModel(name=configured))
    if found is None:
        with pytest.raises(ModelNotFound):
            use_case.model_for(asked)
    else:
        assert use_case.model_for(asked) == found


async def test_what_is_missing_is_said() -> None:
    with pytest.raises(ChatModelNotConfigured):
        await answer(chat(None))
    search = FileSearch(("vs_1",), SearchOptions(limit=5, alpha=0.7))
    with pytest.raises(RagDisabled):
        await answer(chat(FakeChatModel()), ChatRequest("fake-model", (), search))


def test_a_notice_stands_once_before_the_text_of_each_choice() -> None:
    call = ToolCallDelta(0, "call_1", "weigh", "{}", choice=2)
    events = [
        TextDelta(""),
        TextDelta("Pa"),
        TextDelta("Oslo", choice=1),
        call,
        RefusalDelta("No.", choice=3),
        TextDelta("ris"),
        *(Finished("stop", choice) for choice in range(5)),
    ]
    written = Written(frozenset(), "None found.")
    assert [shown for event in events for shown in written.add(event)] == [
        TextDelta(""),
        TextDelta("None found.\n\n"),
        TextDelta("Pa"),
        TextDelta("None found.\n\n", choice=1),
        TextDelta("Oslo", choice=1),
        call,
        RefusalDelta("No.", choice=3),
        TextDelta("ris"),
        TextDelta("None found.", choice=4),
    ]


async def test_errors_come_through_where_they_happen() -> None:
    model = FakeChatModel(reply="one two", error=ChatModelUnavailable("It broke off."), error_after=1)
    events = chat(model).answer(DEFAULT_WORKSPACE, ASKED)
    assert await anext(events) == TextDelta("one")
    with pytest.raises(ChatModelUnavailable):
        await anext(events)


async def test_a_run_that_others_cancel_is_no_end_and_no_endless_wait() -> None:
    events = chat(Endless()).answer(DEFAULT_WORKSPACE, ASKED)
    before = asyncio.all_tasks()
    assert await anext(events) == TextDelta("on and ")
    (run,) = [task for task in asyncio.all_tasks() - before if "_run" in repr(task.get_coro())]
    run.cancel()
    with pytest.raises(ChatModelUnavailable, match="broken off"):
        await asyncio.wait_for(collected(events), 5)


async def test_who_closes_an_answer_can_be_cancelled() -> None:
    stopping, may_stop = asyncio.Event(), asyncio.Event()

    class SlowToStop(Chat):
        async def _run(self, *given: Any) -> None:
            try:
                await super()._run(*given)
            finally:
                stopping.set()
                await may_stop.wait()

    slow = SlowToStop(Endless(), None, COUNTER, system_prompt="Cite.", trim_history=False)
    events = slow.answer(DEFAULT_WORKSPACE, ASKED)
    await anext(events)
    closing = asyncio.ensure_future(events.aclose())
    await stopping.wait()
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    may_stop.set()


@dataclass
class Endless(FakeChatModel):
    """Says something new every millisecond, until it is stopped."""

    said: int = 0

    @asynccontextmanager
    async def stream(self, request: ChatRequest) -> AsyncIterator[AsyncIterator[ModelEvent]]:
        async def events() -> AsyncIterator[ModelEvent]:
            while True:
                self.said += 1
                yield TextDelta("on and ")
                await asyncio.sleep(0.001)

        iterator = events()
        try:
            yield iterator
        finally:
            await iterator.aclose()
            self.stopped += 1


async def test_closing_the_answer_stops_the_model() -> None:
    model = Endless()
    events = chat(model).answer(DEFAULT_WORKSPACE, ASKED)
    async for _ in events:
        break
    await events.aclose()
    assert model.stopped == 1
    said = model.said
    await asyncio.sleep(0.05)
    assert model.said == said
