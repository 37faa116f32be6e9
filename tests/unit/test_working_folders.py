"""Folders of jobs: gone with the job, and after a kill with the next worker."""

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from sherlock.rag.working_folders import remove_abandoned, working_folder


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def test_a_folder_goes_with_its_job(temporary: Path) -> None:
    with working_folder() as folder:
        (folder / "file").write_bytes(b"words")
        assert folder.parent == temporary
    assert [*temporary.iterdir()] == []


def test_only_folders_of_the_dead_are_removed(temporary: Path) -> None:
    script = (
        "import sys, time\n"
        "from sherlock.rag.working_folders import working_folder\n"
        "with working_folder() as folder:\n"
        "    (folder / 'file').write_bytes(b'words')\n"
        "    print(folder, flush=True)\n"
        "    time.sleep(60)\n"
    )
    command = [sys.executable, "-c", script]
    (temporary / "sherlock-ingest-new").mkdir()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as killed:
        assert killed.stdout is not None
        left = Path(killed.stdout.readline().strip())
        with working_folder() as mine:
            assert remove_abandoned() == 0
            killed.kill()
            killed.wait()
            assert (left / "file").exists()
            assert remove_abandoned() == 1
            assert not left.exists()
            assert mine.exists()
    assert (temporary / "sherlock-ingest-new").exists(), "it may be about to be locked"
