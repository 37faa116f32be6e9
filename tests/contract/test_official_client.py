"""The official client against a real socket, and every body held against OpenAI's published schema."""

import base64
import math
import struct
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from tests.contract.data.check_response import parse_sse, request_violations, stream_violations, violations
from tests.serving import Served

from sherlock.rag.application.ground import NOTHING_FOUND, NOTICE, SMALL_TALK
from sherlock.rag.domain.errors import ChatModelUnavailable
from sherlock.rag.domain.models import (
    Finished,
    RefusalDelta,
    TextDelta,
    ToolCallDelta,
    Usage,
)

MOUSE = "The harvest mouse weighs six grams. It builds its nest from woven grass, high above the ground."
WHALE = (
    "The blue whale weighs up to one hundred and fifty tonnes. Its heart alone is as heavy as a small car."
)


@pytest.fixture(scope="module")
def http(rag_on: Served) -> Iterator[httpx.Client]:
    with rag_on.http() as client:
        yield client


@pytest.fixture(scope="module")
def store_id(client: openai.OpenAI) -> str:
    store = client.vector_stores.create(name="animals")
    for name, text in (("mouse.txt", MOUSE), ("whale.md", WHALE)):
        done = client.vector_stores.files.upload_and_poll(
            vector_store_id=store.id,
            file=(name, text.encode()),
            attributes={"legs": 4, "small": name == "mouse.txt"},
        )
        assert (done.status, done.last_error) == ("completed", None)
    return store.id


@pytest.fixture(autouse=True)
def plain_model(rag_on: Served) -> Iterator[None]:
    yield
    rag_on.chat_model.reply = rag_on.chat_model.events = None
    rag_on.chat_model.error = rag_on.chat_model.error_after = None


def checked(response: httpx.Response, path: str, *, relaxed: bool = False) -> Any:
    """The body, which must be what OpenAI's schema says for this call and status."""
    body = response.json()
    found = violations(response.request.method, path, response.status_code, body, relaxed=relaxed)
    assert not found, found
    assert response.headers["x-request-id"]
    return body


def file_search(store_id: str, **options: Any) -> list[Any]:
    return [{"type": "file_search", "vector_store_ids": [store_id], **options}]


USER = [{"role": "user", "content": "How much does the harvest mouse weigh?"}]

# ── files ───────────────────────────────────────────────────────────────────


