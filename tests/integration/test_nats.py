"""Messages on a real NATS server: every subject."""

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from pydantic import SecretStr
from tests.conftest import new_database
from tests.nats_clients import (
    INGEST,
    RAG,
    TURBINE,
    WAIT_S,
    ask,
    check,
    connected,
    hear,
    nats_state,
    new_file,
    new_store,
    until,
)
from tests.nats_servers import MAX_PAYLOAD, NatsServer, nats_server
from tests.serving import Served, settings_for, sherlock

from sherlock.config import Settings
from sherlock.embedded import EmbeddedPostgres

Configure = Callable[..., Settings]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with nats_server(tmp_path_factory.mktemp("nats")) as running:
        yield running


@pytest.fixture(scope="module")
async def configure(
    embedded: EmbeddedPostgres, server: NatsServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Configure]:
    """Settings of Sherlocks that share one database, one folder of files and one NATS server."""
    folder = tmp_path_factory.mktemp("sherlocks")
    async with new_database(embedded) as url:

        def configure(**settings: object) -> Settings:
            given = {"rag_enabled": True, "nats_url": SecretStr(server.url), "postgres_url": SecretStr(url)}
            return settings_for(folder, **{**given, **settings})

        yield configure


@pytest.fixture(scope="module")
async def running(configure: Configure) -> AsyncIterator[Served]:
    """A Sherlock that listens when it is handed out."""
    with sherlock(configure()) as served:
        await until(lambda: nats_state(served)[1]["state"] == "ready")
        yield served


@pytest.fixture
async def client(server: NatsServer) -> AsyncIterator[Client]:
    async with connected(server) as client:
        yield client


@pytest.fixture(scope="module")
async def store(running: Served) -> str:
    """With one file in it."""
    store, file = new_store(running), new_file(running)
    with running.http() as http:
        attached = http.post(f"/v1/vector_stores/{store}/files?sync=true", json={"file_id": file})
    assert attached.json()["status"] == "completed"
    return store


# ── search, embed, chat ─────────────────────────────────────────────────────


async def test_search(running: Served, client: Client, store: str) -> None:
    results = await hear(client, f"{RAG}.search.result")
    asked = {"query": "shut-off code", "vector_store_ids": [store], "request_id": "mine", "top_k": 3}
    answer = await ask(client, f"{RAG}.search.request", asked | {"hybrid_alpha": 0.5})
    assert answer["error"] is None
    assert (answer["request_id"], answer["query"]) == ("mine", "shut-off code")
    assert answer["vector_store_ids"] == [store]
    [found] = answer["results"]
    assert (found["content"], found["filename"], found["chunk_index"]) == (TURBINE, "turbine.txt", 0)
    assert await results.wait(request_id="mine") == [answer]


async def test_older_spellings(running: Served, client: Client, store: str) -> None:
    asked = {"query": "shut-off code", "vs_ids": [store], "alpha": 0}
    answer = await ask(client, f"{RAG}.search.request", asked, valid=False)
    assert (answer["error"], len(answer["results"])) == (None, 1)
    assert answer["sherlock"]["stages"][0] == "keyword", "alpha 0 needs no vector"


async def test_embed(running: Served, client: Client) -> None:
    one = await ask(client, f"{RAG}.embed.request", {"input": "a turbine"})
    two = await ask(client, f"{RAG}.embed.request", {"input": ["a garden", "a turbine"], "model": "hash"})
    assert (one["model"], len(one["embeddings"]), one["request_id"][:4]) == ("hash", 1, "req_")
    assert two["embeddings"][1] == one["embeddings"][0]
    with running.http() as http:
        over_http = http.post("/v1/embeddings", json={"model": "hash", "input": "a turbine"}).json()
    assert over_http["data"][0]["embedding"] == one["embeddings"][0]


