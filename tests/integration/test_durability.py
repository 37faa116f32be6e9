"""Kill what runs; nothing may be lost, doubled or left behind."""

import asyncio
import random
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest
from tests.integration.processes import Deployment, deployment, rows

pytestmark = pytest.mark.timeout(300)

FINISH_TIMEOUT_S = 120.0


def prose(paragraphs: int, seed: int) -> str:
    """Text without repetition, so that every chunk differs."""
    dice = random.Random(seed)
    words = ["".join(dice.choices("abcdefghijklmnoprstuvw", k=dice.randint(3, 9))) for _ in range(900)]
    return "\n\n".join(
        f"Paragraph {number}. " + " ".join(dice.choices(words, k=120)) + "." for number in range(paragraphs)
    )


def wait_until_settled(client: openai.OpenAI, store_id: str, file_id: str) -> str:
    deadline = time.monotonic() + FINISH_TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            status = client.vector_stores.files.retrieve(file_id, vector_store_id=store_id).status
            if status != "in_progress":
                return status
        except openai.APIConnectionError:
            pass
        time.sleep(0.1)
    raise AssertionError("the file never reached a terminal status")


async def some_chunks_staged(running: Deployment) -> None:
    """Wait until a worker is in the middle of a file."""
    deadline = time.monotonic() + FINISH_TIMEOUT_S
    while time.monotonic() < deadline:
        if await rows(running, "select 1 from ingest_chunks limit 1"):
            return
        await asyncio.sleep(0.02)
    raise AssertionError("no chunk was ever staged")


@pytest.fixture
def fast(folder: Path) -> Iterator[Deployment]:
    """Real processes and database, with the encoder that needs no model and a lease that runs out quickly."""
    made = deployment(
        folder,
        ready_path="/health",  # readiness would wait for the language model, which is not there
        encoder_model="hash",
        reranker_model="none",
        llm_base_url="http://127.0.0.1:9/v1",
        llm_model="nobody",
        job_lease_s="2",
    )
    yield made
    made.kill_all()


async def test_killed_worker_and_api_lose_and_double_nothing(fast: Deployment) -> None:
    text = prose(800, seed=1)
    api, worker = fast.start("serve"), fast.start("worker")
    fast.wait_until_ready([api, worker])
    client = fast.client()
    quiet, disturbed = client.vector_stores.create(), client.vector_stores.create()
    stored = client.files.create(file=("book.txt", text.encode()), purpose="assistants")
    client.vector_stores.files.create_and_poll(stored.id, vector_store_id=quiet.id, poll_interval_ms=100)

    client.vector_stores.files.create(disturbed.id, file_id=stored.id)
    await some_chunks_staged(fast)
    worker.kill()
    member = client.vector_stores.files.retrieve(stored.id, vector_store_id=disturbed.id)
    assert member.status == "in_progress"
    hits = client.vector_stores.search(disturbed.id, query="Paragraph 5").data
    assert hits == [], "nothing of an unfinished file is searchable"
    [(staged,)] = await rows(fast, "select count(*) from ingest_chunks")
    assert staged, "finished chunks outlive the worker"
    api.kill()

    with fast.running("worker"):
        api = fast.start("serve")
        fast.wait_until_ready([api])
        assert wait_until_settled(client, disturbed.id, stored.id) == "completed"
        chunks = """
            select chunk_index, content, char_start, char_end from knowledge_chunks
            where vector_store_id = $1 order by chunk_index
        """
        undisturbed = await rows(fast, chunks, quiet.id)
        assert await rows(fast, chunks, disturbed.id) == undisturbed
        assert [row[0] for row in undisturbed] == list(range(len(undisturbed)))
        [(attempt, state)] = await rows(
            fast, "select attempt, state from ingest_jobs where vector_store_id = $1", disturbed.id
        )
        assert (attempt, state) == (2, "done")
        assert await rows(fast, "select 1 from ingest_chunks") == []
        assert client.vector_stores.retrieve(disturbed.id).file_counts.completed == 1
        assert api.stop() == 0


async def test_sigterm_gives_the_job_back_and_another_worker_goes_on(fast: Deployment) -> None:
    with fast.running("serve", "worker") as [_, worker]:
        client = fast.client()
        store = client.vector_stores.create()
        stored = client.files.create(file=("book.txt", prose(800, seed=2).encode()), purpose="assistants")
        client.vector_stores.files.create(store.id, file_id=stored.id)
        await some_chunks_staged(fast)
        began = time.monotonic()
        assert worker.stop() == 0
        assert time.monotonic() - began < 15
        [(state, failures)] = await rows(fast, "select state, failures from ingest_jobs")
        assert (state, failures) == ("waiting", 0)
        with fast.running("worker"):
            assert wait_until_settled(client, store.id, stored.id) == "completed"


