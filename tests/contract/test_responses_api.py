"""`/v1/responses`: the official client on a real socket, every body and stream held against the schema."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from pydantic import BaseModel
from tests.contract.data.check_response import parse_sse, request_violations, stream_violations, violations
from tests.serving import Served

from sherlock.rag.application.ground import NOTICE
from sherlock.rag.domain.errors import ChatModelRateLimited, ChatModelUnavailable, SherlockError
from sherlock.rag.domain.models import Finished, RefusalDelta, TextDelta, ToolCallDelta, Usage

MODEL = "fake-model"
MOUSE = "The harvest mouse weighs six grams. It builds its nest from woven grass, high above the ground."
QUESTION = "How much does the harvest mouse weigh?"
WEIGH: dict[str, Any] = {
    "type": "function",
    "name": "weigh",
    "description": "Weighs an animal.",
    "parameters": {"type": "object", "properties": {"animal": {"type": "string", "minLength": 1}}},
    "strict": False,
}
CALLED = [
    TextDelta("Let me see."),
    ToolCallDelta(0, "call_1", "weigh", ""),
    ToolCallDelta(0, None, None, '{"animal": '),
    ToolCallDelta(1, "call_2", "weigh", '{"animal": "vole"}'),
    ToolCallDelta(0, None, None, '"mouse"}'),
    Finished("tool_calls"),
    Usage(9, 7, {"prompt_tokens_details": {"cached_tokens": 2}}),
]


@pytest.fixture(scope="module")
def http(rag_on: Served) -> Iterator[httpx.Client]:
    with rag_on.http() as client:
        yield client


@pytest.fixture(scope="module")
def store_id(client: openai.OpenAI) -> str:
    store = client.vector_stores.create(name="mice")
    done = client.vector_stores.files.upload_and_poll(
        vector_store_id=store.id, file=("mouse.txt", MOUSE.encode()), attributes={"legs": 4}
    )
    assert done.status == "completed"
    return store.id


@pytest.fixture(autouse=True)
def plain_model(rag_on: Served, rag_off: Served) -> Iterator[None]:
    yield
    for served in (rag_on, rag_off):
        served.chat_model.reply = served.chat_model.events = None
        served.chat_model.error = served.chat_model.error_after = None


def file_search(store_id: str, **options: Any) -> dict[str, Any]:
    return {"type": "file_search", "vector_store_ids": [store_id], **options}


def create(http: httpx.Client, **body: Any) -> Any:
    """A response that is what OpenAI's schema says."""
    answer = http.post("/v1/responses", json={"model": MODEL, "input": QUESTION, **body})
    assert answer.status_code == 200, answer.text
    found = violations("POST", "/responses", 200, answer.json())
    assert not found, found
    return answer.json()


def streamed(http: httpx.Client, **body: Any) -> list[Any]:
    """The events of a stream that has passed the schema and the order that helpers rely on."""
    answer = http.post("/v1/responses", json={"model": MODEL, "input": QUESTION, "stream": True, **body})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = parse_sse(answer.text)
    found = stream_violations("POST", "/responses", events)
    assert not found, found
    return [data for _, data in events]


def refused(http: httpx.Client, status: int, **body: Any) -> dict[str, Any]:
    answer = http.post("/v1/responses", json={"model": MODEL, "input": QUESTION, **body})
    assert answer.status_code == status, answer.text
    assert set(answer.json()) == {"error"}
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


def without_ids(value: Any) -> Any:
    """The same without what differs from one making to the next."""
    if isinstance(value, dict):
        changing = ("id", "call_id", "created_at", "completed_at", "timings_ms")
        return {name: without_ids(part) for name, part in value.items() if name not in changing}
    return [without_ids(part) for part in value] if isinstance(value, list) else value


# ── a plain response ────────────────────────────────────────────────────────


def test_a_plain_response(rag_on: Served, http: httpx.Client) -> None:
    rag_on.chat_model.reply = "Six grams."
    response = create(http, input="How heavy?", instructions="Be brief.", unheard_of=[1], metadata={"a": "b"})
    (message,) = response["output"]
    assert message["content"] == [
        {"type": "output_text", "text": "Six grams.", "annotations": [], "logprobs": []}
    ]
    assert (message["role"], message["status"]) == ("assistant", "completed")
    assert response["usage"] == {
        "input_tokens": 4,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 2,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 6,
    }
    assert {name: response[name] for name in ("status", "error", "incomplete_details", "instructions")} == {
        "status": "completed", "error": None, "incomplete_details": None, "instructions": "Be brief.",
    }  # fmt: skip
    assert (response["store"], response["metadata"], response["temperature"]) == (True, {"a": "b"}, 1.0)
    assert response["completed_at"] >= response["created_at"]
    assert "sherlock" not in response
    asked = rag_on.chat_model.requests[-1]
    assert asked.options == {}
    assert list(asked.messages) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "How heavy?"},
    ]