async def test_chat_over_files(running: Served, client: Client, store: str) -> None:
    results = await hear(client, f"{RAG}.chat.result")
    running.chat_model.reply = "The code is KX-4471-Q [1]."
    asked = {
        "user_id": "u1",
        "text": "What is the shut-off code?",
        "vector_store_ids": [store],
        "request_id": "c1",
    }
    answer = await ask(client, f"{RAG}.chat.request", asked)
    assert answer["object"] == "chat.completion"
    assert (answer["user_id"], answer["vector_store_ids"], answer["error"]) == ("u1", [store], None)
    message = answer["choices"][0]["message"]
    assert message["content"] == running.chat_model.reply
    assert message["annotations"][0]["url_citation"]["quote"] == TURBINE
    assert "KX-4471-Q" in str(running.chat_model.requests[-1].messages), "the passage was shown to the model"
    assert await results.wait(request_id="c1") == [answer]
    spoken = {"messages": [{"role": "user", "content": "Good day"}], "vector_store_ids": []}
    assert (await ask(client, f"{RAG}.chat.request", spoken))["error"] is None


async def test_plain_chat(running: Served, client: Client) -> None:
    results = await hear(client, "sherlock.v1.result")
    running.chat_model.reply = "Good day."
    asked = {
        "model": "fake-model",
        "messages": [{"role": "user", "content": "Hello"}],
        "stream": True,
        "seed": 7,
    }
    answer = await ask(client, "sherlock.v1.chat", asked | {"request_id": "p1"})
    assert answer["choices"][0]["message"]["content"] == "Good day."
    assert running.chat_model.requests[-1].options == {"seed": 7}, (
        "the request's id is not the model's affair"
    )
    assert await results.wait(request_id="p1") == [answer]
    # Without a reply inbox the result subject is the only answer.
    await client.publish("sherlock.v1.chat", json.dumps(asked | {"request_id": "p2"}).encode())
    assert len(await results.wait(request_id="p2")) == 1


async def test_correlation_comes_back(running: Served, client: Client) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    sent = {"X-Request-Id": "from-a-header", "traceparent": trace}
    msg = await client.request(f"{RAG}.embed.request", b'{"input": "a"}', timeout=WAIT_S, headers=sent)
    assert json.loads(msg.data)["request_id"] == "from-a-header"
    assert msg.headers is not None
    assert (msg.headers["x-request-id"], msg.headers["traceparent"]) == ("from-a-header", trace)


BAD: list[tuple[str, Any, str, str | None]] = [
    ("search", b"\xff\x00 no JSON", "could not parse", None),
    ("search", b"[" * 5000, "could not parse", None),
    ("search", [1], "must be a JSON object", None),
    ("search", {"vector_store_ids": ["vs_1"]}, "Missing required parameter: 'query'.", "query"),
    ("search", {"query": "q", "vs_ids": []}, "array too short", "vs_ids"),
    ("search", {"query": "q", "vector_store_ids": ["vs_gone"]}, "No such VectorStore object: vs_gone", "id"),
    ("search", {"query": "q", "vector_store_ids": ["a"], "hybrid_alpha": 2}, "above maximum", "hybrid_alpha"),
    ("search", {"query": "q\0", "vector_store_ids": ["a"]}, "U+0000", "query"),
    ("search", {"query": "q", "vector_store_ids": ["a"], "request_id": 7}, "expected a string", "request_id"),
    ("embed", {"input": []}, "array too short", "input"),
    ("embed", {"input": "a", "model": "other"}, "The model 'other' does not exist", "model"),
    ("embed", {"input": "word " * 9000}, "tokens an input", "input"),
    ("chat", {"vector_store_ids": []}, "'text'", "text"),
    ("chat", {"text": "a", "messages": [{"role": "user", "content": "b"}]}, "not both", "text"),
    ("chat", {"text": "a", "model": "other"}, "The model 'other' does not exist", "model"),
]


@pytest.mark.parametrize(("kind", "payload", "told", "param"), BAD)
async def test_what_is_wrong_is_said(
    running: Served, client: Client, kind: str, payload: Any, told: str, param: str | None
) -> None:
    answer = await ask(client, f"{RAG}.{kind}.request", payload, valid=False)
    assert told in answer["error"]
    assert answer["error_param"] == param
    assert answer["request_id"].startswith("req_")
    assert not {"results", "embeddings", "choices"} & set(answer), "a failure is never an empty answer"


