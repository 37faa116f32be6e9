"""What every `ResponseStore` does, in memory and in PostgreSQL."""

import json
import secrets
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.fakes_responses import InMemoryResponses

from sherlock.rag.adapters import postgres_responses
from sherlock.rag.adapters.postgres import Database
from sherlock.rag.adapters.postgres_responses import PostgresResponses
from sherlock.rag.domain.errors import Conflict, InvalidRequest, NotFound
from sherlock.rag.domain.models import RESPONSE_LIFE_S, PageRequest, ResponseItem, StoredResponse, WorkspaceId
from sherlock.rag.domain.ports import ResponseStore

NOW = int(time.time())
UNKNOWN = ["resp_nobody", "", "nul\0", "half \ud800 pair"]


@pytest.fixture(params=["memory", "postgres"])
def store(request: pytest.FixtureRequest, database: Database) -> ResponseStore:
    return InMemoryResponses() if request.param == "memory" else PostgresResponses(database)


def an_item(text: Any, type: str = "message") -> ResponseItem:
    return {"id": f"msg_{secrets.token_hex(6)}", "type": type, "content": text}


def a_response(
    workspace: WorkspaceId, previous: StoredResponse | None = None, **changes: Any
) -> StoredResponse:
    given = {
        "id": f"resp_{secrets.token_hex(6)}",
        "workspace_id": workspace,
        "created_at": NOW,
        "previous_id": previous.id if previous else None,
        "body": {"object": "response", "temperature": 1.0, "max_output_tokens": 16},
        "input": (an_item("asked"),),
        "output": (an_item("found", "file_search_call"), an_item("answered")),
    }
    return StoredResponse(**(given | changes))


async def stored(store: ResponseStore, workspace: WorkspaceId, *args: Any, **changes: Any) -> StoredResponse:
    response = a_response(workspace, *args, **changes)
    await store.add(response)
    return response


async def test_a_response_comes_back_as_it_was_added(store: ResponseStore, workspace: WorkspaceId) -> None:
    first = await stored(store, workspace)
    second = await stored(store, workspace, first, input=(), output=())
    assert [await store.get(workspace, r.id) for r in (first, second)] == [first, second]
    assert type((await store.get(workspace, first.id)).body["max_output_tokens"]) is int
    with pytest.raises(Conflict):
        await store.add(a_response(workspace, id=first.id))
    assert await store.get(workspace, first.id) == first


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec=None)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(json_values)
async def test_any_text_is_kept(store: ResponseStore, workspace: WorkspaceId, value: Any) -> None:
    item = an_item([value, "nul \0", "half \ud800 pair"])
    response = await stored(store, workspace, body={"metadata": value}, input=(item,))
    assert await store.get(workspace, response.id) == response
    assert (await store.context(workspace, response.id))[0] == item
    assert await store.find_items(workspace, [item["id"]]) == {item["id"]: item}


async def test_the_context_is_the_whole_conversation(store: ResponseStore, workspace: WorkspaceId) -> None:
    first = await stored(store, workspace)
    second = await stored(store, workspace, first)
    branch = await stored(store, workspace, first)
    assert await store.context(workspace, second.id) == (
        first.input[0], first.output[1], second.input[0], second.output[1],
    )  # fmt: skip
    assert await store.context(workspace, branch.id) == (
        first.input[0], first.output[1], branch.input[0], branch.output[1],
    )  # fmt: skip


async def test_a_conversation_with_a_gap_is_no_context(store: ResponseStore, workspace: WorkspaceId) -> None:
    first = await stored(store, workspace)
    second = await stored(store, workspace, first)
    third = await stored(store, workspace, second)
    await store.delete(workspace, first.id)
    with pytest.raises(NotFound, match=first.id) as refused:
        await store.context(workspace, third.id)
    assert refused.value.param == "previous_response_id"
    assert (await store.get(workspace, third.id)).previous_id == second.id
    page = await store.list_input_items(workspace, third.id, PageRequest(order="asc"))
    assert page.items == (*second.input, *second.output, *third.input)


