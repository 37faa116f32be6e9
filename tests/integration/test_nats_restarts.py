"""Messages when something is down, dies, starts late or is told to stop."""

import json
import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
from nats.aio.client import Client
from pydantic import SecretStr
from tests.conftest import new_database
from tests.integration.processes import deployment
from tests.nats_clients import (
    INGEST,
    RAG,
    TURBINE,
    WAIT_S,
    ask,
    connected,
    hear,
    nats_state,
    new_file,
    new_store,
    until,
)
from tests.nats_servers import PASSWORD, NatsServer, nats_server
from tests.serving import settings_for, sherlock

from sherlock.config import Settings
from sherlock.embedded import EmbeddedPostgres

HELLO = {"model": "fake-model", "messages": [{"role": "user", "content": "Hello"}]}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    with nats_server(tmp_path) as running:
        yield running


@pytest.fixture
async def client(server: NatsServer) -> AsyncIterator[Client]:
    async with connected(server) as client:
        yield client


@pytest.fixture(scope="module")
async def database_of_ours(embedded: EmbeddedPostgres) -> AsyncIterator[str]:
    async with new_database(embedded) as url:
        yield url


@pytest.fixture
def settings(tmp_path: Path, database_of_ours: str, server: NatsServer) -> Settings:
    return settings_for(
        tmp_path, rag_enabled=True, nats_url=SecretStr(server.url), postgres_url=SecretStr(database_of_ours)
    )


async def test_requests_from_while_no_sherlock_ran(settings: Settings, client: Client) -> None:
    results = await hear(client, f"{RAG}.ingest.result")
    with sherlock(settings) as before:
        await until(lambda: nats_state(before)[1]["state"] == "ready")
        store, files = new_store(before), [new_file(before) for _ in range(3)]
    for file in files:
        asked = {"file_id": file, "vector_store_id": store, "request_id": file}
        await client.jetstream().publish(INGEST, json.dumps(asked).encode())
    with sherlock(settings) as after:
        for file in files:
            assert (await results.wait(request_id=file))[0]["status"] == "completed"
        with after.http() as http:
            counts = http.get(f"/v1/vector_stores/{store}").json()["file_counts"]
    assert (counts["completed"], counts["total"]) == (3, 3)
    assert len(results.messages) == 3


async def test_a_result_is_owed_whoever_dies(
    folder: Path, database_of_ours: str, server: NatsServer, client: Client
) -> None:
    """Taken by one process that is killed, ingested while none serves, answered by the next.

    A file that is deleted before a worker came is answered for, too.
    """
    results = await hear(client, f"{RAG}.ingest.result")
    mine = await hear(client, "my.inbox", f"{RAG}.ingest.result")
    running = deployment(
        folder,
        ready_path="/health",
        encoder_model="hash",
        reranker_model="none",
        postgres_url=database_of_ours,
        nats_url=server.url,
        llm_base_url="http://127.0.0.1:9/v1",
    )

    def statuses() -> list[str]:
        listed = httpx.get(f"{running.url}/v1/vector_stores/{store}/files", trust_env=False).json()
        return [attached["status"] for attached in listed["data"]]

    async def request(file: str, request_id: str) -> None:
        asked = {"file_id": file, "vector_store_id": store, "request_id": request_id}
        headers = {"Sherlock-Reply-To": "my.inbox"}
        await client.request(INGEST, json.dumps(asked).encode(), timeout=WAIT_S, headers=headers)

    with running.running("serve") as [serving]:
        api = running.client()
        store = api.vector_stores.create().id
        file, gone = (
            api.files.create(file=("turbine.txt", TURBINE.encode()), purpose="assistants").id
            for _ in range(2)
        )
        await request(gone, "gone")
        await until(lambda: statuses() == ["in_progress"])
        api.files.delete(gone)
        [result] = await results.wait(request_id="gone")
        assert (result["status"], result["error"]) == ("failed", "file deleted during ingestion")
        await request(file, "owed")
        await until(lambda: statuses() == ["in_progress"])
        serving.kill()
    progress = await hear(client, f"{RAG}.ingest.progress.{file}")
    with running.running("worker"):
        await progress.wait(stage="completed")
    assert results.of(request_id="owed") == []
    with running.running("serve"):
        [result] = await results.wait(request_id="owed")
        assert (result["status"], result["chunk_count"]) == ("completed", 1)
        await mine.wait(request_id="owed")
    assert (len(results.messages), len(mine.messages)) == (2, 2), "each result once"
    assert PASSWORD not in "".join(process.text() for process in running.started)