async def test_an_unknown_store_among_several_yields_nothing(
    running: Served, client: Client, store: str
) -> None:
    asked = {"query": "shut-off code", "vector_store_ids": [store, "vs_gone"]}
    answer = await ask(client, f"{RAG}.search.request", asked)
    assert (answer["error"], len(answer["results"])) == (None, 1)


async def test_a_result_too_large_is_said(running: Served, client: Client) -> None:
    asked = {"input": ["word"] * 100, "request_id": "large"}
    answer = await ask(client, f"{RAG}.embed.request", asked)
    assert (answer["request_id"], answer["error_code"]) == ("large", "result_too_large")
    assert str(MAX_PAYLOAD) in answer["error"]


async def test_slow_chats_hold_up_nothing_else(running: Served, client: Client, store: str) -> None:
    results = await hear(client, "sherlock.v1.result")
    running.chat_model.delay_s = 1.5
    chat = {"model": "fake-model", "messages": [{"role": "user", "content": "Hello"}]}
    try:
        began = time.monotonic()
        for number in range(40):  # more than are worked on at once
            await client.publish("sherlock.v1.chat", json.dumps(chat | {"request_id": f"s{number}"}).encode())
        answer = await ask(client, f"{RAG}.search.request", {"query": "code", "vector_store_ids": [store]})
        assert answer["error"] is None
        assert time.monotonic() - began < 1.0
        assert results.messages == []
    finally:
        running.chat_model.delay_s = 0.0
    await results.wait(40)
    assert len({payload["request_id"] for payload in results.of(error=None)}) == 40


async def test_nothing_is_published_to_the_servers_own_subjects(running: Served, client: Client) -> None:
    """A sender chooses where its answer goes, with what Sherlock may publish and it may not."""
    results = await hear(client, f"{RAG}.embed.result")
    spied = []

    async def spy(msg: Msg) -> None:
        spied.append(msg.subject)

    await client.subscribe("$JS.API.STREAM.PURGE.SHERLOCK_INGEST", cb=spy)
    await client.publish(
        f"{RAG}.embed.request",
        b'{"input": "a", "request_id": "deputy"}',
        reply="$JS.API.STREAM.PURGE.SHERLOCK_INGEST",
    )
    assert await results.wait(request_id="deputy")
    await client.flush()
    assert spied == []


# ── ingest ──────────────────────────────────────────────────────────────────


async def test_ingest(running: Served, client: Client) -> None:
    store, file = new_store(running), new_file(running)
    results = await hear(client, f"{RAG}.ingest.result")
    mine = await hear(client, "my.own.subject", f"{RAG}.ingest.result")
    progress = await hear(client, f"{RAG}.ingest.progress.{file}")
    asked = {"file_id": file, "vector_store_id": store, "request_id": "i1"}
    check(INGEST, asked)
    accepted = await client.request(
        INGEST, json.dumps(asked).encode(), headers={"Sherlock-Reply-To": "my.own.subject"}
    )
    assert json.loads(accepted.data)["stream"] == "SHERLOCK_INGEST"
    [result] = await results.wait(request_id="i1")
    assert result == {
        "request_id": "i1", "file_id": file, "vector_store_id": store,
        "status": "completed", "chunk_count": 1, "error": None,
    }  # fmt: skip
    assert await mine.wait(request_id="i1") == [result]
    await progress.wait(stage="completed")
    told = [(event["stage"], event["chunks"]) for _, event in progress.messages]
    assert told == [("fetch", 0), ("embed", 0), ("embed", 1), ("publish", 1), ("completed", 1)]
    assert results.messages[0][0].headers is not None
    assert results.messages[0][0].headers["x-request-id"] == "i1"