def test_a_file_from_upload_to_deletion(client: openai.OpenAI, http: httpx.Client) -> None:
    name = 'Überblick "2024" 日本.txt'
    content = "Grüße\n".encode() * 1000
    stored = client.files.create(
        file=(name, content), purpose="user_data", expires_after={"anchor": "created_at", "seconds": 3600}
    )
    assert (stored.filename, stored.bytes, stored.status) == (name, len(content), "processed")
    assert stored.expires_at is not None
    assert abs(stored.expires_at - stored.created_at - 3600) <= 1
    checked(http.get(f"/v1/files/{stored.id}"), "/files/{file_id}")
    checked(http.get("/v1/files"), "/files")
    assert client.files.content(stored.id).content == content
    assert client.files.delete(stored.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.delete(stored.id)


def test_fields_may_stand_behind_the_file(http: httpx.Client) -> None:
    """As the node client sends them, in one stream without a length."""
    body = (
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="a%22b.txt"\r\n\r\n' + b"x" * 300_000 +
        b'\r\n--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nassistants\r\n--b--\r\n'
    )  # fmt: skip
    pieces = (body[at : at + 7001] for at in range(0, len(body), 7001))
    sent = http.post("/v1/files", content=pieces, headers={"content-type": "multipart/form-data; boundary=b"})
    stored = checked(sent, "/files")
    assert (stored["filename"], stored["bytes"]) == ('a"b.txt', 300_000)


def test_bytes_without_a_name_are_called_upload(client: openai.OpenAI) -> None:
    assert client.files.create(file=b"plain text", purpose="batch").filename == "upload"


def test_files_are_paged(client: openai.OpenAI) -> None:
    made = [client.files.create(file=(f"{n}.txt", b"text"), purpose="vision").id for n in range(5)]
    listed = [file.id for file in client.files.list(purpose="vision", limit=2, order="asc")]
    assert listed == sorted(made, key=listed.index)
    assert set(listed) == set(made)


def test_a_range_of_the_bytes(client: openai.OpenAI, http: httpx.Client) -> None:
    stored = client.files.create(file=("digits.txt", b"0123456789"), purpose="user_data")
    url = f"/v1/files/{stored.id}/content"
    for asked, status, content in (
        ("bytes=2-4", 206, b"234"),
        ("bytes=7-", 206, b"789"),
        ("bytes=-3", 206, b"789"),
        ("bytes=4-100", 206, b"456789"),
        ("bytes=5-2", 200, b"0123456789"),
        ("lines=1-2", 200, b"0123456789"),
    ):
        answer = http.get(url, headers={"range": asked, "accept": "application/binary"})
        assert (answer.status_code, answer.content) == (status, content), asked
    beyond = http.get(url, headers={"range": "bytes=10-"})
    assert (beyond.status_code, beyond.headers["content-range"]) == (416, "bytes */10")
    assert not violations("GET", "/files/{file_id}", 416, beyond.json())


# ── vector stores ───────────────────────────────────────────────────────────


def test_a_vector_store_from_creation_to_deletion(client: openai.OpenAI, http: httpx.Client) -> None:
    made = checked(
        http.post(
            "/v1/vector_stores",
            json={
                "name": None,
                "description": "a shelf",
                "metadata": {"site": "north"},
                "expires_after": {"anchor": "last_active_at", "days": 3},
            },
        ),
        "/vector_stores",
    )
    assert (made["name"], made["description"], made["status"]) == ("", "a shelf", "completed")
    assert made["expires_at"] == made["last_active_at"] + 3 * 86_400
    path = f"/v1/vector_stores/{made['id']}"
    named = checked(http.post(path, json={"name": "shelf"}), "/vector_stores/{vector_store_id}")
    assert (named["name"], named["metadata"]) == ("shelf", {"site": "north"})
    cleared = checked(
        http.post(path, json={"metadata": None, "expires_after": None}),
        "/vector_stores/{vector_store_id}",
        relaxed=True,
    )
    assert (cleared["name"], cleared["metadata"], cleared["expires_at"]) == ("shelf", {}, None)
    checked(http.get("/v1/vector_stores"), "/vector_stores", relaxed=True)
    assert made["id"] in {store.id for store in client.vector_stores.list(limit=1)}
    assert client.vector_stores.delete(made["id"]).deleted
    with pytest.raises(openai.NotFoundError):
        client.vector_stores.retrieve(made["id"])


def test_a_store_can_be_made_with_nothing(http: httpx.Client) -> None:
    for arguments in ({"json": {}}, {"headers": {"content-type": "application/json"}}):
        assert http.post("/v1/vector_stores", **arguments).status_code == 200  # type: ignore[arg-type]


def test_files_of_a_store(client: openai.OpenAI, http: httpx.Client, store_id: str) -> None:
    page = checked(
        http.get(f"/v1/vector_stores/{store_id}/files?filter=completed"),
        "/vector_stores/{vector_store_id}/files",
    )
    assert [len(page["data"]), page["has_more"]] == [2, False]
    member = page["data"][0]
    path = f"/v1/vector_stores/{store_id}/files/{member['id']}"
    shown = http.get(path)
    assert checked(shown, "/vector_stores/{vector_store_id}/files/{file_id}") == member
    assert 200 <= int(shown.headers["openai-poll-after-ms"]) <= 1000
    assert member["chunking_strategy"]["type"] == "static"
    content = checked(http.get(f"{path}/content"), "/vector_stores/{vector_store_id}/files/{file_id}/content")
    assert content["data"][0]["text"] in (MOUSE, WHALE)
    changed = client.vector_stores.files.update(
        member["id"], vector_store_id=store_id, attributes={"year": 2024}
    )
    assert changed.attributes == {"year": 2024.0}
    restored = {"legs": 4, "small": content["data"][0]["text"] == MOUSE}
    client.vector_stores.files.update(member["id"], vector_store_id=store_id, attributes=restored)


def test_sync_waits_for_the_job(client: openai.OpenAI, http: httpx.Client) -> None:
    store = client.vector_stores.create()
    stored = client.files.create(file=("note.txt", b"Owls hunt at night."), purpose="assistants")
    path = f"/v1/vector_stores/{store.id}/files"
    answer = http.post(f"{path}?sync=true", json={"file_id": stored.id})
    assert (answer.status_code, answer.json()["status"]) == (200, "completed")
    again = http.post(path, json={"file_id": stored.id, "chunking_strategy": {
        "type": "static", "static": {"max_chunk_size_tokens": 100, "chunk_overlap_tokens": 0}}})  # fmt: skip
    assert (again.status_code, again.headers["x-should-retry"]) == (409, "false")
    assert client.vector_stores.files.delete(stored.id, vector_store_id=store.id).deleted
    assert client.vector_stores.retrieve(store.id).file_counts.total == 0
    assert client.files.retrieve(stored.id).id == stored.id


def test_search(client: openai.OpenAI, http: httpx.Client, store_id: str) -> None:
    answer = http.post(f"/v1/vector_stores/{store_id}/search", json={"query": "harvest mouse nest"})
    page = checked(answer, "/vector_stores/{vector_store_id}/search")
    assert page["search_query"] == ["harvest mouse nest"]
    assert page["data"][0]["filename"] == "mouse.txt"
    assert page["data"][0]["attributes"] == {"legs": 4, "small": True}
    assert "keyword" in answer.headers["sherlock-stages"]
    small = client.vector_stores.search(
        store_id,
        query=["weight", "heart"],
        filters={"type": "and", "filters": [{"type": "eq", "key": "small", "value": False}]},
        max_num_results=1,
        ranking_options={"ranker": "none", "score_threshold": 0.0},
    )
    assert [hit.filename for hit in small.data] == ["whale.md"]
    none = client.vector_stores.search(
        store_id, query="mouse", filters={"type": "in", "key": "legs", "value": [2, "4"]}
    )
    assert none.data == []


def test_a_search_whose_question_is_rewritten(
    rag_on: Served, client: openai.OpenAI, http: httpx.Client, store_id: str
) -> None:
    rag_on.chat_model.reply = "harvest mouse weight"
    asked = "Hi! Tell me please, how heavy does that little animal get?"
    page = client.vector_stores.search(store_id, query=[asked, "And again?"], rewrite_query=True)
    assert page.model_extra["search_query"] == ["harvest mouse weight"] * 2  # type: ignore[index]
    assert page.data[0].filename == "mouse.txt"
    path = f"/v1/vector_stores/{store_id}/search"
    rewritten = http.post(path, json={"query": asked, "rewrite_query": True})
    assert rewritten.headers["sherlock-stages"].startswith("rewrite;dur=")
    rag_on.chat_model.error = ChatModelUnavailable("It is down.")
    kept = http.post(path, json={"query": asked, "rewrite_query": True})
    page = checked(kept, "/vector_stores/{vector_store_id}/search")
    assert page["search_query"] == [asked]
    assert page["data"]
    assert 'degraded="unavailable"' in kept.headers["sherlock-stages"]


def test_search_extensions(http: httpx.Client, store_id: str) -> None:
    path = f"/v1/vector_stores/{store_id}/search"
    keyword = http.post(
        path, json={"query": "mouse", "hybrid_alpha": 0, "top_k": 1, "include": ["sherlock"]}
    ).json()
    assert len(keyword["data"]) == 1
    assert "dense" not in keyword["sherlock"]["stages"]
    weights = {"hybrid_search": {"embedding_weight": 1, "text_weight": 0}}
    dense = http.post(
        f"{path}?include[]=sherlock", json={"query": "mouse", "ranking_options": weights}
    ).json()
    assert "keyword" not in dense["sherlock"]["stages"]


# ── embeddings and models ───────────────────────────────────────────────────


def test_embeddings_in_four_shapes(client: openai.OpenAI, http: httpx.Client) -> None:
    def vectors(given: Any, **options: Any) -> list[list[float]]:
        return [
            item.embedding for item in client.embeddings.create(model="hash", input=given, **options).data
        ]

    one, two = vectors("hello world"), vectors(["hello world", "good night"])
    assert one[0] == two[0] != two[1]
    assert math.isclose(sum(x * x for x in one[0]), 1, rel_tol=1e-5)
    assert vectors([15339, 1917]) == vectors([[15339, 1917]]) == one, "hello world in cl100k_base"
    short = vectors(MOUSE + WHALE, dimensions=200)[0]
    assert len(short) == 200
    assert math.isclose(sum(x * x for x in short), 1, rel_tol=1e-5)
    raw = (
        client.embeddings.create(model="hash", input="hello world", encoding_format="base64")
        .data[0]
        .embedding
    )
    assert list(struct.unpack("<384f", base64.b64decode(str(raw)))) == pytest.approx(one[0])
    body = {"model": "hash", "input": ["hello world", "good night"]}
    answer = checked(http.post("/v1/embeddings", json=body), "/embeddings")
    assert answer["usage"] == {"prompt_tokens": 4, "total_tokens": 4}


def test_models(client: openai.OpenAI, http: httpx.Client) -> None:
    assert [model.id for model in client.models.list()] == ["fake-model", "hash"]
    checked(http.get("/v1/models"), "/models")
    checked(http.get("/v1/models/fake-model"), "/models/{model}")
    with pytest.raises(openai.NotFoundError) as refused:
        client.models.retrieve("BAAI/bge-m3")
    assert refused.value.code == "model_not_found"


# ── chat ────────────────────────────────────────────────────────────────────


def chat(http: httpx.Client, **body: Any) -> Any:
    sent = {"model": "fake-model", "messages": USER, **body}
    return checked(http.post("/v1/chat/completions", json=sent), "/chat/completions")


def streamed(http: httpx.Client, **body: Any) -> list[Any]:
    """The data of the events of a stream, which has passed the schema and the order that helpers rely on."""
    sent = {"model": "fake-model", "messages": USER, "stream": True, **body}
    answer = http.post("/v1/chat/completions", json=sent)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["x-request-id"]
    events = parse_sse(answer.text)
    found = stream_violations("POST", "/chat/completions", events)
    assert not found, found
    return [data for _, data in events]


def test_a_plain_chat(rag_on: Served, http: httpx.Client) -> None:
    rag_on.chat_model.reply = "Six grams."
    answer = chat(http, temperature=0, seed=7, user="me", unheard_of=[1])
    choice = answer["choices"][0]
    assert choice["message"] == {
        "role": "assistant",
        "content": "Six grams.",
        "refusal": None,
        "annotations": [],
    }
    assert (choice["finish_reason"], choice["logprobs"]) == ("stop", None)
    assert answer["usage"]["total_tokens"] == answer["usage"]["prompt_tokens"] + 2
    assert "sherlock" not in answer
    asked = rag_on.chat_model.requests[-1]
    assert asked.options == {"temperature": 0, "seed": 7, "user": "me", "unheard_of": [1]}
    assert list(asked.messages) == USER


def test_a_grounded_chat_cites_its_passage(rag_on: Served, http: httpx.Client, store_id: str) -> None:
    rag_on.chat_model.reply = "It weighs six grams [1]."
    answer = chat(http, tools=file_search(store_id))
    message = answer["choices"][0]["message"]
    assert "tool_calls" not in message
    (entry,) = message["annotations"]
    cited = entry["url_citation"]
    assert message["content"][cited["start_index"] : cited["end_index"]] == "[1]"
    assert cited["quote"] == "The harvest mouse weighs six grams."
    assert (cited["title"], cited["filename"]) == ("mouse.txt", "mouse.txt")
    assert http.get(cited["url"]).text == MOUSE
    assert MOUSE[cited["quote_start"] :].startswith(cited["quote"])
    assert "keyword" in answer["sherlock"]["stages"]
    assert (answer["sherlock"]["degraded"], answer["sherlock"]["grounded"]) == ([], True)
    asked = rag_on.chat_model.requests[-1]
    assert [message["role"] for message in asked.messages] == ["system", "user"]
    assert "six grams" not in asked.messages[0]["content"]
    assert "six grams" in asked.messages[1]["content"]
    assert asked.options == {}
    assert answer["usage"]["prompt_tokens"] > 30, "the passages are counted"


def test_made_up_markers_do_not_reach_the_client(rag_on: Served, http: httpx.Client, store_id: str) -> None:
    rag_on.chat_model.reply = "It weighs six grams [9]. See [9](https://a.b) and `a[9]` [8, 1]."
    shown = "It weighs six grams. See [9](https://a.b) and `a[9]` [1]."
    assert chat(http, tools=file_search(store_id))["choices"][0]["message"]["content"] == shown
    *chunks, _ = streamed(http, tools=file_search(store_id))
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
    assert "".join(delta.get("content") or "" for delta in deltas) == shown
    asis = chat(http)["choices"][0]["message"]["content"]
    assert asis == rag_on.chat_model.reply, "nothing is touched where no files are searched"


def test_an_answer_that_rests_on_nothing_says_so(rag_on: Served, http: httpx.Client, store_id: str) -> None:
    rag_on.chat_model.reply = "The moon is made of green cheese [1]."
    nothing = chat(http, tools=file_search("vs_nobody"))
    assert (nothing["sherlock"]["grounded"], nothing["choices"][0]["message"]["annotations"]) == (False, [])
    said = f"{NOTICE}\n\nThe moon is made of green cheese."
    assert nothing["choices"][0]["message"]["content"] == said
    assert NOTHING_FOUND in rag_on.chat_model.requests[-1].messages[0]["content"]
    rag_on.chat_model.reply = "The moon is made of green cheese."
    assert chat(http, tools=file_search(store_id))["sherlock"]["grounded"] is False


def test_a_question_about_something_else_gets_no_passages(
    rag_on: Served, http: httpx.Client, store_id: str
) -> None:
    rag_on.chat_model.reply = "Paris [1]."
    messages = [{"role": "user", "content": "Which town is the capital of France?"}]
    search = {"tools": file_search(store_id), "messages": messages}
    answer = chat(http, **search)
    assert answer["choices"][0]["message"]["content"] == f"{NOTICE}\n\nParis."
    assert (answer["sherlock"]["grounded"], answer["choices"][0]["message"]["annotations"]) == (False, [])
    instructions, asked = rag_on.chat_model.requests[-1].messages
    assert NOTHING_FOUND in instructions["content"]
    assert asked["content"] == "Which town is the capital of France?"
    *chunks, _ = streamed(http, **search)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
    assert "".join(delta.get("content") or "" for delta in deltas) == f"{NOTICE}\n\nParis."
    assert chunks[-1]["sherlock"]["grounded"] is False


def test_a_greeting_is_answered_as_one(rag_on: Served, http: httpx.Client, store_id: str) -> None:
    rag_on.chat_model.reply = "Hello to you."
    answer = chat(http, tools=file_search(store_id), messages=[{"role": "user", "content": "Hi there!"}])
    assert answer["choices"][0]["message"]["content"] == "Hello to you."
    instructions, asked = rag_on.chat_model.requests[-1].messages
    assert instructions["content"].endswith(SMALL_TALK)
    assert asked["content"] == "Hi there!"


def test_quotes_stand_in_the_content_of_the_file(rag_on: Served, http: httpx.Client) -> None:
    text = (
        "\n\n  Preface.\r\n\r\n \t Six grams is what the mouse weighs.  \n\n\n\n"
        + "And on it goes. \n \n" * 200
    )
    file = http.post(
        "/v1/files", files={"file": ("m.md", text.encode())}, data={"purpose": "assistants"}
    ).json()
    store = http.post("/v1/vector_stores", json={"name": "exact"}).json()["id"]
    http.post(f"/v1/vector_stores/{store}/files?sync=true", json={"file_id": file["id"]})
    (part,) = http.get(f"/v1/vector_stores/{store}/files/{file['id']}/content").json()["data"]
    rag_on.chat_model.reply = "The mouse weighs six grams. And on it goes."
    cited = chat(http, tools=file_search(store))["choices"][0]["message"]["annotations"]
    assert len(cited) == 2
    for entry in cited:
        quote, start = entry["url_citation"]["quote"], entry["url_citation"]["quote_start"]
        assert part["text"][start : start + len(quote)] == quote


def test_a_follow_up_question_is_searched_for_as_what_it_means(
    rag_on: Served, http: httpx.Client, store_id: str
) -> None:
    talk = [
        {"role": "user", "content": "Tell me about the harvest mouse."},
        {"role": "assistant", "content": "It is small."},
        {"role": "user", "content": "And what does it weigh?"},
    ]
    rag_on.chat_model.reply = "The harvest mouse weighs six grams."
    answer = chat(http, messages=talk, tools=file_search(store_id))
    assert answer["sherlock"]["stages"][0] == "rewrite"
    (entry,) = answer["choices"][0]["message"]["annotations"]
    assert entry["url_citation"]["quote"] == "The harvest mouse weighs six grams."
    condensing, answering = rag_on.chat_model.requests[-2:]
    assert "what does it weigh" in condensing.messages[1]["content"]
    assert list(answering.messages)[1:-1] == talk[:-1]
    assert answering.messages[-1]["content"].endswith("And what does it weigh?")
    alone = chat(http, messages=talk[:1], tools=file_search(store_id))
    assert "rewrite" not in alone["sherlock"]["stages"]


def test_a_stream_is_the_plain_answer_in_pieces(rag_on: Served, http: httpx.Client, store_id: str) -> None:
    rag_on.chat_model.reply = "It weighs six grams [1], its nest is of woven grass [1]."
    body = {"tools": file_search(store_id), "stream_options": {"include_usage": True}}
    *chunks, done = streamed(http, **body)
    plain = chat(http, tools=file_search(store_id))
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    assert done == "[DONE]"
    assert choices[0]["delta"] == {"role": "assistant", "content": "", "refusal": None}
    text = "".join(choice["delta"].get("content", "") for choice in choices)
    annotations = [choice["delta"]["annotations"] for choice in choices if "annotations" in choice["delta"]]
    assert (text, annotations) == (
        plain["choices"][0]["message"]["content"],
        [plain["choices"][0]["message"]["annotations"]],
    )
    assert len(annotations[0]) == 2
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert (chunks[-1]["usage"], chunks[-1]["choices"]) == (plain["usage"], [])
    assert chunks[-2]["sherlock"]["stages"] == plain["sherlock"]["stages"]
    assert chunks[-2]["sherlock"]["grounded"] is plain["sherlock"]["grounded"] is True
    assert all("usage" not in chunk for chunk in streamed(http)[:-1])


def test_the_clients_stream_helper(rag_on: Served, client: openai.OpenAI) -> None:
    rag_on.chat_model.events = [
        TextDelta("a"),
        TextDelta("b", choice=1),
        Finished("stop", 0),
        TextDelta("c", choice=1),
        Finished("stop", 1),
        Usage(3, 3, {"prompt_tokens_details": {"cached_tokens": 1, "audio_tokens": None}}),
    ]
    with client.chat.completions.stream(
        model="fake-model",
        messages=USER,
        n=2,
        stream_options={"include_usage": True},  # type: ignore[arg-type]
    ) as stream:
        final = stream.get_final_completion()
    shown = [(choice.message.content, choice.finish_reason) for choice in final.choices]
    assert shown == [("a", "stop"), ("bc", "stop")]
    assert final.usage is not None
    assert (final.usage.total_tokens, final.usage.prompt_tokens_details.cached_tokens) == (6, 1)  # type: ignore[union-attr]


def test_function_calls_pass_through_beside_file_search(
    rag_on: Served, client: openai.OpenAI, http: httpx.Client, store_id: str
) -> None:
    rag_on.chat_model.events = [
        ToolCallDelta(0, "call_1", "weigh", ""),
        ToolCallDelta(0, "call_1", "weigh", '{"animal": '),
        ToolCallDelta(0, None, None, '"mouse"}'),
        ToolCallDelta(1, "call_2", "now", "{}"),
        Finished("tool_calls"),
    ]
    function = {"type": "function", "function": {"name": "weigh", "parameters": {}}}
    body = {
        "tools": [*file_search(store_id), function],
        "tool_choice": "required",
        "parallel_tool_calls": False,
    }
    choice = chat(http, **body)["choices"][0]
    assert choice["message"]["content"] is None
    calls = [(call["id"], call["function"]) for call in choice["message"]["tool_calls"]]
    assert calls == [
        ("call_1", {"name": "weigh", "arguments": '{"animal": "mouse"}'}),
        ("call_2", {"name": "now", "arguments": "{}"}),
    ]
    options = rag_on.chat_model.requests[-1].options
    assert options == {"tools": [function], "tool_choice": "auto", "parallel_tool_calls": False}
    with client.chat.completions.stream(model="fake-model", messages=USER, extra_body=body) as stream:  # type: ignore[arg-type]
        final = stream.get_final_completion().choices[0].message
    assert [(c.id, c.function.arguments) for c in final.tool_calls or ()] == [
        ("call_1", '{"animal": "mouse"}'),
        ("call_2", "{}"),
    ]
    streamed(http, **body)


def test_refusals_and_logprobs_are_kept(rag_on: Served, http: httpx.Client) -> None:
    token = {"token": "no", "logprob": -0.1, "bytes": None, "top_logprobs": []}
    rag_on.chat_model.events = [
        TextDelta("no", logprobs={"content": [token], "refusal": None}),
        TextDelta("no", logprobs={"content": [token], "refusal": None}),
        Finished("stop"),
    ]
    assert chat(http, logprobs=True)["choices"][0]["logprobs"] == {"content": [token] * 2, "refusal": None}
    streamed(http, logprobs=True)
    rag_on.chat_model.events = [RefusalDelta("I can"), RefusalDelta("not."), Finished("content_filter")]
    choice = chat(http)["choices"][0]
    assert (choice["message"]["content"], choice["message"]["refusal"]) == (None, "I cannot.")
    streamed(http)


@pytest.mark.parametrize(
    ("choice", "searched"),
    [
        (None, True),
        ("auto", True),
        ("none", False),
        ({"type": "file_search"}, True),
        ({"type": "function", "function": {"name": "f"}}, False),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"type": "file_search"}]}},
            True,
        ),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}, False),
    ],
)
def test_tool_choice_decides_whether_files_are_searched(
    http: httpx.Client, store_id: str, choice: Any, searched: bool
) -> None:
    function = {"type": "function", "function": {"name": "f"}}
    answer = chat(http, tools=[*file_search(store_id), function], tool_choice=choice)
    assert ("sherlock" in answer) == searched


