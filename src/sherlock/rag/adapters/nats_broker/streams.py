"""Durable streams (JetStream): requests that wait until somebody takes them.

The stream is a work queue: a message is gone once it is settled. One that can never be done is first copied
to the stream's parking place, a stream of its own, with the reason in a header.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    DiscardPolicy,
    RetentionPolicy,
    StorageType,
    StreamConfig,
)

from sherlock.rag.adapters.nats_broker.client import message_of
from sherlock.rag.domain.errors import Unavailable
from sherlock.rag.domain.messages import Delivery, Parked, Settle

log = logging.getLogger(__name__)

ACK_WAIT_S = 30.0
"""A message that a killed process held is delivered to another one after that long."""
SIDE_BY_SIDE = 16
"""Messages that one process settles at the same time."""
PULL_S = 2.0
"""How long one request for the next message stands: what a lost one costs after a reconnection."""
AGAIN_S = 2.0
LONGEST_AGAIN_S = 60.0
"""First and longest pause before a message that could not be settled is delivered again."""
FLUSH_TIMEOUT_S = 2
SETTLED_S = 0.05
"""Pause after the server has confirmed that a subscription is gone. nats-server 2.15 still sends it some
messages, which then wait for ACK_WAIT_S: 26 of 480 published right after the confirmation, none of 240 that
were published 20 ms later."""
FAULTS_ALLOWED = 5
"""Deliveries that may fail by a fault of ours before the message is parked; outages are not counted."""

PARKED_S = 30 * 86_400.0
PARKED_MESSAGES = 10_000
PARKED_BYTES = 256 * 1024 * 1024
"""Bounds of the parking place; the oldest make room."""

REASON = "Sherlock-Parked-Reason"
SEQUENCE = "Sherlock-Stream-Sequence"


class WorkStream:
    """Takes messages out of a durable stream for as long as it is started."""

    def __init__(
        self,
        stream: str,
        subject: str,
        consumer: str,
        settle: Settle,
        connected: Callable[[], Awaitable[Client]],
    ) -> None:
        self._stream = stream
        self._subject = subject
        self._consumer = consumer
        self._settle = settle
        self._connected = connected
        self._running: asyncio.Task[None] | None = None
        self._settling: set[asyncio.Task[None]] = set()
        self.problem: str | None = None
        """Why nothing can be taken now, as a plain sentence."""

    @property
    def _parking_place(self) -> str:
        return f"{self._subject.rpartition('.')[0]}.parked"

    def start(self) -> None:
        self._running = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Take no more, and leave what is being settled to whoever it is delivered to next."""
        tasks = {*self._settling, *([self._running] if self._running else [])}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _run(self) -> None:
        while True:
            client = await self._connected()
            try:
                await self._take(client)
            except Exception as error:  # whatever it was, requests must not wait for ever
                # A lost connection is told of by the connection itself.
                if client.is_connected:
                    self._has_problem(error)
            await asyncio.sleep(AGAIN_S)

    def _has_problem(self, error: Exception) -> None:
        if isinstance(error, nats.js.errors.ServiceUnavailableError | nats.errors.NoRespondersError):
            problem = "The message server has no JetStream, which ingest requests need."
        else:
            problem = f"The message server does not let the stream {self._stream} be used."
        if problem != self.problem:
            log.warning("a stream cannot be used", extra={"error": type(error).__name__})
        self.problem = problem

    async def _take(self, client: Client) -> None:
        """Take messages until the connection or the stream fails."""
        stream = client.jetstream(timeout=5)
        await self._make(stream)
        pulled = await stream.pull_subscribe_bind(consumer=self._consumer, stream=self._stream)
        self.problem = None
        free = asyncio.Semaphore(SIDE_BY_SIDE)
        try:
            while True:
                await free.acquire()
                try:
                    [msg] = await pulled.fetch(1, timeout=PULL_S)
                except TimeoutError:
                    free.release()
                    continue
                task = asyncio.create_task(self._deliver(stream, msg))
                self._settling.add(task)
                task.add_done_callback(self._settling.discard)
                task.add_done_callback(lambda _: free.release())
        finally:
            # The server has to hear of it before anybody relies on our being gone: what it sends us still
            # waits for ACK_WAIT_S.
            with contextlib.suppress(nats.errors.Error, OSError):
                await pulled.unsubscribe()
                await client.flush(FLUSH_TIMEOUT_S)
                await asyncio.sleep(SETTLED_S)

    async def _make(self, stream: JetStreamContext) -> None:
        """Streams and consumer, where they are missing: those that somebody set up otherwise stay so."""
        work = StreamConfig(
            name=self._stream,
            subjects=[self._subject],
            retention=RetentionPolicy.WORK_QUEUE,
            storage=StorageType.FILE,
        )
        parked = StreamConfig(
            name=f"{self._stream}_PARKED",
            subjects=[self._parking_place],
            storage=StorageType.FILE,
            max_age=PARKED_S,
            max_msgs=PARKED_MESSAGES,
            max_bytes=PARKED_BYTES,
            discard=DiscardPolicy.OLD,
        )
        for config in (work, parked):
            try:
                await stream.stream_info(str(config.name))
            except nats.js.errors.NotFoundError:
                await stream.add_stream(config)
        try:
            await stream.consumer_info(self._stream, self._consumer)
        except nats.js.errors.NotFoundError:
            await stream.add_consumer(
                self._stream,
                ConsumerConfig(
                    durable_name=self._consumer,
                    filter_subject=self._subject,
                    ack_policy=AckPolicy.EXPLICIT,
                    ack_wait=ACK_WAIT_S,
                    max_deliver=-1,
                ),
            )

    async def _deliver(self, stream: JetStreamContext, msg: Msg) -> None:
        told = msg.metadata
        identity = f"{told.stream}:{told.sequence.stream}:{told.timestamp.timestamp():.6f}"
        # A message of a stream has no sender to answer to: its reply subject is the acknowledgement's.
        message = message_of(msg)
        delivery = Delivery(
            type(message)(message.subject, message.data, message.headers), identity, told.num_delivered
        )
        try:
            parked = await self._outcome(delivery)
            if parked is None:
                await msg.ack()
            else:
                await self._park(stream, delivery, told.sequence.stream, parked)
                await msg.term()
        except Unavailable as error:
            log.warning("an ingest request is put off", extra={"reason": error.message})
            await self._put_off(msg, told.num_delivered)
        except (nats.errors.Error, OSError, TimeoutError):
            pass  # the server did not hear of the outcome, and delivers the message again
        except Exception as error:
            log.error("an ingest request is put off", extra={"error": type(error).__name__})
            await self._put_off(msg, told.num_delivered)

    async def _outcome(self, delivery: Delivery) -> Parked | None:
        try:
            return await self._settle(delivery)
        except Unavailable:
            raise
        except Exception as error:
            if delivery.attempt < FAULTS_ALLOWED:
                raise
            log.error("an ingest request is given up", extra={"error": type(error).__name__})
            return Parked("It failed again and again because of an internal error.")

    async def _put_off(self, msg: Msg, attempt: int) -> None:
        delay_s = min(LONGEST_AGAIN_S, AGAIN_S * 2.0 ** min(attempt - 1, 16))
        with contextlib.suppress(nats.errors.Error, OSError, TimeoutError):
            await msg.nak(delay=delay_s)

    async def _park(
        self, stream: JetStreamContext, delivery: Delivery, sequence: int, parked: Parked
    ) -> None:
        headers = {REASON: parked.reason, SEQUENCE: str(sequence), "Nats-Msg-Id": f"{delivery.id}:parked"}
        kept = {
            name: value for name, value in delivery.message.headers.items() if not name.startswith("Nats-")
        }
        # Room for the headers; the beginning of an oversized message is enough to tell what it was.
        room = stream._nc.max_payload - 4096 - sum(len(n) + len(v) for n, v in kept.items())
        await stream.publish(
            self._parking_place, delivery.message.data[: max(0, room)], headers=kept | headers
        )
        log.warning("an ingest request was parked", extra={"reason": parked.reason})