def test_options_reach_the_model_under_their_names(rag_on: Served, http: httpx.Client) -> None:
    schema = {"type": "object", "properties": {"grams": {"type": "integer", "minimum": 1}}}
    text = {"format": {"type": "json_schema", "name": "weight", "schema": schema, "strict": True}}
    response = create(
        http,
        model=None,
        text=text | {"verbosity": "low"},
        temperature=0,
        top_p=0.5,
        max_output_tokens=16,
        tools=[WEIGH],
        tool_choice={"type": "function", "name": "weigh"},
        parallel_tool_calls=False,
        reasoning={"effort": "low"},
        user="me",
        truncation="auto",
        include=["message.output_text.logprobs", "reasoning.encrypted_content"],
        top_logprobs=2,
        stream=None,
    )
    function = {name: value for name, value in WEIGH.items() if name != "type"}
    assert rag_on.chat_model.requests[-1].options == {
        "temperature": 0, "top_p": 0.5, "user": "me", "max_completion_tokens": 16, "verbosity": "low",
        "reasoning_effort": "low", "logprobs": True, "top_logprobs": 2, "parallel_tool_calls": False,
        "response_format": {"type": "json_schema",
                            "json_schema": {"name": "weight", "schema": schema, "strict": True}},
        "tools": [{"type": "function", "function": function}],
        "tool_choice": {"type": "function", "function": {"name": "weigh"}},
    }  # fmt: skip
    assert (response["model"], response["tools"]) == (MODEL, [WEIGH])
    assert response["tool_choice"] == {"type": "function", "name": "weigh"}
    assert response["text"] == text | {"verbosity": "low"}
    assert (response["max_output_tokens"], response["truncation"]) == (16, "auto")
    assert create(http, text={"format": {"type": "json_object"}})["text"]["format"] == {"type": "json_object"}
    assert rag_on.chat_model.requests[-1].options == {"response_format": {"type": "json_object"}}


def test_the_client_parses_into_a_model(rag_on: Served, client: openai.OpenAI) -> None:
    class Weight(BaseModel):
        grams: int

    rag_on.chat_model.reply = '{"grams": 6}'
    parsed = client.responses.parse(model=MODEL, input=QUESTION, text_format=Weight)
    assert parsed.output_parsed == Weight(grams=6)


