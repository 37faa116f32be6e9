"""A server that is killed while it puts the parts of an upload together."""

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest
from tests.integration.processes import Deployment, deployment, rows

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

    # What the killed attempt had reserved is on record, and goes when it is too old to be anybody's.
    [(left,)] = await rows(running, "select id from upload_objects")
    assert str(left).startswith("file-")
    await rows(running, "update upload_objects set created_at = now() - interval '25 hours'")
    with running.running("worker"):
        deadline = time.monotonic() + 30
        while await rows(running, "select id from upload_objects"):
            assert time.monotonic() < deadline, "it is never removed"
    assert objects(running) == {completed.file.id}
