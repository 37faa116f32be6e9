"""A server that is killed while it stores a file."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import openai
import pytest
from tests.integration.processes import Deployment, deployment, rows

from sherlock.embedded import open_embedded
from sherlock.rag.application.objects import HELD_S

pytestmark = pytest.mark.timeout(300)

PART = os.urandom(1 << 20).hex().encode() * 10  # 20 MiB of text: long enough to be caught at it
PARTS = 3


@pytest.fixture
def running(folder: Path) -> Iterator[Deployment]:
    made = deployment(
        folder,
        ready_path="/health",
        encoder_model="hash",
        reranker_model="none",
        llm_base_url="http://127.0.0.1:9/v1",
        llm_model="nobody",
        max_file_bytes=str(PARTS * len(PART)),
    )
    yield made
    made.kill_all()


def stored(running: Deployment) -> Path:
    return Path(running.environ["SHERLOCK_DATA_DIR"]) / "files"


def objects(running: Deployment) -> set[str]:
    return {path.name for path in (stored(running) / "default").iterdir()}


def wait_until_begun(folder: Path) -> None:
    """Until the folder holds a file."""
    deadline = time.monotonic() + 60
    while not any(folder.iterdir()):
        assert time.monotonic() < deadline, "the file is not put together"
        time.sleep(0.002)


async def test_a_killed_completion_can_be_repeated_and_leaves_nothing(running: Deployment) -> None:
    api = running.start("serve")
    running.wait_until_ready([api])
    client = running.client()
    upload = client.uploads.create(
        bytes=PARTS * len(PART), filename="big.txt", mime_type="text/plain", purpose="user_data"
    )
    ids = [client.uploads.parts.create(upload.id, data=PART).id for _ in range(PARTS)]
    unfinished = stored(running) / ".unfinished"
    assert [*unfinished.iterdir()] == []

    with ThreadPoolExecutor(1) as pool:
        completing = pool.submit(client.uploads.complete, upload.id, part_ids=ids)
        wait_until_begun(unfinished)
        api.kill()
        with pytest.raises(openai.APIConnectionError):
            completing.result()

    api = running.start("serve")
    running.wait_until_ready([api])
    assert objects(running) == {*ids}
    assert await rows(running, "select status from uploads") == [("pending",)]
    completed = client.uploads.complete(upload.id, part_ids=ids)
    assert completed.file is not None
    assert completed.file.bytes == PARTS * len(PART)
    assert [file.id for file in client.files.list()] == [completed.file.id]
    assert objects(running) == {completed.file.id}

    # What the killed attempt had reserved is on record, and goes when nobody renews it.
    [(left,)] = await rows(running, "select id from loose_objects")
    assert str(left).startswith("file-")
    await tidied_up(running)
    assert objects(running) == {completed.file.id}


async def test_an_api_killed_between_the_bytes_and_the_record_leaves_nothing(running: Deployment) -> None:
    api = running.start("serve")
    running.wait_until_ready([api])
    client = running.client()
    kept = client.files.create(file=("kept.txt", b"kept"), purpose="user_data")
    async with owner(running) as connection:
        # Files can be listed and objects reserved, but no file is added.
        holding = connection.transaction()
        await holding.start()
        await connection.execute("lock table knowledge_files in share mode")
        with ThreadPoolExecutor(1) as pool:
            sending = pool.submit(client.files.create, file=("a.txt", b"text"), purpose="user_data")
            deadline = time.monotonic() + 60
            while objects(running) == {kept.id}:
                assert time.monotonic() < deadline, "the bytes are never stored"
                await asyncio.sleep(0.01)
            api.kill()
            with pytest.raises(openai.APIConnectionError):
                sending.result()
        await holding.rollback()

    [left] = objects(running) - {kept.id}
    [(reserved, life_s, going)] = await rows(
        running, "select id, extract(epoch from due_at - now())::float8, going from loose_objects"
    )
    assert (reserved, going) == (left, False)
    assert isinstance(life_s, float)
    assert life_s <= HELD_S
    await tidied_up(running)
    assert objects(running) == {kept.id}

    api = running.start("serve")
    running.wait_until_ready([api])
    assert [file.id for file in client.files.list()] == [kept.id]


async def tidied_up(running: Deployment) -> None:
    """When the reservations have run out a worker removes what was reserved, by itself."""
    await rows(running, "update loose_objects set due_at = now()")
    with running.running("worker"):
        deadline = time.monotonic() + 60
        while await rows(running, "select id from loose_objects"):
            assert time.monotonic() < deadline, "it is never removed"


@asynccontextmanager
async def owner(running: Deployment) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
    """A connection of the embedded database's owner."""
    async with await open_embedded(Path(running.environ["SHERLOCK_DATA_DIR"])) as postgres:
        connection = await asyncpg.connect(postgres.owner_url)
        try:
            await connection.execute("set search_path = sherlock, public")
            yield connection
        finally:
            await connection.close()
