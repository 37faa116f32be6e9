"""The use case on its own: what is stored and when, and what becomes of an answer whose store is down."""

from dataclasses import replace

import pytest
from tests.fakes_models import FakeChatModel
from tests.fakes_responses import InMemoryResponses

from sherlock.graph import Chat
from sherlock.rag.domain.errors import ChatModelUnavailable, DatabaseUnavailable, NotFound, RagDisabled
from sherlock.rag.domain.models import DEFAULT_WORKSPACE, PageRequest, ResponseTurn
from sherlock.rag.tokens import Cl100kCounter
from sherlock.response_object_schemas import ResponseStreamEvent
from sherlock.response_schemas import CreateResponseRequest
from sherlock.response_writer import ResponseWriter
from sherlock.responses import Responses

HERE = DEFAULT_WORKSPACE
ASKED = CreateResponseRequest(input="one two three", model="fake-model")
TURN = ASKED.to_domain("fake-model", 5, 0.7)


def a_writer(previous: str | None = None) -> ResponseWriter:
    asked = ASKED.model_copy(update={"previous_response_id": previous})
    return ResponseWriter(asked.echo("fake-model", 5, 0.7, stores=True), frozenset())


def use_case(model: FakeChatModel, store: InMemoryResponses | None) -> Responses:
    chat = Chat(model, None, Cl100kCounter(), system_prompt="", trim_history=False)
    return Responses(chat, store)


async def events_of(responses: Responses, turn: ResponseTurn = TURN) -> list[ResponseStreamEvent]:
    writer = a_writer(turn.previous_response_id)
    return [event async for event in responses.answer(HERE, turn, writer)]


async def test_it_is_stored_when_the_last_event_comes() -> None:
    store = InMemoryResponses()
    responses = use_case(FakeChatModel(), store)
    seen = [(event, len(store.responses)) async for event in responses.answer(HERE, TURN, a_writer())]
    assert [stored for _, stored in seen] == [0] * (len(seen) - 1) + [1]
    last = seen[-1][0]["response"]
    kept = await responses.get(HERE, last["id"])
    assert kept.body | {"output": list(kept.output)} == last
    assert kept.input == TURN.input


async def test_an_answer_whose_store_is_down_is_given_and_says_so() -> None:
    store = InMemoryResponses(down=True)
    responses = use_case(FakeChatModel(), store)
    last = (await events_of(responses))[-1]
    assert last["type"] == "response.completed"
    assert last["response"]["output"][0]["content"][0]["text"] == "one two three"
    assert last["response"]["store"] is False
    assert last["response"]["sherlock"]["degraded"] == ["store: The database is unavailable."]
    with pytest.raises(DatabaseUnavailable):
        await events_of(responses, replace(TURN, previous_response_id="resp_1"))


async def test_what_is_left_or_fails_half_way_is_not_stored() -> None:
    store, model = InMemoryResponses(), FakeChatModel()
    responses = use_case(model, store)
    writer = a_writer()
    events = responses.answer(HERE, TURN, writer)
    async for _ in events:
        if writer.begun:
            break
    await events.aclose()
    model.error, model.error_after = ChatModelUnavailable("It broke off."), 1
    with pytest.raises(ChatModelUnavailable):
        await events_of(responses)
    assert not store.responses


async def test_nothing_is_stored_that_should_not_be() -> None:
    store = InMemoryResponses()
    await events_of(use_case(FakeChatModel(), store), replace(TURN, store=False))
    assert not store.responses
    alone = use_case(FakeChatModel(), None)
    assert (await events_of(alone))[-1]["type"] == "response.completed"
    for call in (
        alone.get(HERE, "resp_1"),
        alone.delete(HERE, "resp_1"),
        alone.input_items(HERE, "resp_1", PageRequest()),
        events_of(alone, replace(TURN, previous_response_id="resp_1")),
    ):
        with pytest.raises(RagDisabled):
            await call


async def test_a_model_is_not_asked_about_a_conversation_that_is_not_there() -> None:
    model = FakeChatModel()
    with pytest.raises(NotFound):
        await events_of(use_case(model, InMemoryResponses()), replace(TURN, previous_response_id="resp_1"))
    assert not model.requests


async def test_an_item_that_comes_twice_gets_an_id_of_its_own() -> None:
    store = InMemoryResponses()
    responses = use_case(FakeChatModel(), store)
    twice = replace(TURN, input=TURN.input * 2)
    first = (await events_of(responses, twice))[-1]["response"]["id"]
    second = (await events_of(responses, replace(twice, previous_response_id=first)))[-1]["response"]["id"]
    page = await responses.input_items(HERE, second, PageRequest(limit=100))
    assert len({item["id"] for item in page.items}) == len(page.items) == 5
