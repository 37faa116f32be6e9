"""`sherlock jobs` on a real database."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from sherlock.cli import app
from sherlock.rag.adapters.postgres import Database
from sherlock.rag.adapters.postgres_catalog import PostgresCatalog
from sherlock.rag.adapters.postgres_queue import PostgresIngestQueue
from sherlock.rag.domain.models import (
    ChunkingStrategy,
    Encoder,
    LastError,
    StoredFile,
    VectorStore,
    WorkspaceId,
)

REASON = "There is no text in it."


@pytest.fixture(autouse=True)
def environment(owner_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = {"postgres_url": owner_url, "data_dir": str(tmp_path), "encoder_model": "hash"}
    for name, value in (chosen | {"reranker_model": "none"}).items():
        monkeypatch.setenv(f"SHERLOCK_{name.upper()}", value)


@pytest.fixture
async def failed_and_waiting(database: Database, workspace: WorkspaceId) -> tuple[int, int]:
    """The numbers of a job that failed and of one that waits."""
    catalog, queue = PostgresCatalog(database), PostgresIngestQueue(database)
    for file_id in ("file-a", "file-b"):
        await catalog.add_file(StoredFile(file_id, workspace, "a.txt", "assistants", 9, "00", 0))
    store = VectorStore("vs_cli", workspace, "", None, None, Encoder("hash", 384), 0, 0)
    await catalog.add_vector_store(store, ["file-a", "file-b"], ChunkingStrategy(512, 50))
    job = await queue.claim("worker", 30)
    assert job is not None
    await queue.fail(job.lease, LastError("invalid_file", REASON))
    return job.lease.job_id, job.lease.job_id + 1


def sherlock(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["jobs", *map(str, arguments)])


def states(workspace: WorkspaceId) -> dict[str, str]:
    listed = sherlock("list", "--workspace", workspace, "--json")
    assert listed.exit_code == 0, listed.stderr
    return {job["file_id"]: job["state"] for job in json.loads(listed.stdout)}


def test_jobs_are_shown(failed_and_waiting: tuple[int, int], workspace: WorkspaceId) -> None:
    failed, waiting = failed_and_waiting
    heading, first, second = sherlock("list", "--workspace", workspace).stdout.splitlines()
    assert heading.split() == ["ID", "STATUS", "AGE", "ATTEMPT", "WORKSPACE", "STORE", "FILE", "REASON"]
    assert first.split()[:2] == [str(waiting), "waiting"]
    assert second.split()[:2] == [str(failed), "failed"]
    assert second.endswith(REASON)
    assert len(sherlock("list", "--status", "failed", "--workspace", workspace).stdout.splitlines()) == 2
    assert json.loads(sherlock("show", failed, "--json").stdout)["reason"] == REASON
    assert REASON in sherlock("show", failed).stdout


def test_jobs_are_retried_and_cancelled(failed_and_waiting: tuple[int, int], workspace: WorkspaceId) -> None:
    failed, waiting = failed_and_waiting
    assert sherlock("cancel", waiting).exit_code == 0
    assert states(workspace) == {"file-a": "failed", "file-b": "cancelled"}
    assert sherlock("retry", waiting).exit_code == 0
    retried = sherlock("retry", "--failed", "--workspace", workspace)
    assert "1 files were queued anew" in retried.stdout
    assert states(workspace) == {"file-a": "waiting", "file-b": "waiting"}
    refused = sherlock("cancel", failed)
    assert refused.exit_code == 1, "a file that is retried has a job of a new number"
    assert "No such IngestJob object" in refused.stderr


@pytest.mark.parametrize(
    "arguments", [["retry"], ["retry", "1", "--failed"], ["retry", "1", "--workspace", "a"]]
)
def test_what_to_retry_must_be_said(arguments: list[str]) -> None:
    assert sherlock(*arguments).exit_code == 2
