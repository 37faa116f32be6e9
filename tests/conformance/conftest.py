"""One run of the checklist with every client, against Sherlock and a language model on real sockets."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest
from pydantic import SecretStr
from starlette.types import ASGIApp
from tests.conformance.clients import CLIENTS, FRAMEWORKS, Client, Run, run
from tests.conformance.upstream import Upstream
from tests.conftest import new_database
from tests.serving import served, settings_for, sherlock

from sherlock.embedded import EmbeddedPostgres


class Listener(logging.Handler):
    def __init__(self, heard: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._heard = heard

    def emit(self, record: logging.LogRecord) -> None:
        self._heard.append(f"{record.getMessage()} {getattr(record, 'raised_at', '')}")


@contextmanager
def listening(heard: list[str]) -> Iterator[None]:
    listener = Listener(heard)
    logger = logging.getLogger("sherlock")
    logger.addHandler(listener)
    try:
        yield
    finally:
        logger.removeHandler(listener)


@pytest.fixture(scope="session")
def upstream() -> Upstream:
    return Upstream()


@pytest.fixture(scope="session")
def upstream_url(upstream: Upstream) -> Iterator[str]:
    @asynccontextmanager
    async def opened() -> AsyncIterator[ASGIApp]:
        yield upstream.app

    with served(opened) as url:
        yield f"{url}/v1"


@pytest.fixture(scope="session")
def complaints() -> list[str]:
    """What Sherlock logs as an error while the clients run."""
    return []


RunClient = Callable[[Client], Awaitable[Run]]


@pytest.fixture(scope="session")
def run_client(
    embedded: EmbeddedPostgres,
    upstream_url: str,
    complaints: list[str],
    tmp_path_factory: pytest.TempPathFactory,
) -> RunClient:
    """Runs a client against a Sherlock of its own: lists show all."""

    async def ran(client: Client) -> Run:
        async with new_database(embedded) as database_url:
            settings = settings_for(
                tmp_path_factory.mktemp(client.name),
                rag_enabled=True,
                postgres_url=SecretStr(database_url),
                llm_base_url=upstream_url,
                max_file_bytes=1_000_000,
            )
            with listening(complaints), sherlock(settings, fake_chat_model=False) as running:
                return await run(client, running.port)

    return ran


@pytest.fixture(scope="session")
async def runs(run_client: RunClient) -> dict[str, Run]:
    """By the client's name. They run side by side."""
    done = await asyncio.gather(*(run_client(client) for client in CLIENTS))
    return dict(zip((client.name for client in CLIENTS), done, strict=True))


@pytest.fixture(scope="session")
async def framework_run(run_client: RunClient) -> Run:
    return await run_client(FRAMEWORKS)