def test_every_kind_of_input_item(rag_on: Served, http: httpx.Client) -> None:
    picture = "data:image/png;base64,iVBORw0KGgo="
    response = create(
        http,
        input=[
            {"type": None, "role": "developer", "content": "Weigh only."},
            {"role": "user", "content": [{"type": "input_text", "text": "And this?"},
                                         {"type": "input_image", "image_url": picture}]},
            {"type": "reasoning", "id": "rs_1", "summary": []},
            {"type": "file_search_call", "id": "fs_1", "status": "completed", "queries": ["q"]},
            {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
             "content": [{"type": "output_text", "text": "Let ", "annotations": [], "logprobs": []},
                         {"type": "output_text", "text": "me see.", "annotations": []}]},
            {"type": "function_call", "call_id": "call_1", "name": "weigh", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "call_1", "output": "6"},
            {"role": "assistant", "content": "Six."},
            {"type": "function_call", "call_id": "call_2", "name": "weigh", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "call_2",
             "output": [{"type": "input_text", "text": "7"}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Sure?"}]},
        ],
    )  # fmt: skip

    def call(number: int) -> dict[str, Any]:
        return {"id": f"call_{number}", "type": "function", "function": {"name": "weigh", "arguments": "{}"}}

    assert list(rag_on.chat_model.requests[-1].messages) == [
        {"role": "developer", "content": "Weigh only."},
        {"role": "user", "content": [{"type": "text", "text": "And this?"},
                                     {"type": "image_url", "image_url": {"url": picture, "detail": "auto"}}]},
        {"role": "assistant", "content": "Let me see.", "tool_calls": [call(1)]},
        {"role": "tool", "tool_call_id": "call_1", "content": "6"},
        {"role": "assistant", "content": "Six.", "tool_calls": [call(2)]},
        {"role": "tool", "tool_call_id": "call_2", "content": "7"},
        {"role": "user", "content": "Sure?"},
    ]  # fmt: skip
    listed = http.get(f"/v1/responses/{response['id']}/input_items?order=asc").json()
    assert not violations("GET", "/responses/{response_id}/input_items", 200, listed)
    kinds = [item["type"] for item in listed["data"]]
    assert kinds == [
        "message", "message", "reasoning", "file_search_call", "message", "function_call",
        "function_call_output", "message", "function_call", "function_call_output", "message",
    ]  # fmt: skip
    assert listed["data"][4]["id"] == "msg_1"
    assert len({item["id"] for item in listed["data"]}) == len(kinds)


def test_an_answer_that_was_cut_is_incomplete(
    rag_on: Served, http: httpx.Client, client: openai.OpenAI
) -> None:
    rag_on.chat_model.reply = " ".join(str(n) for n in range(30))
    response = create(http, max_output_tokens=16)
    assert (response["status"], response["incomplete_details"]) == (
        "incomplete",
        {"reason": "max_output_tokens"},
    )
    assert response["output"][0]["status"] == "incomplete"
    assert response["completed_at"] is None
    assert streamed(http, max_output_tokens=16)[-1]["type"] == "response.incomplete"
    assert client.responses.retrieve(response["id"]).status == "incomplete"


def test_refusals_and_logprobs(rag_on: Served, http: httpx.Client) -> None:
    rag_on.chat_model.events = [RefusalDelta("I can"), RefusalDelta("not."), Finished("content_filter")]
    response = create(http)
    assert response["output"][0]["content"] == [{"type": "refusal", "refusal": "I cannot."}]
    assert response["incomplete_details"] == {"reason": "content_filter"}
    assert without_ids(streamed(http)[-1]["response"]) == without_ids(response)

    token = {"token": "né", "logprob": -0.1, "bytes": None}
    said = TextDelta("né", logprobs={"content": [token | {"top_logprobs": [token]}], "refusal": None})
    rag_on.chat_model.events = [said, said, Finished("stop")]
    whole = token | {"bytes": [110, 195, 169]}
    asked = {"include": ["message.output_text.logprobs"], "top_logprobs": 1}
    response = create(http, **asked)
    assert response["output"][0]["content"][0]["logprobs"] == [whole | {"top_logprobs": [whole]}] * 2
    events = streamed(http, **asked)
    assert [len(e["logprobs"]) for e in events if e["type"] == "response.output_text.delta"] == [1, 1]
    assert create(http)["output"][0]["content"][0]["logprobs"] == []


def test_an_empty_answer_is_an_answer(rag_on: Served, http: httpx.Client) -> None:
    rag_on.chat_model.events = [Finished("stop")]
    assert create(http)["output"][0]["content"][0]["text"] == ""
    streamed(http)


# ── file search ─────────────────────────────────────────────────────────────


def test_a_grounded_response_cites_its_passage(
    rag_on: Served, http: httpx.Client, client: openai.OpenAI, store_id: str
) -> None:
    rag_on.chat_model.reply = "It weighs six grams [1]."
    response = create(http, tools=[file_search(store_id)], include=["file_search_call.results"])
    search, message = response["output"]
    assert (search["status"], search["queries"]) == ("completed", [QUESTION])
    assert (search["results"][0]["filename"], search["results"][0]["text"]) == ("mouse.txt", MOUSE)
    assert search["results"][0]["attributes"] == {"legs": 4}
    (cited,) = message["content"][0]["annotations"]
    assert (cited["type"], cited["filename"]) == ("file_citation", "mouse.txt")
    text = message["content"][0]["text"]
    assert cited["index"] == text.index("[1]")
    assert text[cited["start_index"] : cited["end_index"]] == "[1]"
    assert cited["quote"] == "The harvest mouse weighs six grams."
    assert "keyword" in response["sherlock"]["stages"]
    assert response["sherlock"]["grounded"] is True
    instructions, asked = rag_on.chat_model.requests[-1].messages
    assert "six grams" not in instructions["content"]
    assert (asked["role"], "six grams" in asked["content"]) == ("user", True)
    assert rag_on.chat_model.requests[-1].options == {}

    hidden = client.responses.retrieve(response["id"]).output[0]
    assert (hidden.type, hidden.results) == ("file_search_call", None)  # type: ignore[union-attr]
    shown = client.responses.retrieve(response["id"], include=["file_search_call.results"])
    assert shown.to_dict() == response


def test_a_question_about_something_else_gets_no_passages(
    rag_on: Served, http: httpx.Client, store_id: str
) -> None:
    rag_on.chat_model.reply = "Paris [1]."
    body = {"tools": [file_search(store_id)], "input": "Which town is the capital of France?"}
    response = create(http, **body, include=["file_search_call.results"])
    search, message = response["output"]
    assert search["results"], "what was found is told as it is"
    assert message["content"][0] | {"logprobs": []} == {
        "type": "output_text", "text": f"{NOTICE}\n\nParis.", "annotations": [], "logprobs": [],
    }  # fmt: skip
    assert response["sherlock"]["grounded"] is False
    last = streamed(http, **body)[-1]["response"]
    assert last["output"][1]["content"] == message["content"]
    assert last["sherlock"]["grounded"] is False


def test_a_statement_without_a_mark_is_cited_at_its_end(
    rag_on: Served, http: httpx.Client, store_id: str
) -> None:
    rag_on.chat_model.reply = "🐭 Ah. The harvest mouse weighs six grams. Really."
    content = create(http, tools=[file_search(store_id)])["output"][1]["content"][0]
    (cited,) = content["annotations"]
    assert content["text"][: cited["index"]] == "🐭 Ah. The harvest mouse weighs six grams."


def test_the_tool_is_echoed_in_full(http: httpx.Client, store_id: str) -> None:
    assert create(http, tools=[file_search(store_id)])["tools"] == [
        {
            "type": "file_search",
            "vector_store_ids": [store_id],
            "max_num_results": 5,
            "filters": None,
            "ranking_options": {"ranker": "auto", "score_threshold": 0.0},
            "hybrid_alpha": 0.7,
        }
    ]
    given = file_search(
        store_id,
        filters={"type": "and", "filters": [{"type": "in", "key": "legs", "value": [2, "six"]}]},
        ranking_options={
            "ranker": "default-2024-11-15",
            "score_threshold": 0.25,
            "hybrid_search": {"embedding_weight": 1, "text_weight": 3},
        },
        max_num_results=3,
    )
    response = create(http, tools=[given], include=["file_search_call.results"])
    assert response["tools"] == [given | {"hybrid_alpha": 0.25}]
    assert response["output"][0]["results"] == []
    keyword = create(http, tools=[file_search(store_id, hybrid_alpha=0, top_k=1)])
    assert (keyword["tools"][0]["max_num_results"], keyword["tools"][0]["hybrid_alpha"]) == (1, 0.0)
    assert "dense" not in keyword["sherlock"]["stages"]


@pytest.mark.parametrize(
    ("choice", "searched", "upstream"),
    [
        ("auto", True, "auto"),
        ("none", False, "none"),
        ("required", True, "auto"),
        ({"type": "file_search"}, True, "none"),
        ({"type": "function", "name": "weigh"}, False, {"type": "function", "function": {"name": "weigh"}}),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "file_search"}]}, True, "none"),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "weigh"}]},
            False,
            {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "required",
                    "tools": [{"type": "function", "function": {"name": "weigh"}}],
                },
            },
        ),
    ],
)
def test_tool_choice(
    rag_on: Served, http: httpx.Client, store_id: str, choice: Any, searched: bool, upstream: Any
) -> None:
    response = create(http, tools=[file_search(store_id), WEIGH], tool_choice=choice)
    assert ("sherlock" in response, response["tool_choice"]) == (searched, choice)
    assert rag_on.chat_model.requests[-1].options["tool_choice"] == upstream


