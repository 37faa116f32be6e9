"""What every `MessageBroker` does, on a real NATS server."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.aio.client import Client
from tests.nats_clients import WAIT_S, connected
from tests.nats_servers import MAX_PAYLOAD, NatsServer, nats_server

from sherlock.rag.adapters.nats_broker import NatsBroker
from sherlock.rag.adapters.nats_broker.streams import FAULTS_ALLOWED
from sherlock.rag.domain.errors import DatabaseUnavailable, MessagingUnavailable
from sherlock.rag.domain.messages import Delivery, Message, Parked

STREAM, SUBJECT = "WORK", "test.work.request"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with nats_server(tmp_path_factory.mktemp("nats")) as running:
        yield running


@pytest.fixture
async def client(server: NatsServer) -> AsyncIterator[Client]:
    async with connected(server) as client:
        yield client
        # Each test makes its streams anew.
        for stream in await client.jetstream().streams_info():
            await client.jetstream().delete_stream(str(stream.config.name))


@pytest.fixture
async def broker(server: NatsServer) -> AsyncIterator[NatsBroker]:
    broker = NatsBroker(server.url, name="test")
    yield broker
    await broker.close()


async def up(*brokers: NatsBroker) -> None:
    for broker in brokers:
        broker.start()
        await asyncio.wait_for(broker.connected(), WAIT_S)
        await broker.flush()


class Settled:
    """Settles as it is told, and remembers what came."""

    def __init__(self, *outcomes: Parked | Exception | None) -> None:
        self.outcomes = list(outcomes)
        self.deliveries: list[Delivery] = []
        self._news = asyncio.Event()

    async def __call__(self, delivery: Delivery) -> Parked | None:
        self.deliveries.append(delivery)
        self._news.set()
        outcome = self.outcomes.pop(0) if self.outcomes else None
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def wait(self, count: int) -> None:
        async with asyncio.timeout(WAIT_S):
            while len(self.deliveries) < count:
                self._news.clear()
                await self._news.wait()


async def test_a_message_arrives_as_it_was_sent(broker: NatsBroker, client: Client) -> None:
    inbox: asyncio.Queue[Message] = asyncio.Queue()
    broker.subscribe("test.in", "group", inbox.put_nowait)
    await up(broker)
    sent = Message("test.in", b"\x00 data", {"A-Header": "its value"}, "answer.here")
    await broker.publish(sent)
    assert await asyncio.wait_for(inbox.get(), WAIT_S) == sent


async def test_one_of_a_group_gets_it(server: NatsServer, client: Client) -> None:
    got: list[str] = []
    async with AsyncExitStack() as stack:
        brokers = [NatsBroker(server.url, name="test") for _ in range(3)]
        for number, broker in enumerate(brokers):
            stack.push_async_callback(broker.close)
            broker.subscribe("test.in", "group", lambda m, n=number: got.append(f"{n}:{m.data!r}"))  # type: ignore[misc]
        await up(*brokers)
        for number in range(100):
            await client.publish("test.in", str(number).encode())
        await client.flush()
        for broker in brokers:
            await broker.flush()
        assert len(got) == len({entry.partition(":")[2] for entry in got}) == 100
        assert len({entry[0] for entry in got}) == 3


async def test_what_is_not_connected_says_so(broker: NatsBroker) -> None:
    assert not broker.is_connected
    assert (await broker.status()).state == "starting"
    with pytest.raises(MessagingUnavailable):
        await broker.flush()


async def test_a_subject_that_is_none_is_refused(broker: NatsBroker) -> None:
    await up(broker)
    with pytest.raises(MessagingUnavailable):
        await broker.publish(Message("not a subject", b""))


NAMES = st.text("ABCabc-", min_size=1, max_size=20)


@given(st.dictionaries(NAMES, st.text(max_size=50), max_size=5), st.binary(max_size=50))
def test_size_is_never_less_than_what_is_sent(headers: dict[str, str], data: bytes) -> None:
    lines = [f"{name}: {value}\r\n".encode() for name, value in headers.items()]
    sent = len(b"NATS/1.0\r\n" + b"".join(lines) + b"\r\n") + len(data)
    assert Message("s", data, headers).size >= sent


async def test_what_fits_by_its_size_is_taken(broker: NatsBroker, client: Client) -> None:
    await up(broker)
    assert broker.max_size == MAX_PAYLOAD
    headers = {"A-Header": "its value"}
    room = MAX_PAYLOAD - Message("test.in", b"", headers).size
    await broker.publish(Message("test.in", b"x" * room, headers))
    await broker.flush()
    assert broker.is_connected, "the server ends a connection that sends more"


async def test_a_stream_keeps_what_nobody_took(
    broker: NatsBroker, server: NatsServer, client: Client
) -> None:
    settled = Settled()
    broker.consume(STREAM, SUBJECT, "workers", settled)
    await up(broker)
    stream = client.jetstream()
    await until_there(client)
    await stream.publish(SUBJECT, b"1")
    await settled.wait(1)
    await broker.stop_receiving()
    for number in (b"2", b"3"):
        await stream.publish(SUBJECT, number)
    more = Settled()
    async with AsyncExitStack() as stack:
        again = NatsBroker(server.url, name="test")
        stack.push_async_callback(again.close)
        again.consume(STREAM, SUBJECT, "workers", more)
        await up(again)
        await more.wait(2)
    assert [d.message.data for d in settled.deliveries] == [b"1"]
    assert sorted(d.message.data for d in more.deliveries) == [b"2", b"3"]
    assert len({d.id for d in (*settled.deliveries, *more.deliveries)}) == 3
    assert more.deliveries[0].message.reply_to is None


async def until_there(client: Client) -> None:
    wanted = {STREAM, f"{STREAM}_PARKED"}
    async with asyncio.timeout(WAIT_S):
        while {s.config.name for s in await client.jetstream().streams_info()} != wanted:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_an_outage_puts_off_and_a_fault_parks_in_the_end(
    broker: NatsBroker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sherlock.rag.adapters.nats_broker.streams.AGAIN_S", 0.01)
    outages = [DatabaseUnavailable()] * (FAULTS_ALLOWED + 1)
    settled = Settled(*outages, RuntimeError("a secret"))
    broker.consume(STREAM, SUBJECT, "workers", settled)
    await up(broker)
    await until_there(client)
    parked = await client.jetstream().subscribe("test.work.parked", ordered_consumer=True)
    await client.jetstream().publish(SUBJECT, b"payload", headers={"Mine": "kept"})
    msg = await parked.next_msg(timeout=WAIT_S)
    assert len(settled.deliveries) == FAULTS_ALLOWED + 2
    assert len({d.id for d in settled.deliveries}) == 1
    assert [d.attempt for d in settled.deliveries] == list(range(1, FAULTS_ALLOWED + 3))
    assert (msg.data, (msg.headers or {})["Mine"]) == (b"payload", "kept")
    assert "internal error" in (msg.headers or {})["Sherlock-Parked-Reason"]
    assert "secret" not in str(msg.headers)


async def test_a_parked_message_may_be_as_large_as_any(broker: NatsBroker, client: Client) -> None:
    settled = Settled(Parked("It is too large to be true."))
    broker.consume(STREAM, SUBJECT, "workers", settled)
    await up(broker)
    await until_there(client)
    parked = await client.jetstream().subscribe("test.work.parked", ordered_consumer=True)
    await client.jetstream().publish(SUBJECT, b"x" * (MAX_PAYLOAD - 64))
    msg = await parked.next_msg(timeout=WAIT_S)
    assert (msg.headers or {})["Sherlock-Parked-Reason"] == "It is too large to be true."
    assert MAX_PAYLOAD - 8192 < len(msg.data) < MAX_PAYLOAD
    async with asyncio.timeout(WAIT_S):
        while (await client.jetstream().stream_info(STREAM)).state.messages:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert len(settled.deliveries) == 1


async def test_one_slow_message_holds_up_no_other(broker: NatsBroker, client: Client) -> None:
    done = asyncio.Event()
    seen: list[bytes] = []

    async def settle(delivery: Delivery) -> None:
        seen.append(delivery.message.data)
        if delivery.message.data == b"slow":
            await done.wait()

    broker.consume(STREAM, SUBJECT, "workers", settle)
    await up(broker)
    await until_there(client)
    for data in (b"slow", b"1", b"2"):
        await client.jetstream().publish(SUBJECT, data)
    async with asyncio.timeout(WAIT_S):
        while (await client.jetstream().stream_info(STREAM)).state.messages != 1:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert set(seen) == {b"slow", b"1", b"2"}
    done.set()


async def test_a_stream_deleted_by_somebody_is_made_again(broker: NatsBroker, client: Client) -> None:
    settled = Settled()
    broker.consume(STREAM, SUBJECT, "workers", settled)
    await up(broker)
    await until_there(client)
    await client.jetstream().delete_stream(STREAM)
    await until_there(client)
    await client.jetstream().publish(SUBJECT, b"1")
    await settled.wait(1)
