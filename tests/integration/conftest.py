"""Real processes, and folders for them: pytest's own are closed to PostgreSQL's user when root runs tests."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.integration.processes import Deployment, deployment


@contextmanager
def open_folder() -> Iterator[Path]:
    """A temporary folder that every user may pass through, with a blank in its path."""
    folder = Path(tempfile.mkdtemp(prefix="sherlock tests "))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def folder() -> Iterator[Path]:
    with open_folder() as path:
        yield path


@pytest.fixture(scope="session")
def sherlock() -> Iterator[Deployment]:
    """A whole Sherlock, as `sherlock up` starts it: real encoder, reranker and local language model."""
    with open_folder() as path:
        running = deployment(path)
        with running.running("up"):
            yield running
