"""`MessageBroker` on NATS: one connection, remade without end; core subjects here, streams in `streams`.

What may hold a secret stays out of logs and errors: the address, and the texts of nats-py's errors.
"""

import asyncio
import contextlib
import logging
import time

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from sherlock.rag.adapters.nats_broker.client import UNREACHABLE, message_of, translated
from sherlock.rag.adapters.nats_broker.streams import WorkStream
from sherlock.rag.domain.errors import MessagingUnavailable
from sherlock.rag.domain.messages import Message, Receive, Settle
from sherlock.rag.domain.models import ComponentStatus

log = logging.getLogger(__name__)

RECONNECT_S = 1.0
CONNECT_TIMEOUT_S = 5
PING_S = 20
"""A connection that hangs is noticed after three of them."""
FLUSH_TIMEOUT_S = 5
DEFAULT_MAX_SIZE = 1_048_576  # bytes
"""A server's own default, until one has told us its limit."""


class NatsBroker:
    """`url` may name several servers, with commas between; `name` is what the server's monitoring shows."""

    def __init__(self, url: str, *, name: str) -> None:
        self._servers = [server.strip() for server in url.split(",")]
        self._name = name
        self._client = Client()
        self._up = asyncio.Event()
        self._closed = asyncio.Event()
        self._receivers: list[tuple[str, str, Receive]] = []
        self._subscriptions: list[Subscription] = []
        self._streams: list[WorkStream] = []
        self._running: asyncio.Task[None] | None = None
        self._failed = False
        self._denied = False

    @property
    def is_connected(self) -> bool:
        return self._up.is_set()

    @property
    def max_size(self) -> int:
        return self._client.max_payload if self._up.is_set() else DEFAULT_MAX_SIZE

    # ── connection ──────────────────────────────────────────────────────────

    def start(self) -> None:
        if self._running is None:
            self._running = asyncio.create_task(self._stay_connected())
            for stream in self._streams:
                stream.start()

    async def close(self) -> None:
        """Send what waits to be sent, and close."""
        if self._running is None:
            return
        await self.stop_receiving()
        if self._up.is_set():
            with contextlib.suppress(MessagingUnavailable):
                await self.flush()
        self._up.clear()  # so that the end is not taken for a loss
        self._running.cancel()
        await asyncio.wait({self._running})
        await self._hang_up()

    async def connected(self) -> None:
        await self._up.wait()

    async def status(self) -> ComponentStatus:
        now = int(time.time())
        if not self._up.is_set():
            if not self._failed:
                return ComponentStatus("starting", now)
            return ComponentStatus("unavailable", now, UNREACHABLE)
        if self._denied:
            return ComponentStatus(
                "unavailable", now, "The message server denies a permission that is needed."
            )
        for stream in self._streams:
            if stream.problem is not None:
                return ComponentStatus("unavailable", now, stream.problem)
        return ComponentStatus("ready", now)

    async def _stay_connected(self) -> None:
        """Connect; a lost connection is remade by the client itself, and one it gave up by us."""
        while True:
            self._closed.clear()
            self._subscriptions.clear()
            self._client = Client()
            try:
                await self._client.connect(
                    self._servers,
                    name=self._name,
                    connect_timeout=CONNECT_TIMEOUT_S,
                    reconnect_time_wait=RECONNECT_S,  # type: ignore[arg-type]
                    max_reconnect_attempts=-1,
                    ping_interval=PING_S,
                    error_cb=self._on_error,
                    disconnected_cb=self._on_disconnected,
                    reconnected_cb=self._on_connected,
                    closed_cb=self._on_closed,
                )
                for receiver in self._receivers:
                    await self._subscribe(*receiver)
                await self._on_connected()
                await self._closed.wait()
            except Exception as error:  # whatever it was, no message comes through until we connect again
                await self._on_error(error)
            await self._hang_up()
            await asyncio.sleep(RECONNECT_S)

    async def _hang_up(self) -> None:
        with contextlib.suppress(nats.errors.Error, OSError):  # of a connection that is broken
            await self._client.close()

    async def _on_connected(self) -> None:
        self._failed = self._denied = False
        self._up.set()
        log.info("connected to the message server")

    async def _on_disconnected(self) -> None:
        if self._up.is_set():
            log.warning("lost the message server; connecting again")
        self._failed = True
        self._up.clear()

    async def _on_closed(self) -> None:
        self._up.clear()
        self._closed.set()

    async def _on_error(self, error: Exception) -> None:
        if "permissions violation" in str(error).lower():
            self._denied = True
        if not self._failed or self._up.is_set():
            log.warning("trouble with the message server", extra={"error": type(error).__name__})
        if not self._up.is_set():
            self._failed = True

    # ── sending ─────────────────────────────────────────────────────────────

    async def publish(self, message: Message) -> None:
        with translated():
            await self._client.publish(
                message.subject,
                message.data,
                reply=message.reply_to or "",
                headers=dict(message.headers) or None,
            )

    async def flush(self) -> None:
        if not self._up.is_set():
            raise MessagingUnavailable(UNREACHABLE)
        with translated():
            await self._client.flush(FLUSH_TIMEOUT_S)

    # ── receiving ───────────────────────────────────────────────────────────

    def subscribe(self, subject: str, group: str, receive: Receive) -> None:
        """Before `start`."""
        self._receivers.append((subject, group, receive))

    def consume(self, stream: str, subject: str, consumer: str, settle: Settle) -> None:
        """Before `start`."""
        self._streams.append(WorkStream(stream, subject, consumer, settle, self._connected_client))

    async def stop_receiving(self) -> None:
        for subscription in self._subscriptions:
            # What the server sent us before it heard of it is still received.
            with contextlib.suppress(nats.errors.Error, OSError, TimeoutError):
                await asyncio.wait_for(subscription.drain(), FLUSH_TIMEOUT_S)  # type: ignore[no-untyped-call]
        self._receivers.clear()
        self._subscriptions.clear()
        for stream in self._streams:
            await stream.stop()

    async def _connected_client(self) -> Client:
        await self.connected()
        return self._client

    async def _subscribe(self, subject: str, group: str, receive: Receive) -> None:
        async def on_message(msg: Msg) -> None:
            receive(message_of(msg))

        self._subscriptions.append(await self._client.subscribe(subject, queue=group, cb=on_message))
