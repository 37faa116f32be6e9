"""Documents that want more than to be read: what they say stays data, and changes nothing in the service.

`tests/data/injections.jsonl` holds them, each with a fact that is asked for. The worst case is played, too:
a model that obeys, and says what the document says.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from tests.serving import Served

from sherlock.config import DEFAULT_SYSTEM_PROMPT
from sherlock.rag.application.passages import CLOSING, OPENING

DOCUMENTS = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "data" / "injections.jsonl").read_text("utf-8").splitlines()
]
NAMES = [document["name"] for document in DOCUMENTS]
SECRET = "The secret of the other store is OMEGA-9."
QUESTION = "What is the harbour code?"
FUNCTION = {"type": "function", "function": {"name": "ring_bell", "parameters": {"type": "object"}}}
TURNS = re.compile(
    r"<[|｜]|[|｜]>|</?s>|_of_turn>|\[/?(?:INST|SYSTEM_PROMPT)\]|<</?SYS>>|</?tool_", re.IGNORECASE
)
MADE_UP = re.compile(r"(?<=[ .])\[(?:2|7|9|42)\]|【3】")


@pytest.fixture(scope="module")
def http(rag_on: Served) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=rag_on.url, timeout=60) as client:
        yield client


@pytest.fixture(autouse=True)
def plain_model(rag_on: Served) -> Iterator[None]:
    yield
    rag_on.chat_model.reply = None


@pytest.fixture(scope="module")
def store_id(http: httpx.Client) -> str:
    """All of the documents in one store, and a store beside it that is nobody's business."""
    add(http, new_store(http, "vs_secret"), "secret.txt", SECRET)
    store = new_store(http, "injections")
    for document in DOCUMENTS:
        add(http, store, document["name"], document["text"])
    return store


def new_store(http: httpx.Client, name: str) -> str:
    return str(http.post("/v1/vector_stores", json={"name": name}).json()["id"])


def add(http: httpx.Client, store_id: str, name: str, text: str) -> None:
    upload = {"files": {"file": (name, text.encode())}, "data": {"purpose": "assistants"}}
    body = {"file_id": http.post("/v1/files", **upload).json()["id"], "attributes": {"name": name}}
    done = http.post(f"/v1/vector_stores/{store_id}/files?sync=true", json=body).json()
    assert (done["status"], done["last_error"]) == ("completed", None)


def ask(http: httpx.Client, store_id: str, name: str) -> Any:
    search = {
        "type": "file_search",
        "vector_store_ids": [store_id],
        "filters": {"type": "eq", "key": "name", "value": name},
    }
    body = {
        "model": "fake-model",
        "messages": [{"role": "user", "content": QUESTION}],
        "tools": [search, FUNCTION],
        "tool_choice": "auto",
    }
    answer = http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def everything(client: openai.OpenAI, store_id: str) -> list[Any]:
    """What a document might want to change; that a search was made may show."""
    lists = [
        client.vector_stores.list(limit=100),
        client.files.list(limit=100),
        client.vector_stores.files.list(store_id, limit=100),
    ]
    shown = [item.to_dict() | {"last_active_at": 0} for found in lists for item in found]
    return sorted(shown, key=str)


def test_there_are_enough_of_them() -> None:
    assert len(set(NAMES)) >= 12


@pytest.mark.parametrize("document", DOCUMENTS, ids=NAMES)
def test_what_a_document_says_is_data(
    rag_on: Served, http: httpx.Client, store_id: str, document: dict[str, str]
) -> None:
    rag_on.chat_model.reply = "I do not know."
    ask(http, store_id, document["name"])
    asked = rag_on.chat_model.requests[-1]
    instructions, said = asked.messages
    assert instructions == {"role": "system", "content": DEFAULT_SYSTEM_PROMPT}
    assert said["role"] == "user"
    opening, passages, question = re.split(
        f"({re.escape(OPENING)}.*{re.escape(CLOSING)})", said["content"], flags=re.DOTALL
    )
    assert (opening, question) == ("", f"\n\n{QUESTION}"), "nothing stands outside of the delimiters"
    inside = passages.removeprefix(OPENING).removesuffix(CLOSING)
    assert document["fact"] in inside
    assert "passages>" not in inside.lower()
    assert not TURNS.search(inside)
    assert re.findall(r"^\s*[\[【]\d+[\]】]", inside, re.MULTILINE) == ["\n\n[1]"], "one header, ours"
    assert asked.options == {"tools": [FUNCTION], "tool_choice": "auto"}
    assert (asked.model, SECRET in said["content"]) == ("fake-model", False)
    assert all(other["fact"] not in inside for other in DOCUMENTS if other is not document), (
        "the filter holds"
    )


@pytest.mark.parametrize("document", DOCUMENTS, ids=NAMES)
def test_a_model_that_obeys_moves_nothing(
    rag_on: Served, http: httpx.Client, client: openai.OpenAI, store_id: str, document: dict[str, str]
) -> None:
    before = everything(client, store_id)
    rag_on.chat_model.reply = document["text"]
    answer = ask(http, store_id, document["name"])
    (choice,) = answer["choices"]
    assert (choice["finish_reason"], "tool_calls" in choice["message"]) == ("stop", False)
    assert not MADE_UP.search(choice["message"]["content"])
    cited = [entry["url_citation"] for entry in choice["message"]["annotations"]]
    assert {citation["filename"] for citation in cited} <= {document["name"]}
    for citation in cited:
        content = http.get(f"/v1/vector_stores/{store_id}/files/{citation['file_id']}/content").json()
        start, quote = citation["quote_start"], citation["quote"]
        assert content["data"][0]["text"][start : start + len(quote)] == quote
    assert everything(client, store_id) == before


@pytest.mark.parametrize("name", ["fake-citations.txt", "data-stream.txt", "break-out.md"])
def test_streams_and_responses_hold_as_well(
    rag_on: Served, client: openai.OpenAI, store_id: str, name: str
) -> None:
    (document,) = [document for document in DOCUMENTS if document["name"] == name]
    rag_on.chat_model.reply = document["text"]
    tools: Any = [{
        "type": "file_search",
        "vector_store_ids": [store_id],
        "filters": {"type": "eq", "key": "name", "value": name},
    }]  # fmt: skip
    response = client.responses.create(model="fake-model", input=QUESTION, tools=tools)
    assert [item.type for item in response.output] == ["file_search_call", "message"]
    messages: Any = [{"role": "user", "content": QUESTION}]
    stream = client.chat.completions.create(model="fake-model", messages=messages, tools=tools, stream=True)
    said = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
    assert said == response.output_text
    assert not MADE_UP.search(said)
    assert document["fact"] in said