def test_a_store_nobody_knows_yields_nothing(http: httpx.Client, store_id: str) -> None:
    both = chat(http, tools=[{"type": "file_search", "vector_store_ids": ["vs_nobody", store_id]}])
    assert both["sherlock"]["stages"]
    assert chat(http, tools=file_search("vs_nobody"))["choices"][0]["message"]["content"]


def test_what_the_client_sends_is_what_the_schema_says(client: openai.OpenAI) -> None:
    """Guards the checker itself: a request it holds to be wrong is reported."""
    assert not request_violations("POST", "/chat/completions", {"model": "m", "messages": USER})
    assert request_violations("POST", "/chat/completions", {"messages": "hello"})


# ── file batches ──


def upload(client: openai.OpenAI, text: str) -> str:
    return client.files.create(file=("note.txt", text.encode()), purpose="assistants").id


def test_a_batch_is_polled_to_its_end(client: openai.OpenAI) -> None:
    """A file that cannot be read is counted, and does not fail the batch."""
    store = client.vector_stores.create()
    good, bad = upload(client, MOUSE), upload(client, "  \n ")
    batch = client.vector_stores.file_batches.create_and_poll(store.id, file_ids=[good, bad, good])
    assert (batch.status, batch.object) == ("completed", "vector_store.file_batch")
    assert batch.file_counts.model_dump() == {
        "in_progress": 0, "completed": 1, "failed": 1, "cancelled": 0, "total": 2,
    }  # fmt: skip
    listed = client.vector_stores.file_batches.list_files(batch.id, vector_store_id=store.id)
    assert {file.id: file.status for file in listed} == {good: "completed", bad: "failed"}
    failed = client.vector_stores.file_batches.list_files(
        batch.id, vector_store_id=store.id, filter="failed", limit=1
    )
    assert [file.id for file in failed] == [bad]
    ended = client.vector_stores.file_batches.cancel(batch.id, vector_store_id=store.id)
    assert ended.status == "completed"


