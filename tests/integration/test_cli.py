"""The command line on real parts, without any server beside it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import openai
import pytest
from tests.integration.processes import MODELS, Deployment, deployment

pytestmark = pytest.mark.timeout(300)


def sherlock(running: Deployment, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "sherlock.cli", *arguments],
        env=dict(running.environ),
        capture_output=True,
        text=True,
        timeout=250,
    )


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    (tmp_path / "turbine.txt").write_text(
        "The emergency shut-off code of the Marlowe turbine is KX-4471-Q.\n"
    )
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "garden.md").write_text("# Garden\n\nIt opens at nine.\n")
    (tmp_path / "notes" / ".hidden.txt").write_text("not for others")
    return tmp_path


def test_ingest_then_search(folder: Path, documents: Path) -> None:
    fast = deployment(folder, encoder_model="hash", reranker_model="none")
    done = sherlock(fast, "ingest", str(documents), "--store", "plant")
    assert done.returncode == 0, done.stderr
    assert "2 of 2 files are in store plant" in done.stdout

    found = sherlock(fast, "search", "shut-off code of the turbine", "--store", "plant", "--limit", "1")
    assert found.returncode == 0, found.stderr
    assert "turbine.txt" in found.stdout
    assert "KX-4471-Q" in found.stdout

    orphan = folder / "data" / "files" / "default" / ("file-" + "0" * 24)
    orphan.write_bytes(b"left over")
    counted = sherlock(fast, "gc", "--dry-run").stdout
    assert "1 stored objects have no file" in counted
    assert "0 files have no stored bytes" in counted
    assert orphan.exists()

    (documents / "empty.txt").touch()
    partly = sherlock(fast, "ingest", str(documents / "empty.txt"), "--store", "plant")
    assert partly.returncode == 1
    assert "no text" in partly.stderr

    missing = sherlock(fast, "search", "anything", "--store", "nowhere")
    assert missing.returncode == 1
    assert "there is no vector store 'nowhere'" in missing.stderr


def test_names_are_shown_as_they_are(folder: Path, tmp_path: Path) -> None:
    """Brackets mean style and layout to the terminal library."""
    fast = deployment(folder, encoder_model="hash", reranker_model="none")
    names = ["notes[old].md", "[bold].md"]
    for name, hour in zip(names, ("nine", "ten"), strict=True):
        (tmp_path / name).write_text(f"It opens at {hour}.")
    empty = tmp_path / "a[" / "b].txt"
    empty.parent.mkdir()
    empty.touch()
    (tmp_path / "x[red].exe").write_bytes(bytes(range(256)))
    done = sherlock(fast, "ingest", str(tmp_path), "--store", "[bold]plant[/]")
    assert done.returncode == 1, "some failed"
    assert "2 of 4 files are in store [bold]plant[/]" in done.stdout
    assert f"failed {empty}: " in done.stderr
    assert f"refused {tmp_path / 'x[red].exe'}: " in done.stderr
    found = sherlock(fast, "search", "when does it open", "--store", "[bold]plant[/]")
    assert found.returncode == 0, found.stderr
    assert all(name in found.stdout for name in names)
    missing = sherlock(fast, "search", "anything", "--store", "[bold]nowhere[/x]")
    assert "there is no vector store '[bold]nowhere[/x]'" in missing.stderr


def test_up_starts_a_database_again_that_was_killed(folder: Path) -> None:
    fast = deployment(
        folder,
        ready_path="/health",  # readiness would wait for the language model, which is not there
        encoder_model="hash",
        reranker_model="none",
        llm_base_url="http://127.0.0.1:9/v1",
        llm_model="nobody",
    )
    with fast.running("up"):
        store = fast.client().vector_stores.create(name="kept")
        pid_file = folder / "data" / "postgres" / "cluster" / "postmaster.pid"
        os.kill(int(pid_file.read_text().split()[0]), signal.SIGKILL)
        deadline = time.monotonic() + 60
        while True:
            try:
                assert fast.client().vector_stores.retrieve(store.id).name == "kept"
                break
            except openai.APIStatusError:
                assert time.monotonic() < deadline
                time.sleep(0.2)


@pytest.mark.torch
def test_ask_answers_and_names_its_source(folder: Path, documents: Path) -> None:
    real = deployment(folder)
    assert sherlock(real, "ingest", str(documents / "turbine.txt"), "--store", "plant").returncode == 0
    asked = sherlock(real, "ask", "What is the shut-off code of the Marlowe turbine?", "--store", "plant")
    assert asked.returncode == 0, asked.stderr
    assert "KX-4471-Q" in asked.stdout
    assert "turbine.txt" in asked.stdout
    assert "Loading" not in asked.stderr, "a library's progress bars are for its own programs"


@pytest.mark.torch
def test_prepare_models_is_quick_when_it_is_done(folder: Path) -> None:
    done = sherlock(deployment(folder), "models", "prepare", "--into", str(MODELS))
    assert done.returncode == 0, done.stderr
    assert "all-MiniLM-L6-v2, cross-encoder/ms-marco-MiniLM-L-12-v2, smollm2" in done.stdout


def test_wrong_settings_stop_the_start_and_are_named(folder: Path) -> None:
    wrong = deployment(folder, chunk_sice_tokens="100", port="seven")
    told = sherlock(wrong, "serve")
    assert told.returncode == 78
    assert "SHERLOCK_CHUNK_SICE_TOKENS is not a setting" in told.stderr
    assert "SHERLOCK_CHUNK_SIZE_TOKENS?" in told.stderr
    assert "SHERLOCK_PORT" in told.stderr
    assert "seven" not in told.stderr, "a value may be a secret"


def test_migrate_runs_twice(folder: Path) -> None:
    fast = deployment(folder, encoder_model="hash")
    for _ in range(2):
        done = sherlock(fast, "migrate")
        assert done.returncode == 0, done.stderr