async def test_a_conversation_too_long_is_refused(
    store: ResponseStore, workspace: WorkspaceId, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await stored(store, workspace)
    second = await stored(store, workspace, first)
    size = len(json.dumps(second.input[0])) + len(json.dumps(second.output[1]))
    for limit, refused in ((2 * size, False), (2 * size - 1, True)):
        monkeypatch.setattr(postgres_responses, "MAX_CONTEXT_BYTES", limit)
        monkeypatch.setattr("tests.fakes_responses.MAX_CONTEXT_BYTES", limit)
        assert len(await store.context(workspace, first.id)) == 2
        if refused:
            with pytest.raises(InvalidRequest) as error:
                await store.context(workspace, second.id)
            assert error.value.code == "context_length_exceeded"
        else:
            assert len(await store.context(workspace, second.id)) == 4


async def test_input_items_are_paged(store: ResponseStore, workspace: WorkspaceId) -> None:
    first = await stored(store, workspace)
    second = await stored(store, workspace, first, input=tuple(an_item(n) for n in range(3)))
    made_from = [*first.input, *first.output, *second.input]
    for order, expected in (("asc", made_from), ("desc", made_from[::-1])):
        seen: list[ResponseItem] = []
        more = True
        while more:
            after = seen[-1]["id"] if seen else None
            page = await store.list_input_items(
                workspace,
                second.id,
                PageRequest(limit=4, order=order, after=after),  # type: ignore[arg-type]
            )
            seen += page.items
            more = page.has_more
        assert seen == expected
    for cursor in (second.output[0]["id"], *UNKNOWN):
        with pytest.raises(NotFound) as unknown:
            await store.list_input_items(workspace, second.id, PageRequest(after=cursor))
        assert unknown.value.param == "after"


async def test_of_an_item_that_was_sent_again_the_newest_is_found(
    store: ResponseStore, workspace: WorkspaceId
) -> None:
    old = an_item("old")
    await stored(store, workspace, input=(old,))
    await stored(store, workspace, input=(old | {"content": "new"},), created_at=NOW + 1)
    found = await store.find_items(workspace, [old["id"], *UNKNOWN])
    assert found == {old["id"]: old | {"content": "new"}}


@pytest.mark.parametrize("unknown", UNKNOWN)
async def test_unknown_ids(store: ResponseStore, workspace: WorkspaceId, unknown: str) -> None:
    for call in (store.get, store.context, store.delete):
        with pytest.raises(NotFound):
            await call(workspace, unknown)
    with pytest.raises(NotFound):
        await store.list_input_items(workspace, unknown, PageRequest())


async def test_a_second_delete_finds_nothing(store: ResponseStore, workspace: WorkspaceId) -> None:
    response = await stored(store, workspace)
    await store.delete(workspace, response.id)
    assert await store.find_items(workspace, [response.input[0]["id"]]) == {}
    with pytest.raises(NotFound):
        await store.delete(workspace, response.id)


async def test_workspaces_are_apart(
    store: ResponseStore, workspace: WorkspaceId, other_workspace: WorkspaceId
) -> None:
    mine = await stored(store, workspace)
    theirs = await stored(store, other_workspace, id=mine.id, input=(an_item("theirs"),))
    assert (await store.get(workspace, mine.id)).input == mine.input
    assert await store.find_items(workspace, [theirs.input[0]["id"]]) == {}
    await store.delete(other_workspace, theirs.id)
    assert await store.get(workspace, mine.id) == mine
    stranger = await stored(store, other_workspace, mine)
    with pytest.raises(NotFound):
        await store.context(other_workspace, stranger.id)
    with pytest.raises(NotFound):
        await store.list_input_items(other_workspace, mine.id, PageRequest())


async def test_what_has_expired_goes_unless_its_conversation_went_on(
    store: ResponseStore, workspace: WorkspaceId
) -> None:
    long_ago = NOW - RESPONSE_LIFE_S - 60
    fresh = await stored(store, workspace)
    alone = [await stored(store, workspace, created_at=long_ago) for _ in range(3)]
    begun = await stored(store, workspace, created_at=long_ago)
    gone_on = await stored(store, workspace, begun)
    assert [await store.delete_expired(2) for _ in range(3)] == [2, 1, 0]
    for response in (fresh, begun, gone_on):
        assert await store.get(workspace, response.id) == response
    for response in alone:
        with pytest.raises(NotFound):
            await store.get(workspace, response.id)