# ── streams ─────────────────────────────────────────────────────────────────


def test_a_stream_is_the_plain_response_in_pieces(rag_on: Served, http: httpx.Client, store_id: str) -> None:
    rag_on.chat_model.reply = "Six grams [1], woven grass [1]."
    body = {"tools": [file_search(store_id)], "include": ["file_search_call.results"]}
    events = streamed(http, **body)
    kinds = [event["type"] for event in events]
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.file_search_call.in_progress",
        "response.file_search_call.searching",
        "response.file_search_call.completed",
        "response.output_item.done",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * 6,
        *["response.output_text.annotation.added"] * 2,
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    created, last = events[0]["response"], events[-1]["response"]
    assert (created["status"], created["output"], "usage" in created) == ("in_progress", [], False)
    assert events[2]["item"] == {
        "id": last["output"][0]["id"], "type": "file_search_call", "status": "in_progress",
        "queries": [], "results": None,
    }  # fmt: skip
    assert events[8]["part"] == {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    done = {event["output_index"]: event["item"] for event in events if event["type"].endswith("item.done")}
    assert [done[0], done[1]] == last["output"]
    text = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    assert text == last["output"][1]["content"][0]["text"]
    added = [event["annotation"] for event in events if event["type"].endswith("annotation.added")]
    assert added == last["output"][1]["content"][0]["annotations"]
    assert without_ids(last) == without_ids(create(http, **body))


def test_the_clients_streams(rag_on: Served, client: openai.OpenAI, store_id: str) -> None:
    rag_on.chat_model.events = CALLED
    tools: Any = [file_search(store_id), WEIGH]
    events = list(client.responses.create(model=MODEL, input=QUESTION, tools=tools, stream=True))
    assert events[-1].type == "response.completed"
    with client.responses.stream(model=MODEL, input=QUESTION, tools=tools) as stream:
        seen = [event.type for event in stream]
        final = stream.get_final_response()
    assert seen.count("response.function_call_arguments.delta") == 3
    kinds = [item.type for item in final.output]
    assert kinds == ["file_search_call", "message", "function_call", "function_call"]
    calls = [(item.call_id, item.arguments) for item in final.output if item.type == "function_call"]
    assert calls == [("call_1", '{"animal": "mouse"}'), ("call_2", '{"animal": "vole"}')]
    assert final.output_text == "Let me see."
    assert final.status == "completed"
    assert final.usage is not None
    assert (final.usage.input_tokens_details.cached_tokens, final.usage.total_tokens) == (2, 16)


def test_function_calls_stream_as_the_schema_says(rag_on: Served, http: httpx.Client) -> None:
    rag_on.chat_model.events = CALLED
    events = streamed(http, tools=[WEIGH])
    done = [event for event in events if event["type"] == "response.function_call_arguments.done"]
    assert [(event["name"], event["arguments"]) for event in done] == [
        ("weigh", '{"animal": "mouse"}'),
        ("weigh", '{"animal": "vole"}'),
    ]
    assert without_ids(events[-1]["response"]) == without_ids(create(http, tools=[WEIGH]))


@pytest.mark.parametrize(
    ("error", "code", "failed"),
    [
        (ChatModelUnavailable("It broke off."), "llm_unavailable", "server_error"),
        (ChatModelRateLimited("Too many."), "rate_limit_exceeded", "rate_limit_exceeded"),
    ],
)
def test_a_failure_half_way(
    rag_on: Served, http: httpx.Client, error: SherlockError, code: str, failed: str
) -> None:
    rag_on.chat_model.reply = "one two three"
    rag_on.chat_model.error, rag_on.chat_model.error_after = error, 2
    *_, told, last = streamed(http)
    assert (told["type"], told["code"], told["message"], told["param"]) == (
        "error",
        code,
        error.message,
        None,
    )
    assert (last["type"], last["response"]["status"]) == ("response.failed", "failed")
    assert last["response"]["error"] == {"code": failed, "message": error.message}
    (message,) = last["response"]["output"]
    assert (message["status"], message["content"][0]["text"]) == ("incomplete", "one two")
    assert last["response"]["store"] is False
    assert http.get(f"/v1/responses/{last['response']['id']}").status_code == 404


def test_a_failure_before_the_first_word_has_a_status(rag_on: Served, http: httpx.Client) -> None:
    rag_on.chat_model.error = ChatModelUnavailable("It is down.")
    for stream in (True, False):
        assert refused(http, 503, stream=stream)["code"] == "llm_unavailable"


# ── what is stored ──────────────────────────────────────────────────────────


def test_two_turns_with_file_search(rag_on: Served, client: openai.OpenAI, store_id: str) -> None:
    tools: Any = [file_search(store_id)]
    rag_on.chat_model.reply = "Six grams [1]."
    first = client.responses.create(model=MODEL, input=QUESTION, tools=tools, instructions="Be brief.")
    rag_on.chat_model.reply = "Woven grass [1]."
    second = client.responses.create(
        model=MODEL, input="And its nest?", tools=tools, previous_response_id=first.id
    )
    assert second.previous_response_id == first.id
    asked = rag_on.chat_model.requests[-1].messages
    assert [message["role"] for message in asked] == ["system", "user", "assistant", "user"]
    assert [message["content"] for message in asked[1:-1]] == [QUESTION, "Six grams [1]."]
    assert asked[-1]["content"].endswith("And its nest?")
    assert "Be brief." not in asked[0]["content"], "instructions are not inherited"
    assert second.usage is not None
    assert second.usage.input_tokens > first.usage.input_tokens  # type: ignore[union-attr]
    stored = client.responses.retrieve(second.id)
    assert stored.output_text == "Woven grass [1]."
    assert stored.output[1].content[0].annotations[0].file_id  # type: ignore[union-attr]

    items = list(client.responses.input_items.list(second.id, limit=1, order="asc"))
    assert [item.type for item in items] == ["message", "file_search_call", "message", "message"]
    newest = client.responses.input_items.list(second.id).data[0]
    assert newest.content[0].text == "And its nest?"  # type: ignore[union-attr]

    client.responses.delete(first.id)
    for call in (client.responses.retrieve, client.responses.delete, client.responses.input_items.list):
        with pytest.raises(openai.NotFoundError):
            call(first.id)
    with pytest.raises(openai.NotFoundError, match=first.id):
        client.responses.create(model=MODEL, input="more", previous_response_id=second.id)
    client.responses.delete(second.id)


@pytest.mark.parametrize("stored", [True, False])
def test_a_turn_that_called_functions_is_gone_on_with(
    rag_on: Served, client: openai.OpenAI, http: httpx.Client, stored: bool
) -> None:
    rag_on.chat_model.events = CALLED
    called = client.responses.create(model=MODEL, input=QUESTION, tools=[WEIGH], store=stored)  # type: ignore[list-item]
    rag_on.chat_model.events = None
    rag_on.chat_model.reply = "Six."
    outputs: list[Any] = [
        {"type": "function_call_output", "call_id": f"call_{n}", "output": str(n)} for n in (1, 2)
    ]
    if stored:
        answer = client.responses.create(model=MODEL, input=outputs, previous_response_id=called.id)
    else:
        replayed = [{"role": "user", "content": QUESTION}, *(item.to_dict() for item in called.output)]
        answer = client.responses.create(model=MODEL, input=[*replayed, *outputs], store=False)
    assert answer.output_text == "Six."
    user, assistant, *tools = rag_on.chat_model.requests[-1].messages
    assert user == {"role": "user", "content": QUESTION}
    assert assistant["content"] == "Let me see."
    assert [call["id"] for call in assistant["tool_calls"]] == ["call_1", "call_2"]
    assert tools == [{"role": "tool", "tool_call_id": f"call_{n}", "content": str(n)} for n in (1, 2)]
    if stored:
        assert "call_2" in refused(http, 400, input=outputs[:1], previous_response_id=called.id)["message"]


def test_what_is_not_stored_cannot_be_found(client: openai.OpenAI, http: httpx.Client) -> None:
    response = client.responses.create(model=MODEL, input=QUESTION, store=False)
    assert response.store is False
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)
    assert refused(http, 404, previous_response_id=response.id)["param"] == "previous_response_id"