async def test_the_same_file_again_and_twice_the_same_message(running: Served, client: Client) -> None:
    store, file = new_store(running), new_file(running)
    results = await hear(client, f"{RAG}.ingest.result")
    stream = client.jetstream()
    for request_id in ("d1", "d2"):
        payload = json.dumps({"file_id": file, "vs_id": store, "request_id": request_id}).encode()
        for _ in range(2):  # the stream itself drops the second
            await stream.publish(INGEST, payload, headers={"Nats-Msg-Id": request_id + file})
    await results.wait(request_id="d1")
    await results.wait(request_id="d2")
    with running.http() as http:
        assert http.get(f"/v1/vector_stores/{store}").json()["file_counts"]["total"] == 1
    await asyncio.sleep(0.2)
    assert [len(results.of(request_id=name)) for name in ("d1", "d2")] == [1, 1]


async def test_a_file_that_cannot_be_read(running: Served, client: Client) -> None:
    store, file = new_store(running), new_file(running, "not a document", "broken.pdf")
    results = await hear(client, f"{RAG}.ingest.result")
    await client.publish(
        INGEST,
        json.dumps({"file_id": file, "vector_store_id": store, "request_id": "b1"}).encode(),
    )
    [result] = await results.wait(request_id="b1")
    assert (result["status"], result["chunk_count"], result["error_code"]) == ("failed", 0, "invalid_file")
    assert result["error"].endswith(".")


POISON: list[tuple[Any, str]] = [
    (b"{no json", "could not parse"),
    ({"file_id": "file-1"}, "Missing required parameter: 'vector_store_id'."),
    ({"file_id": "file-gone", "vector_store_id": "vs_gone"}, "No such VectorStore object: vs_gone"),
]


async def test_poison_is_parked_with_the_reason(running: Served, client: Client, store: str) -> None:
    results = await hear(client, f"{RAG}.ingest.result")
    stream = client.jetstream()
    parked = await stream.subscribe(f"{RAG}.ingest.parked", ordered_consumer=True)
    cases = [*POISON, ({"file_id": "file-gone", "vector_store_id": store}, "No such File object: file-gone")]
    for payload, told in cases:
        sent = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        await stream.publish(INGEST, sent, headers={"x-request-id": "poisoned"})
        msg = await parked.next_msg(timeout=WAIT_S)
        assert msg.data == sent
        assert msg.headers is not None
        assert told in msg.headers["Sherlock-Parked-Reason"]
    failed = await results.wait(len(cases), request_id="poisoned")
    assert [told in result["error"] for result, (_, told) in zip(failed, cases, strict=True)] == [True] * 4
    assert {result["status"] for result in failed} == {"failed"}
    assert failed[-1]["file_id"] == "file-gone"
    await until_empty(client)
    await parked.unsubscribe()


async def until_empty(client: Client) -> None:
    stream = client.jetstream()
    async with asyncio.timeout(WAIT_S):
        while (await stream.stream_info("SHERLOCK_INGEST")).state.messages:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_several_sherlocks_share_the_work(
    running: Served, configure: Configure, client: Client
) -> None:
    results = await hear(client, f"{RAG}.embed.result")
    with sherlock(configure()) as second:
        await until(lambda: nats_state(second)[1]["state"] == "ready")
        names = [secrets.token_hex(8) for _ in range(60)]
        for name in names:
            await client.publish(
                f"{RAG}.embed.request", json.dumps({"input": "a", "request_id": name}).encode()
            )
        for name in names:
            await results.wait(request_id=name)
        await asyncio.sleep(0.2)
        assert sorted(payload["request_id"] for _, payload in results.messages) == sorted(names)
        store, files = new_store(second), [new_file(second) for _ in range(6)]
        ingested = await hear(client, f"{RAG}.ingest.result")
        for file in files:
            asked = {"file_id": file, "vector_store_id": store, "request_id": file}
            await client.publish(INGEST, json.dumps(asked).encode())
        for file in files:
            await ingested.wait(request_id=file)
        await asyncio.sleep(0.2)
        assert len(ingested.messages) == len(files)
    # The one that stopped has left the group: nothing is lost to it.
    answers = [await ask(client, f"{RAG}.embed.request", {"input": "a"}) for _ in range(10)]
    assert {answer["error"] for answer in answers} == {None}