async def test_the_message_server_comes_late_and_dies(
    tmp_path: Path, settings: Settings, server: NatsServer
) -> None:
    server.kill()
    with sherlock(settings) as running:
        store = new_store(running)
        for _ in range(2):
            await until(lambda: nats_state(running)[1]["state"] == "unavailable")
            status, state = nats_state(running)
            assert (status, state["reason"]) == (200, "The message server does not answer.")
            file = new_file(running)
            with running.http() as http:
                assert http.get("/health").status_code == 200, "HTTP goes on"
                answer = http.post("/v1/chat/completions", json=HELLO)
                assert answer.status_code == 200
            server.start()
            await until(lambda: nats_state(running)[1]["state"] == "ready")
            async with connected(server) as client:
                results = await hear(client, f"{RAG}.ingest.result")
                found = await ask(
                    client, f"{RAG}.search.request", {"query": "a", "vector_store_ids": [store]}
                )
                assert found["error"] is None
                asked = {"file_id": file, "vector_store_id": store, "request_id": file}
                await client.publish(INGEST, json.dumps(asked).encode())
                assert (await results.wait(request_id=file))[0]["status"] == "completed"
            server.kill()


async def test_without_rag(tmp_path: Path, server: NatsServer, client: Client) -> None:
    results = await hear(client, f"{RAG}.ingest.result")
    with sherlock(settings_for(tmp_path, nats_url=SecretStr(server.url))) as running:
        await until(lambda: nats_state(running)[1]["state"] == "ready")
        for kind, payload in {
            "search": {"query": "a", "vector_store_ids": ["vs_1"]},
            "embed": {"input": "a"},
            "chat": {"text": "a", "vector_store_ids": ["vs_1"]},
            "ingest": {"file_id": "file-1", "vector_store_id": "vs_1", "request_id": "off"},
        }.items():
            answer = await ask(client, f"{RAG}.{kind}.request", payload)
            assert answer["error"] == "RAG is not enabled — set SHERLOCK_RAG_ENABLED=true"
            assert answer["error_code"] == "rag_disabled"
        assert (await results.wait(request_id="off"))[0]["status"] == "failed"
        running.chat_model.reply = "good day"
        answer = await ask(client, "sherlock.v1.chat", HELLO)
        assert answer["choices"][0]["message"]["content"] == "good day"
        tools = [{"type": "file_search", "vector_store_ids": ["vs_1"]}]
        answer = await ask(client, "sherlock.v1.chat", HELLO | {"tools": tools})
        assert answer["error_code"] == "rag_disabled"


async def test_without_jetstream(settings: Settings, server: NatsServer) -> None:
    """What needs no stream works, and readiness says what does not."""
    server.kill()
    server.jetstream = False
    server.start()
    with sherlock(settings) as running:
        await until(lambda: nats_state(running)[1]["state"] == "unavailable")
        assert (
            nats_state(running)[1]["reason"]
            == "The message server has no JetStream, which ingest requests need."
        )
        async with connected(server) as client:
            answer = await ask(client, f"{RAG}.embed.request", {"input": "a"})
        assert answer["error"] is None


async def test_a_wrong_password_is_not_told(
    settings: Settings, server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    wrong = settings.model_copy(
        update={"nats_url": SecretStr(server.url.replace(PASSWORD, "not-the-secret"))}
    )
    with sherlock(wrong) as running:
        await until(lambda: nats_state(running)[1]["state"] == "unavailable")
        with running.http() as http:
            assert "not-the-secret" not in http.get("/health/ready").text
    logged = "".join(
        record.getMessage() + str(record.__dict__)
        for record in caplog.records
        if record.name.startswith("sherlock")
    )
    assert "trouble with the message server" in logged
    assert "not-the-secret" not in logged
    assert "not-the-secret" not in repr(wrong)


async def test_what_has_begun_is_answered_before_it_stops(settings: Settings, client: Client) -> None:
    results = await hear(client, "sherlock.v1.result")
    with sherlock(settings) as running:
        await until(lambda: nats_state(running)[1]["state"] == "ready")
        running.chat_model.delay_s = 0.5
        await client.publish("sherlock.v1.chat", json.dumps(HELLO | {"request_id": "last"}).encode())
        await until(lambda: len(running.chat_model.requests) == 1)
    assert await results.wait(request_id="last", error=None)