async def test_detached_and_deleted_files_leave_nothing(fast: Deployment) -> None:
    with fast.running("serve", "worker"):
        client = fast.client()
        a, b = client.vector_stores.create(name="a"), client.vector_stores.create(name="b")
        stored = client.files.create(file=("note.txt", prose(40, seed=3).encode()), purpose="assistants")
        for store in (a, b):
            client.vector_stores.files.create_and_poll(
                stored.id, vector_store_id=store.id, poll_interval_ms=50
            )
        per_store = "select count(*) from knowledge_chunks where vector_store_id = $1"
        [(before,)] = await rows(fast, per_store, b.id)
        assert before

        client.vector_stores.files.delete(stored.id, vector_store_id=a.id)
        assert await rows(fast, per_store, a.id) == [(0,)]
        assert await rows(fast, per_store, b.id) == [(before,)]
        assert client.vector_stores.search(a.id, query="Paragraph 7").data == []
        assert client.vector_stores.search(b.id, query="Paragraph 7").data

        client.files.delete(stored.id)
        for table in (
            "knowledge_files", "vector_store_files", "knowledge_chunks", "chunk_windows", "chunk_terms",
            "ingest_jobs", "ingest_chunks",
        ):  # fmt: skip
            assert await rows(fast, f"select count(*) from {table}") == [(0,)], table
        assert await rows(fast, "select count(*) from term_df where df <> 0") == [(0,)]
        objects = [p for p in (Path(fast.environ["SHERLOCK_DATA_DIR"]) / "files").rglob("*") if p.is_file()]
        assert objects == []
        with pytest.raises(openai.NotFoundError):
            client.files.retrieve(stored.id)


async def test_file_deleted_while_it_is_ingested_ends_quietly(fast: Deployment) -> None:
    with fast.running("serve", "worker") as [_, worker]:
        client = fast.client()
        store = client.vector_stores.create()
        stored = client.files.create(file=("book.txt", prose(800, seed=4).encode()), purpose="assistants")
        client.vector_stores.files.create(store.id, file_id=stored.id)
        await some_chunks_staged(fast)
        client.files.delete(stored.id)
        other = client.vector_stores.files.upload_and_poll(
            vector_store_id=store.id, file=("small.txt", b"The worker goes on."), poll_interval_ms=50
        )
        assert other.status == "completed"
        assert await rows(fast, "select count(*) from knowledge_chunks where file_id = $1", stored.id) == [
            (0,)
        ]
        assert await rows(fast, "select count(*) from ingest_chunks") == [(0,)]
        assert worker.popen.poll() is None


async def test_a_cancelled_batch_leaves_the_worker_to_others(fast: Deployment) -> None:
    with fast.running("serve", "worker") as [_, worker]:
        client = fast.client()
        store = client.vector_stores.create()
        books = [
            client.files.create(file=("book.txt", prose(800, seed=5).encode()), purpose="assistants").id
            for _ in range(3)
        ]
        batch = client.vector_stores.file_batches.create(store.id, file_ids=books)
        await some_chunks_staged(fast)
        began = time.monotonic()
        batch = client.vector_stores.file_batches.cancel(batch.id, vector_store_id=store.id)
        assert (batch.status, batch.file_counts.in_progress) == ("cancelled", 0)
        other = client.vector_stores.files.upload_and_poll(
            vector_store_id=store.id, file=("small.txt", b"The worker goes on."), poll_interval_ms=50
        )
        print(f"{time.monotonic() - began:.2f} s from the cancellation to the next file's end")
        assert other.status == "completed"
        assert client.vector_stores.retrieve(store.id).file_counts.completed == 1
        assert await rows(fast, "select count(*) from ingest_chunks") == [(0,)]
        assert await rows(fast, "select count(*) from ingest_jobs where state = 'cancelled'") == [(3,)]
        assert worker.popen.poll() is None


def test_a_killed_supervisor_takes_its_children_along(fast: Deployment) -> None:
    up = fast.start("up")
    fast.wait_until_ready([up])
    up.kill()
    deadline = time.monotonic() + 15
    while time.monotonic() < deadline:
        try:
            httpx.get(fast.url + fast.ready_path, timeout=1, trust_env=False)
        except httpx.HTTPError:
            break
        time.sleep(0.2)
    else:
        raise AssertionError("the API outlived its supervisor")
    with fast.running("serve"):
        assert fast.client().vector_stores.create().id
