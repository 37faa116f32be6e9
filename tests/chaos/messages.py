"""Ingest requests as messages, and a stream that keeps every result that is published."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from nats.aio.client import Client
from nats.js.api import StreamConfig
from tests.chaos.background import Background
from tests.chaos.plant import Plant
from tests.nats_clients import INGEST, RAG, connected

_RESULTS = "INGEST_RESULTS"


class Messages:
    """Connected to the NATS server itself, not through the network that fails."""

    def __init__(self, client: Client, background: Background) -> None:
        self._client = client
        self._background = background

    def request(self, file_id: str, store_id: str) -> None:
        """Publish a request for this ingest; in the stream when this returns."""
        asked = {"file_id": file_id, "vector_store_id": store_id, "request_id": file_id}
        self._background.run(self._client.jetstream().publish(INGEST, json.dumps(asked).encode(), timeout=20))

    def results(self) -> list[dict[str, Any]]:
        """All results, in order. One that was published twice, after a kill, stands here once: the stream

        tells by its header, as a reader can.
        """
        return self._background.run(self._results())

    def waiting(self) -> int:
        """Requests that nobody has settled yet."""
        return self._background.run(self._waiting())

    async def keep_results(self) -> None:
        await self._client.jetstream().add_stream(
            StreamConfig(name=_RESULTS, subjects=[f"{RAG}.ingest.result"], duplicate_window=3_600)
        )

    async def _results(self) -> list[dict[str, Any]]:
        stream = self._client.jetstream()
        count = (await stream.stream_info(_RESULTS)).state.last_seq
        kept = [await stream.get_msg(_RESULTS, seq=number) for number in range(1, count + 1)]
        return [json.loads(message.data or b"") for message in kept]

    async def _waiting(self) -> int:
        return (await self._client.jetstream().stream_info("SHERLOCK_INGEST")).state.messages


@contextmanager
def messages(plant: Plant) -> Iterator[Messages]:
    entered = connected(plant.nats)
    client = plant.background.run(entered.__aenter__())
    try:
        made = Messages(client, plant.background)
        plant.background.run(made.keep_results())
        yield made
    finally:
        plant.background.run(entered.__aexit__(None, None, None))
