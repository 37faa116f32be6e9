"""Servers shared by the contract tests: one with retrieval, one without."""

from collections.abc import AsyncIterator, Iterator

import openai
import pytest
from pydantic import SecretStr
from tests.conftest import new_database
from tests.serving import Served, settings_for, sherlock

from sherlock.embedded import EmbeddedPostgres


@pytest.fixture(scope="session")
async def own_database_url(embedded: EmbeddedPostgres) -> AsyncIterator[str]:
    """As its owner. The worker claims every job of its database, so it shares one with no other test."""
    async with new_database(embedded) as url:
        yield url


@pytest.fixture(scope="session")
def rag_on(own_database_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Real database, file store, parsers, worker; hashed vectors; a chat model that says what it is told."""
    settings = settings_for(
        tmp_path_factory.mktemp("rag on"),
        rag_enabled=True,
        postgres_url=SecretStr(own_database_url),
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
