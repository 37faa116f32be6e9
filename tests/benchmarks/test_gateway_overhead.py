"""What Sherlock costs as a gateway, over asking the upstream directly; and many streams at once.

The upstream is a process of its own that costs next to nothing, and its answers are there at once: what is
measured is Sherlock. Direct and indirect requests alternate, so that a busy machine slows both alike.
"""

import asyncio
import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from tests.integration.processes import deployment
from tests.otlp_receiver import otlp_receiver
from tests.paced_upstream import paced_upstream, text

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(600)]

REQUESTS = 300
PIECES = 20
MOST_ADDED_MS = 5.0
STREAMS = 200
PACE_S = 0.1
ROUNDS = 16


@dataclass
class Addresses:
    direct: str
    through: str


@pytest.fixture
def urls(folder: Path) -> Iterator[Addresses]:
    with paced_upstream() as upstream:
        gateway = deployment(
            folder,
            rag_enabled="false",
            llm_base_url=f"{upstream}/v1",
            llm_model="paced",
            ready_path="/health",
        )
        with gateway.running("serve"):
            yield Addresses(f"{upstream}/v1/chat/completions", f"{gateway.url}/v1/chat/completions")


def body(**more: object) -> dict[str, object]:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Count. " * 50}]
    return {"model": "paced", "messages": messages, "pieces": PIECES, **more}


@dataclass
class Taken:
    """Milliseconds of each request."""

    first: list[float] = field(default_factory=list)
    """Until the first piece of the answer."""
    total: list[float] = field(default_factory=list)

    async def ask(self, client: httpx.AsyncClient, url: str, *, stream: bool) -> None:
        began, first = time.perf_counter(), None
        async with client.stream("POST", url, json=body(stream=stream)) as answer:
            assert answer.status_code == 200
            async for piece in answer.aiter_raw():
                if first is None and (not stream or b'"content":"0 "' in piece.replace(b": ", b":")):
                    first = time.perf_counter()
        assert first is not None
        self.first.append((first - began) * 1e3)
        self.total.append((time.perf_counter() - began) * 1e3)


def compared(name: str, direct: list[float], through: list[float]) -> float:
    """Prints both, and returns the milliseconds added at the median."""
    a, b = statistics.median(direct), statistics.median(through)
    p95 = [statistics.quantiles(values, n=20)[-1] for values in (direct, through)]
    print(
        f"\n{name}: direct p50 {a:.2f} ms (p95 {p95[0]:.2f}), through Sherlock {b:.2f} ms (p95 {p95[1]:.2f}):"
        f" {b - a:+.2f} ms, {b / a:.1f} times",
        end="",
    )
    return b - a


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
async def test_one_request_after_the_other(urls: Addresses, stream: bool) -> None:
    direct, through = Taken(), Taken()
    async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
        for _ in range(20):
            await Taken().ask(client, urls.through, stream=stream)
        for _ in range(REQUESTS):
            await direct.ask(client, urls.direct, stream=stream)
            await through.ask(client, urls.through, stream=stream)
    added = [compared("whole answer", direct.total, through.total)]
    if stream:
        added.append(compared("first piece", direct.first, through.first))
    print()
    assert max(added) <= MOST_ADDED_MS


@dataclass
class Stream:
    """One of many: when its pieces came, and what they said."""

    arrived: list[float] = field(default_factory=list)
    text: str = ""
    ended: bool = False

    async def read(self, client: httpx.AsyncClient, url: str) -> None:
        sent = body(stream=True, pace_s=PACE_S, pieces=50)
        async with client.stream("POST", url, json=sent) as answer:
            async for line in answer.aiter_lines():
                if line == "data: [DONE]":
                    self.ended = True
                elif line.startswith("data: ") and (content := content_of(json.loads(line[6:]))):
                    self.text += content
                    self.arrived.append(time.perf_counter())

    def gaps(self) -> list[float]:
        return [later - earlier for earlier, later in zip(self.arrived, self.arrived[1:], strict=False)]


def content_of(chunk: dict[str, Any]) -> str | None:
    delta = chunk["choices"][0]["delta"] if chunk["choices"] else {}
    content: str | None = delta.get("content")
    return content


async def test_many_streams_at_once(urls: Addresses) -> None:
    """Two hundred streams, of which each brings a piece every tenth of a second."""
    for name, url in (("direct", urls.direct), ("through Sherlock", urls.through)):
        streams = [Stream() for _ in range(STREAMS)]
        limits = httpx.Limits(max_connections=STREAMS)
        async with httpx.AsyncClient(trust_env=False, timeout=60, limits=limits) as client:
            began = time.perf_counter()
            await asyncio.gather(*(stream.read(client, url) for stream in streams))
            took = time.perf_counter() - began
        gaps = sorted(gap for stream in streams for gap in stream.gaps())
        assert all(stream.ended and stream.text == text(50) for stream in streams)
        print(
            f"\n{STREAMS} streams, {name}: {took:.1f} s (5.0 s at the upstream's pace); between two pieces"
            f" p50 {gaps[len(gaps) // 2] * 1e3:.0f} ms, p99 {gaps[int(len(gaps) * 0.99)] * 1e3:.0f} ms,"
            f" largest {gaps[-1] * 1e3:.0f} ms",
            end="",
        )
    print()


async def test_what_telemetry_costs(folder: Path) -> None:
    """Processor time of a gateway's chats, with a collector and without one; the two take turns."""
    with paced_upstream() as upstream, otlp_receiver() as collector, ExitStack() as stack:
        cpu_s: dict[str, Callable[[], float]] = {}
        urls: dict[str, str] = {}
        for name, endpoint in (("off", ""), ("on", collector.url)):
            own = folder / name
            own.mkdir()
            gateway = deployment(
                own,
                rag_enabled="false",
                llm_base_url=f"{upstream}/v1",
                llm_model="paced",
                ready_path="/health",
            )
            [process] = stack.enter_context(gateway.running("serve", OTEL_EXPORTER_OTLP_ENDPOINT=endpoint))
            cpu_s[name] = partial(processor_s, psutil.Process(process.popen.pid))
            urls[name] = f"{gateway.url}/v1/chat/completions"
        spent: dict[str, list[float]] = {name: [] for name in urls}
        async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
            for _ in range(ROUNDS):
                for name, url in urls.items():
                    before = cpu_s[name]()
                    for _ in range(REQUESTS // 10):
                        await Taken().ask(client, url, stream=True)
                    spent[name].append((cpu_s[name]() - before) / (REQUESTS // 10) * 1e3)
    off, on = (statistics.median(spent[name][1:]) for name in ("off", "on"))
    print(
        f"\na chat of {PIECES} pieces: {off:.2f} ms of processor time,"
        f" with telemetry {on:.2f} ms ({on / off:.2f} times)"
    )
    assert collector.named("chat.generate")


def processor_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
