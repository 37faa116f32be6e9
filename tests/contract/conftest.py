"""Servers shared by the contract tests: one with retrieval, one without."""

from collections.abc import Iterator

import openai
import pytest
from pydantic import SecretStr
from tests.serving import Served, settings_for, sherlock


@pytest.fixture(scope="session")
def rag_on(owner_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Real database, file store, parsers, worker; hashed vectors; a chat model that says what it is told."""
    settings = settings_for(
        tmp_path_factory.mktemp("rag on"),
        rag_enabled=True,
        postgres_url=SecretStr(owner_url),
        max_file_bytes=1_000_000,
        sync_timeout_s=20,
    )
    with sherlock(settings) as running:
        yield running


@pytest.fixture(scope="session")
def rag_off(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with sherlock(settings_for(tmp_path_factory.mktemp("rag off"))) as running:
        yield running


@pytest.fixture(scope="session")
def client(rag_on: Served) -> openai.OpenAI:
    return rag_on.client()
