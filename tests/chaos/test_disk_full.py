"""No space left: for the files that are sent, and for the one that a worker reads."""

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import openai
import pytest
from tests.chaos.plant import Plant, plant

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small file system"),
]

MIB = 1 << 20


@contextmanager
def small_disk(folder: Path, size: int) -> Iterator[Path]:
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("this machine lets nobody mount a small file system")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def text(mib: int) -> bytes:
    return (b"All the valves are shut at the end of the day. " * 60_000)[: mib * MIB]


def test_a_full_file_store_refuses_and_goes_on(folder: Path) -> None:
    with (
        small_disk(folder / "small", 4 * MIB) as disk,
        plant(folder, workers=1, file_store="local", data_dir=str(disk)) as running,
    ):
        client = running.deployment.client()
        store = client.vector_stores.create().id
        kept = [client.files.create(file=("valves.txt", text(1)), purpose="assistants").id for _ in range(3)]
        with pytest.raises(openai.InternalServerError, match="Storage unavailable") as refused:
            client.files.create(file=("valves.txt", text(2)), purpose="assistants")
        assert refused.value.status_code == 503
        assert stored(disk) == set(kept), "of the file that did not fit nothing is left"

        first = kept.pop()
        assert ingested(client, store, first) == "completed", "what is stored can be ingested"
        client.files.delete(first)
        again = client.files.create(file=("valves.txt", text(1)), purpose="assistants").id
        assert ingested(client, store, again) == "completed"
        assert stored(disk) == {*kept, again}


def test_a_worker_without_room_waits_for_it(folder: Path) -> None:
    with small_disk(folder / "small", MIB // 2) as disk, plant(folder, workers=0) as running:
        running.deployment.start("worker", TMPDIR=str(disk))
        client = running.deployment.client()
        store = client.vector_stores.create().id
        file = client.files.create(file=("valves.txt", text(1)), purpose="assistants").id
        client.vector_stores.files.create(store, file_id=file)
        wait_for(running, "select 1 from ingest_jobs where outage_since is not null and failures = 0")
        small = client.files.create(file=("small.txt", b"The worker goes on."), purpose="assistants").id
        assert ingested(client, store, small) == "completed"
        assert client.vector_stores.files.retrieve(file, vector_store_id=store).status == "in_progress"
        subprocess.run(["mount", "-o", f"remount,size={8 * MIB}", disk], check=True)
        assert ingested(client, store, file) == "completed"
        assert [*disk.iterdir()] == [], "nor is anything left of the attempts"


def stored(disk: Path) -> set[str]:
    """Names of what the file store holds, with what it did not finish."""
    return {path.name for path in (disk / "files").rglob("*") if path.is_file()}


def ingested(client: openai.OpenAI, store: str, file: str) -> str:
    return client.vector_stores.files.create_and_poll(
        file, vector_store_id=store, poll_interval_ms=100
    ).status


def wait_for(running: Plant, sql: str) -> None:
    deadline = time.monotonic() + 60
    while not running.database.rows(sql):
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.05)