def test_items_can_be_referred_to(rag_on: Served, client: openai.OpenAI, http: httpx.Client) -> None:
    rag_on.chat_model.reply = "Six grams."
    message = client.responses.create(model=MODEL, input=QUESTION).output[0]
    again = create(
        http, input=[{"type": "item_reference", "id": message.id}, {"role": "user", "content": "?"}]
    )
    assert [m["content"] for m in rag_on.chat_model.requests[-1].messages] == ["Six grams.", "?"]
    both = create(http, input=[{"id": message.id}], previous_response_id=again["id"])
    listed = http.get(f"/v1/responses/{both['id']}/input_items").json()
    assert len({item["id"] for item in listed["data"]}) == len(listed["data"]) == 4
    assert refused(http, 404, input=[{"id": "msg_nobody"}])["param"] == "input"


def test_any_text_is_stored(rag_on: Served, client: openai.OpenAI) -> None:
    text = "nul \0, 🐭, \u2028, \ufffe"
    rag_on.chat_model.reply = text
    response = client.responses.create(model=MODEL, input=text, metadata={"é": "🐭"})
    stored = client.responses.retrieve(response.id)
    assert stored.output_text == " ".join(text.split())
    assert stored.metadata == {"é": "🐭"}
    assert client.responses.input_items.list(response.id).data[0].content[0].text == text  # type: ignore[union-attr]


