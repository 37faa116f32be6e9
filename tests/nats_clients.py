"""A client of Sherlock's messages: what it sends and hears is checked against `contracts/asyncapi.yaml`."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import jsonschema
import nats
import yaml
from nats.aio.client import Client
from nats.aio.msg import Msg
from tests.nats_servers import NatsServer
from tests.serving import Served

WAIT_S = 20.0
TURBINE = "The emergency shut-off code of the Marlowe turbine is KX-4471-Q."
ASYNCAPI: dict[str, Any] = yaml.safe_load(
    (Path(__file__).parents[1] / "contracts" / "asyncapi.yaml").read_text()
)
RAG = "sherlock.v1.rag"
INGEST = f"{RAG}.ingest.request"


def check(subject: str, payload: Any) -> None:
    """A payload is what `contracts/asyncapi.yaml` says of its subject."""
    for channel in ASYNCAPI["channels"].values():
        if channel["address"].replace("{file_id}", subject.rpartition(".")[2]) == subject:
            [name] = channel["messages"]
            schema = ASYNCAPI["components"]["messages"][name]["payload"] | {
                "components": ASYNCAPI["components"]
            }
            jsonschema.Draft202012Validator(schema).validate(payload)
            return
    raise AssertionError(f"{subject} is not in the contract")


class Heard:
    """The messages of one subject, checked against the contract, found by `request_id`."""

    def __init__(self) -> None:
        self.messages: list[tuple[Msg, dict[str, Any]]] = []
        self._news = asyncio.Event()

    async def on_message(self, contract: str | None, msg: Msg) -> None:
        payload = json.loads(msg.data)
        check(contract or msg.subject, payload)
        self.messages.append((msg, payload))
        self._news.set()

    def of(self, **members: object) -> list[dict[str, Any]]:
        return [p for _, p in self.messages if members.items() <= p.items()]

    async def wait(self, count: int = 1, **members: object) -> list[dict[str, Any]]:
        async with asyncio.timeout(WAIT_S):
            while len(self.of(**members)) < count:
                self._news.clear()
                await self._news.wait()
        return self.of(**members)


@asynccontextmanager
async def connected(server: NatsServer) -> AsyncIterator[Client]:
    client = await nats.connect(server.url, max_reconnect_attempts=-1, reconnect_time_wait=0.1)  # type: ignore[arg-type]
    try:
        yield client
    finally:
        await client.close()


async def hear(client: Client, subject: str, contract: str | None = None) -> Heard:
    heard = Heard()
    await client.subscribe(subject, cb=partial(heard.on_message, contract))
    await client.flush()
    return heard


async def ask(
    client: Client, subject: str, payload: Any, *, valid: bool = True, **headers: str
) -> dict[str, Any]:
    """The answer in the reply inbox, checked like the one on the result subject."""
    if valid:
        check(subject, payload)
    sent = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    msg = await client.request(subject, sent, timeout=WAIT_S, headers=headers or None)
    answer: dict[str, Any] = json.loads(msg.data)
    check(RESULTS[subject], answer)
    return answer


RESULTS = {
    f"{RAG}.search.request": f"{RAG}.search.result",
    f"{RAG}.embed.request": f"{RAG}.embed.result",
    f"{RAG}.chat.request": f"{RAG}.chat.result",
    f"{RAG}.ingest.request": f"{RAG}.ingest.result",
    "sherlock.v1.chat": "sherlock.v1.result",
}


def new_store(running: Served) -> str:
    with running.http() as http:
        return str(http.post("/v1/vector_stores", json={}).json()["id"])


def new_file(running: Served, text: str = TURBINE, name: str = "turbine.txt") -> str:
    with running.http() as http:
        made = http.post("/v1/files", data={"purpose": "assistants"}, files={"file": (name, text.encode())})
        return str(made.json()["id"])


def nats_state(running: Served) -> tuple[int, dict[str, Any]]:
    with running.http() as http:
        answer = http.get("/health/ready")
        return answer.status_code, answer.json()["components"]["nats"]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not await asyncio.to_thread(condition):  # noqa: ASYNC110 - another process changes it
            await asyncio.sleep(0.05)
