"""Sherlock, or any other ASGI application, on a real socket, from a thread with an event loop of its own."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx
import openai
import uvicorn
from starlette.types import ASGIApp
from tests.fakes_models import FakeChatModel

from sherlock.config import Settings
from sherlock.graph import Chat
from sherlock.main import Server, create_app
from sherlock.rag.application.rewrite import Rewriter
from sherlock.rag.domain.ports import ChatModel
from sherlock.responses import Responses
from sherlock.wiring import Services, open_services
from sherlock.worker import Worker, keep_house

START_TIMEOUT_S = 60.0
HOUSEKEEPING_S = 0.3


@dataclass
class Served:
    url: str
    chat_model: FakeChatModel = field(default_factory=FakeChatModel)
    """What answers where a test chose no other model: it can be told what to say."""

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def client(self, **options: object) -> openai.OpenAI:
        options = {"api_key": "unused", "max_retries": 0, "timeout": 30, **options}
        return openai.OpenAI(base_url=f"{self.url}/v1", **options)  # type: ignore[arg-type]

    def http(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, trust_env=False, timeout=30)


@contextmanager
def served(opened: Callable[[], AbstractAsyncContextManager[ASGIApp]]) -> Iterator[str]:
    """The address of the application that `opened` yields, which is served until the block ends."""
    # Where the protocol is not named, asyncio leaves Nagle's algorithm on: each answer would wait 40 ms for
    # the acknowledgement of its own headers.
    listener = socket.socket(proto=socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    failures: list[BaseException] = []
    started = threading.Event()
    server: Server | None = None

    async def run() -> None:
        nonlocal server
        async with opened() as app:
            server = Server(
                uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=2)
            )
            serving = asyncio.ensure_future(server.serve(sockets=[listener]))
            while not server.started and not serving.done():  # noqa: ASYNC110 - uvicorn tells nobody
                await asyncio.sleep(0.01)
            started.set()
            await serving

    def thread() -> None:
        try:
            asyncio.run(run())
        except BaseException as error:
            failures.append(error)
        finally:
            started.set()

    running = threading.Thread(target=thread, name="served")
    running.start()
    try:
        assert started.wait(START_TIMEOUT_S), "the server did not start"
        if not failures:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        if server is not None:
            server.should_exit = True
        running.join(START_TIMEOUT_S)
        listener.close()
    if failures:
        raise failures[0]


def settings_for(folder: Path, **settings: object) -> Settings:
    """Everything real but the models: hashed vectors, no reranker."""
    chosen = {"data_dir": folder, "encoder_model": "hash", "reranker_model": "none", **settings}
    return Settings(**chosen)  # type: ignore[arg-type]


def with_chat_model(services: Services, chat_model: ChatModel) -> Services:
    """`chat_model` also rewrites questions, as one from a server would."""
    rag = services.rag
    if rag is not None:
        rag = replace(rag, retriever=replace(rag.retriever, rewriter=Rewriter(chat_model, timeout_s=5)))
    chat = Chat(
        chat_model,
        rag.retriever if rag else None,
        services.counter,
        system_prompt=services.settings.system_prompt,
        trim_history=False,
    )
    responses = Responses(chat, services.rag.response_store if services.rag else None)
    return replace(services, chat=chat, responses=responses, chat_model=chat_model, rag=rag)


@contextmanager
def sherlock(settings: Settings, *, fake_chat_model: bool = True) -> Iterator[Served]:
    """Sherlock with the services that `settings` ask for, and a worker where retrieval is on."""
    chat_model = FakeChatModel()

    @asynccontextmanager
    async def opened() -> AsyncIterator[ASGIApp]:
        async with open_services(settings) as services, working(services):
            if fake_chat_model:
                services = with_chat_model(services, chat_model)
            yield create_app(settings, services)

    with served(opened) as url:
        yield Served(url, chat_model)


@asynccontextmanager
async def working(services: Services) -> AsyncIterator[None]:
    if services.rag is None:
        yield
        return
    stop = asyncio.Event()
    worker = Worker(services.rag.queue, services.rag.ingestor, slots=1, lease_s=30)
    running = asyncio.gather(
        worker.run(stop), keep_house(services.rag.housekeeper, stop, every_s=HOUSEKEEPING_S)
    )
    try:
        yield
    finally:
        stop.set()
        await running