def test_tokens_are_counted_beforehand(client: openai.OpenAI, store_id: str) -> None:
    def counted(**body: Any) -> int:
        return client.responses.input_tokens.count(
            model=MODEL, **{"input": "hello world", **body}
        ).input_tokens

    alone = counted()
    assert alone == 2 + 4
    assert counted(instructions="hello world") == 2 * alone
    assert counted(tools=[WEIGH]) > counted(tools=[file_search(store_id)]) > alone
    first = client.responses.create(model=MODEL, input="hello world")
    assert counted(previous_response_id=first.id) == 3 * alone


def test_responses_are_not_cancelled(client: openai.OpenAI, http: httpx.Client) -> None:
    response = client.responses.create(model=MODEL, input=QUESTION)
    with pytest.raises(openai.BadRequestError, match="background"):
        client.responses.cancel(response.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.cancel("resp_nobody")
    body = http.get(f"/v1/responses/{response.id}", params={"stream": "true"})
    assert (body.status_code, body.json()["error"]["param"]) == (400, "stream")
    deleted = http.delete(f"/v1/responses/{response.id}").json()
    assert deleted == {"id": response.id, "object": "response", "deleted": True}


@pytest.mark.parametrize("id", ["resp_nobody", "resp_%00", "nothing", "x" * 3000])
def test_unknown_ids_are_404(http: httpx.Client, id: str) -> None:
    for answer in (
        http.get(f"/v1/responses/{id}"),
        http.delete(f"/v1/responses/{id}"),
        http.get(f"/v1/responses/{id}/input_items"),
    ):
        assert answer.status_code == 404
        assert answer.json()["error"]["type"] == "invalid_request_error"


def test_pages_of_items(http: httpx.Client) -> None:
    response = create(http, input=[{"role": "user", "content": str(n)} for n in range(5)])
    path = f"/v1/responses/{response['id']}/input_items"
    page = http.get(path, params={"limit": 2}).json()
    assert not violations("GET", "/responses/{response_id}/input_items", 200, page)
    assert [item["content"][0]["text"] for item in page["data"]] == ["4", "3"]
    assert (page["has_more"], page["last_id"]) == (True, page["data"][-1]["id"])
    for params, param in (({"limit": 0}, "limit"), ({"limit": 101}, "limit"), ({"order": "up"}, "order")):
        error = http.get(path, params=params)  # type: ignore[arg-type]
        assert (error.status_code, error.json()["error"]["param"]) == (400, param)
    unknown = http.get(path, params={"after": "msg_nobody"})
    assert (unknown.status_code, unknown.json()["error"]["param"]) == (404, "after")


# ── refusals ────────────────────────────────────────────────────────────────

TEXT = {"type": "input_text", "text": "hello"}

INVALID: list[tuple[dict[str, Any], str, str | None, str]] = [
    # members, param, code, part of the message
    ({"input": None}, "input", "missing_required_parameter", "Missing"),
    ({"input": []}, "input", "missing_required_parameter", "Missing"),
    ({"input": 5}, "input", "invalid_type", "an integer"),
    ({"input": [{"role": "king", "content": "x"}]}, "input[0].role", "invalid_value", "'king'"),
    ({"input": [{"role": "user"}]}, "input[0].content", "missing_required_parameter", "content"),
    ({"input": [{"type": "computer_call"}]}, "input[0]", "invalid_value", "'computer_call'"),
    ({"input": [5]}, "input[0]", "invalid_type", "an object"),
    (
        {"input": [{"role": "user", "content": [TEXT, {"type": "input_file", "file_id": "file-1"}]}]},
        "input[0].content[1]",
        "invalid_value",
        "'input_file'",
    ),
    (
        {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "file-1"}]}]},
        "input[0].content[0]",
        "invalid_value",
        "image_url",
    ),
    ({"input": [{"role": "user", "content": "x"}] * 2049}, "input", "array_above_max_length", "2048"),
    (
        {"input": [{"type": "function_call_output", "output": "x"}]},
        "input[0].call_id",
        "missing_required_parameter",
        "",
    ),
    ({"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}, "input", None, "'c'"),
    (
        {"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}]},
        "input",
        None,
        "no output",
    ),
    ({"input": [{"id": "a\0b", "role": "user", "content": "x"}]}, "input[0].id", "invalid_value", "U+0000"),
    ({"model": 5}, "model", "invalid_type", "a string"),
    ({"instructions": []}, "instructions", "invalid_type", "a string"),
    ({"max_output_tokens": 15}, "max_output_tokens", "integer_below_min_value", ">= 16"),
    ({"temperature": 2.5}, "temperature", "decimal_above_max_value", "2.5"),
    ({"top_p": -1}, "top_p", "integer_below_min_value", "-1"),
    ({"top_logprobs": 21}, "top_logprobs", "integer_above_max_value", "20"),
    ({"background": True}, "background", "unsupported_parameter", "background"),
    ({"prompt": {"id": "pmpt_1"}}, "prompt", "unsupported_parameter", "prompt"),
    ({"previous_response_id": "r", "conversation": "c"}, "previous_response_id", None, "together"),
    ({"stream_options": {}}, "stream_options", None, "only allowed when"),
    ({"metadata": {"k" * 65: ""}}, "metadata", "string_above_max_length", "64"),
    ({"metadata": {"k": "v" * 513}}, "metadata.k", "string_above_max_length", "512"),
    ({"metadata": {str(n): "" for n in range(17)}}, "metadata", "object_above_max_length", "16"),
    ({"truncation": "some"}, "truncation", "invalid_value", "'auto'"),
    ({"tools": [{"type": "web_search"}]}, "tools[0]", "invalid_value", "'web_search'"),
    ({"tools": [{"type": "file_search"}]}, "tools[0].vector_store_ids", "missing_required_parameter", ""),
    (
        {"tools": [file_search("vs_1", max_num_results=51)]},
        "tools[0].max_num_results",
        "integer_above_max_value",
        "50",
    ),
    (
        {"tools": [file_search("vs_1", ranking_options={"hybrid_search": {"text_weight": 1}})]},
        "tools[0].ranking_options.hybrid_search.embedding_weight",
        "missing_required_parameter",
        "",
    ),
    ({"tools": [file_search("vs_1"), file_search("vs_2")]}, "tools", None, "Only one"),
    (
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        "tools[0].function",
        "invalid_value",
        "beside",
    ),
    ({"tools": [WEIGH | {"name": "a b"}]}, "tools[0].name", "invalid_value", "pattern"),
    ({"tool_choice": {"type": "file_search"}}, "tool_choice", None, "not among"),
    ({"tool_choice": {"type": "function", "name": "f"}, "tools": [WEIGH]}, "tool_choice", None, "not among"),
    ({"tool_choice": "always"}, "tool_choice", "invalid_value", "'required'"),
    ({"tool_choice": {"type": "mcp"}}, "tool_choice", "invalid_value", "'mcp'"),
    ({"text": {"format": {"type": "yaml"}}}, "text.format", "invalid_value", "'yaml'"),
    (
        {"text": {"format": {"type": "json_schema", "name": "x"}}},
        "text.format.schema",
        "missing_required_parameter",
        "",
    ),
    ({"include": "everything"}, "include", "invalid_type", "an array"),
    ({"temperature": "hot"}, "temperature", "invalid_type", "a number"),
]  # fmt: skip


@pytest.mark.parametrize(("members", "param", "code", "words"), INVALID, ids=[str(i[1:3]) for i in INVALID])
def test_bad_input(
    http: httpx.Client, members: dict[str, Any], param: str, code: str | None, words: str
) -> None:
    error = refused(http, 400, **members)
    assert (error["param"], error["code"], error["type"]) == (param, code, "invalid_request_error")
    assert words in error["message"]


def test_numbers_that_are_none(http: httpx.Client) -> None:
    body = json.dumps({"model": MODEL, "input": "x", "tools": [WEIGH | {"parameters": {"x": 0}}]})
    headers = {"content-type": "application/json"}
    answer = http.post("/v1/responses", content=body.replace('"x": 0', '"x": 1e999'), headers=headers)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tools")


def test_what_is_unknown(http: httpx.Client) -> None:
    assert refused(http, 404, model="gpt-nothing")["code"] == "model_not_found"
    assert refused(http, 404, previous_response_id="resp_nobody")["param"] == "previous_response_id"
    assert refused(http, 404, conversation="conv_nobody")["param"] == "conversation"
    assert refused(http, 404, conversation={"id": "conv_nobody"})["param"] == "conversation"
    assert http.post("/v1/conversations", json={}).status_code == 404


def test_null_means_not_given(http: httpx.Client) -> None:
    names = (
        "instructions", "previous_response_id", "conversation", "store", "stream", "stream_options",
        "include", "background", "tools", "tool_choice", "parallel_tool_calls", "max_output_tokens",
        "temperature", "top_p", "top_logprobs", "text", "reasoning", "truncation", "metadata", "user",
        "prompt", "service_tier",
    )  # fmt: skip
    assert create(http, **dict.fromkeys(names))["store"] is True


def test_the_checker_finds_something() -> None:
    assert not request_violations("POST", "/responses", {"model": "m", "input": "hello"})
    assert request_violations("POST", "/responses", {"input": 5})


# ── without retrieval ───────────────────────────────────────────────────────


def test_the_gateway_makes_responses_and_keeps_none(rag_off: Served) -> None:
    rag_off.chat_model.reply = "good day"
    client = rag_off.client()
    response = client.responses.create(model=MODEL, input="hello")
    assert (response.output_text, response.store) == ("good day", False)
    assert client.responses.input_tokens.count(model=MODEL, input="hello").input_tokens > 0
    with rag_off.http() as http:
        streamed(http)
        for members in (
            {"previous_response_id": "resp_1"},
            {"tools": [file_search("vs_1")]},
            {"conversation": "conv_1"},
            {"input": [{"id": "msg_1"}]},
        ):
            answer = http.post("/v1/responses", json={"model": MODEL, "input": "hello", **members})
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "rag_disabled")
        cancelled = http.post("/v1/responses/resp_1/cancel")
        assert (cancelled.status_code, cancelled.json()["error"]["code"]) == (503, "rag_disabled")
