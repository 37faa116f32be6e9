"""Files and vector stores expire; their time is made to pass by moving it in the database."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable

import asyncpg
import httpx
import openai
import pytest
from tests.contract.data.check_response import violations
from tests.serving import Served

TEXT = b"The kingfisher dives from a branch over the river."

Execute = Callable[[str, str], Awaitable[None]]


@pytest.fixture
async def database(own_database_url: str) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
    connection = await asyncpg.connect(own_database_url, server_settings={"search_path": "sherlock"})
    yield connection
    await connection.close()


async def until_gone(database: "asyncpg.Connection[asyncpg.Record]", query: str, id: str) -> None:
    deadline = time.monotonic() + 20
    while await database.fetchval(query, id):
        assert time.monotonic() < deadline, query


def ingested(client: openai.OpenAI, **store: object) -> tuple[str, str]:
    """A vector store with a file in it."""
    made = client.vector_stores.create(**store)  # type: ignore[arg-type]
    file = client.vector_stores.files.upload_and_poll(
        vector_store_id=made.id, file=("bird.txt", TEXT), poll_interval_ms=20
    )
    assert file.status == "completed"
    return made.id, file.id


async def test_an_expired_file_is_gone_at_once_and_soon_removed(
    client: openai.OpenAI, database: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    store_id, file_id = ingested(client)
    other = client.vector_stores.create()
    await database.execute("update knowledge_files set expires_at = now() where id = $1", file_id)
    for call in (
        lambda: client.files.retrieve(file_id),
        lambda: client.files.content(file_id),
        lambda: client.files.delete(file_id),
        lambda: client.vector_stores.files.create(other.id, file_id=file_id),
        lambda: client.vector_stores.files.create(store_id, file_id=file_id),
        lambda: client.vector_stores.files.retrieve(file_id, vector_store_id=store_id),
    ):
        with pytest.raises(openai.NotFoundError):
            call()
    assert file_id not in {file.id for file in client.files.list()}
    assert client.vector_stores.search(store_id, query="kingfisher").data == []
    for table in ("knowledge_chunks", "vector_store_files"):
        await until_gone(database, f"select exists (select from {table} where file_id = $1)", file_id)
    await until_gone(database, "select exists (select from knowledge_files where id = $1)", file_id)
    assert client.vector_stores.retrieve(store_id).file_counts.total == 0


async def test_an_expired_store_stays_to_be_looked_at(
    rag_on: Served, client: openai.OpenAI, database: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    store_id, file_id = ingested(client, name="birds", expires_after={"anchor": "last_active_at", "days": 2})
    other_id, _ = ingested(client)
    await database.execute(
        "update vector_stores set last_active_at = now() - interval '49 hours' where id = $1", store_id
    )
    with rag_on.http() as http:
        shown = http.get(f"/v1/vector_stores/{store_id}")
        assert not violations("GET", "/vector_stores/{vector_store_id}", 200, shown.json())
        assert shown.json()["status"] == "expired"
        assert shown.json()["expires_at"] < time.time()
        for path, body in (
            ("search", {"query": "kingfisher"}),
            ("files", {"file_id": file_id}),
        ):
            answer = http.post(f"/v1/vector_stores/{store_id}/{path}", json=body)
            error = answer.json()["error"]
            assert (answer.status_code, error["code"]) == (400, "vector_store_expired")
            assert "has expired" in error["message"]
        renewed = http.post(
            f"/v1/vector_stores/{store_id}", json={"expires_after": {"anchor": "last_active_at", "days": 9}}
        )
        assert (renewed.status_code, renewed.json()["error"]["param"]) == (400, "expires_after")
        answered = chat(http, store_id, other_id)
        assert answered["choices"][0]["message"]["content"]
        assert "dense" in answered["sherlock"]["stages"], "the other store is searched"
        assert chat(http, store_id)["sherlock"]["stages"] == []

    await until_gone(
        database, "select exists (select from knowledge_chunks where vector_store_id = $1)", store_id
    )
    await until_gone(
        database, "select exists (select from vector_store_files where vector_store_id = $1)", store_id
    )
    renamed = client.vector_stores.update(store_id, name="former birds", metadata={"a": "b"})
    assert (renamed.name, renamed.status, renamed.file_counts.total) == ("former birds", "expired", 0)
    assert {s.id: s.status for s in client.vector_stores.list(limit=100)}[store_id] == "expired"
    assert client.files.retrieve(file_id).id == file_id, "the files stay"
    assert client.vector_stores.delete(store_id).deleted


def chat(http: httpx.Client, *store_ids: str) -> dict[str, dict[str, object]] | dict[str, list[dict]]:  # type: ignore[type-arg]
    answer = http.post(
        "/v1/chat/completions",
        json={
            "model": "fake-model",
            "messages": [{"role": "user", "content": "Where does the kingfisher dive from?"}],
            "tools": [{"type": "file_search", "vector_store_ids": [*store_ids]}],
        },
    )
    assert answer.status_code == 200
    return answer.json()  # type: ignore[no-any-return]


async def test_searching_and_attaching_keep_a_store_alive(
    client: openai.OpenAI, database: "asyncpg.Connection[asyncpg.Record]"
) -> None:
    expires_after = {"anchor": "last_active_at", "days": 1}
    for use in (
        lambda store, _: client.vector_stores.search(store, query="kingfisher"),
        lambda store, file: client.vector_stores.files.create(store, file_id=file),
    ):
        store_id, file_id = ingested(client, expires_after=expires_after)
        await database.execute(
            "update vector_stores set last_active_at = now() - interval '23 hours' where id = $1", store_id
        )
        before = client.vector_stores.retrieve(store_id).expires_at
        use(store_id, file_id)
        after = client.vector_stores.retrieve(store_id).expires_at
        assert before is not None
        assert after is not None
        assert after >= before + 23 * 3600 - 2