def test_each_file_of_a_batch_in_its_own_way(client: openai.OpenAI) -> None:
    store = client.vector_stores.create()
    one, two = upload(client, MOUSE), upload(client, WHALE)
    static = {"max_chunk_size_tokens": 100, "chunk_overlap_tokens": 10}
    batch = client.vector_stores.file_batches.create(
        store.id,
        files=[
            {"file_id": one, "attributes": {"legs": 4}},
            {"file_id": two, "chunking_strategy": {"type": "static", "static": static}},  # type: ignore[typeddict-item]
        ],
    )
    batch = client.vector_stores.file_batches.poll(batch.id, vector_store_id=store.id)
    assert batch.file_counts.completed == 2
    first = client.vector_stores.files.retrieve(one, vector_store_id=store.id)
    second = client.vector_stores.files.retrieve(two, vector_store_id=store.id)
    assert (first.attributes, second.attributes) == ({"legs": 4}, {})
    assert second.chunking_strategy.static.max_chunk_size_tokens == 100  # type: ignore[union-attr]


def test_files_are_uploaded_and_attached_together(client: openai.OpenAI) -> None:
    store = client.vector_stores.create()
    batch = client.vector_stores.file_batches.upload_and_poll(
        store.id, files=[("mouse.txt", MOUSE.encode()), ("whale.txt", WHALE.encode())]
    )
    assert (batch.status, batch.file_counts.completed) == ("completed", 2)


def test_batches_have_the_official_shapes(client: openai.OpenAI, http: httpx.Client) -> None:
    store_id = client.vector_stores.create().id
    path = "/v1/vector_stores/{vector_store_id}/file_batches"
    body = {"file_ids": [upload(client, MOUSE)], "attributes": {"a": True}}
    batch = checked(http.post(f"/v1/vector_stores/{store_id}/file_batches", json=body), path)
    url = f"/v1/vector_stores/{store_id}/file_batches/{batch['id']}"
    retrieved = http.get(url)
    checked(retrieved, f"{path}/{{batch_id}}")
    assert 200 <= int(retrieved.headers["openai-poll-after-ms"]) <= 1000
    # One official client sends an empty body as JSON, the other none at all.
    for headers in ({"content-type": "application/json"}, {}):
        checked(http.post(f"{url}/cancel", headers=headers), f"{path}/{{batch_id}}/cancel")
    checked(http.get(f"{url}/files"), f"{path}/{{batch_id}}/files")
