"""Streams over real sockets: client -> Sherlock -> an upstream server that is slow or breaks off."""

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import openai
import pytest
from pydantic import SecretStr
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp
from tests.contract.data.check_response import parse_sse, stream_violations
from tests.paced_upstream import paced_upstream
from tests.paced_upstream import text as paced_text
from tests.serving import Served, served, settings_for, sherlock

from sherlock import event_stream
from sherlock.rag.domain.errors import ChatModelUnavailable

RESPONSE = {"model": "slow", "input": "count", "stream": True}
CHAT = {"model": "slow", "messages": [{"role": "user", "content": "count"}], "stream": True}


@dataclass
class Upstream:
    """An OpenAI-compatible server that counts up to `words`, one in `pause_s`, and knows when it was left."""

    words: int = 4
    pause_s: float = 0.0
    first_pause_s: float = 0.0
    breaks_off: bool = False
    sent: int = 0
    left: bool = False

    async def answer(self, _: Request) -> StreamingResponse:
        return StreamingResponse(self.chunks(), media_type="text/event-stream")

    async def chunks(self) -> AsyncIterator[str]:
        self.sent, self.left = 0, True
        await asyncio.sleep(self.first_pause_s)
        for word in range(self.words):
            yield self.chunk({"content": f"{word} "})
            self.sent += 1
            await asyncio.sleep(self.pause_s)
        self.left = False
        if not self.breaks_off:
            yield self.chunk({}, "stop")
            yield "data: [DONE]\n\n"

    @staticmethod
    def chunk(delta: dict[str, str], reason: str | None = None) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "slow"}
        return f"data: {json.dumps(head | {'choices': [choice]})}\n\n"

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[ASGIApp]:
        yield Starlette(routes=[Route("/v1/chat/completions", self.answer, methods=["POST"])])


@contextmanager
def gateway(upstream: Upstream, folder_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(upstream.opened) as upstream_url:
        settings = settings_for(
            folder_factory.mktemp("gateway"),
            llm_base_url=f"{upstream_url}/v1",
            llm_model="slow",
            llm_timeout_s=5,
        )
        with sherlock(settings, fake_chat_model=False) as running:
            yield running


def eventually(condition: object, timeout_s: float = 5.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if condition():  # type: ignore[operator]
            return True
        time.sleep(0.01)
    return False


def test_pieces_arrive_as_they_are_made(tmp_path_factory: pytest.TempPathFactory) -> None:
    upstream = Upstream(words=5, pause_s=0.1)
    with gateway(upstream, tmp_path_factory) as running, running.http() as http:
        arrived = []
        with http.stream("POST", "/v1/chat/completions", json=CHAT) as answer:
            lines = []
            for line in answer.iter_lines():
                lines.append(line)
                if '"content":"' in line and '"content":""' not in line:
                    arrived.append(time.monotonic())
    assert not stream_violations("POST", "/chat/completions", parse_sse("\n".join(lines)))
    assert len(arrived) == 5
    assert arrived[-1] - arrived[0] > 0.25, "not held back until the end"


async def test_many_streams_at_once_all_finish(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Two hundred, of different lengths, so that none can be mistaken for another."""

    async def answer(client: httpx.AsyncClient, pieces: int) -> list[tuple[str | None, Any]]:
        sent = CHAT | {"pieces": pieces, "pace_s": 0.02}
        return parse_sse((await client.post("/v1/chat/completions", json=sent)).text)

    with paced_upstream() as upstream:
        settings = settings_for(
            tmp_path_factory.mktemp("many"), llm_base_url=f"{upstream}/v1", llm_model="slow"
        )
        with sherlock(settings, fake_chat_model=False) as running:
            limits = httpx.Limits(max_connections=200)
            async with httpx.AsyncClient(
                base_url=running.url, trust_env=False, timeout=60, limits=limits
            ) as client:
                lengths = [1 + number % 20 for number in range(200)]
                answers = await asyncio.gather(*(answer(client, pieces) for pieces in lengths))
    for pieces, events in zip(lengths, answers, strict=True):
        assert not stream_violations("POST", "/chat/completions", events)
        assert events[-1][1] == "[DONE]"
        choices = [choice for _, event in events[:-1] for choice in event["choices"]]
        assert "".join(choice["delta"].get("content", "") for choice in choices) == paced_text(pieces)
        assert choices[-1]["finish_reason"] == "stop"


def test_as_many_choices_as_were_asked_for_from_an_upstream_that_makes_one(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with gateway(Upstream(words=2), tmp_path_factory) as running, running.http() as http:
        whole = http.post("/v1/chat/completions", json=CHAT | {"n": 3, "stream": False}).json()
        streamed = http.post("/v1/chat/completions", json=CHAT | {"n": 3}).text
    answers = [(choice["index"], choice["message"]["content"]) for choice in whole["choices"]]
    assert answers == [(0, "0 1 "), (1, "0 1 "), (2, "0 1 ")]
    chunks = parse_sse(streamed)
    assert not stream_violations("POST", "/chat/completions", chunks)
    assert streamed.count('"finish_reason":"stop"') == 3


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("path", "asked"), [("chat/completions", CHAT), ("responses", RESPONSE)])
def test_a_client_that_goes_stops_the_upstream(
    tmp_path_factory: pytest.TempPathFactory, path: str, asked: dict[str, object], stream: bool
) -> None:
    upstream = Upstream(words=1000, pause_s=0.02)
    with gateway(upstream, tmp_path_factory) as running:
        body = json.dumps(asked | {"stream": stream}).encode()
        host, _, port = running.url.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port))) as client:
            client.sendall(
                b"POST /v1/%b HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
                b"content-length: %d\r\n\r\n%b" % (path.encode(), len(body), body)
            )
            assert eventually(lambda: upstream.sent >= 5)
        at_disconnect = upstream.sent
        time.sleep(0.5)
        stopped_at = upstream.sent
        assert stopped_at - at_disconnect <= 8, "25 more words would have come in that time"
        time.sleep(0.2)
        assert upstream.sent == stopped_at
        assert upstream.left


def test_a_client_that_goes_before_the_first_word(tmp_path_factory: pytest.TempPathFactory) -> None:
    upstream = Upstream(words=1000, pause_s=0.02, first_pause_s=0.6)
    with gateway(upstream, tmp_path_factory) as running:
        with running.http() as http, pytest.raises(httpx.ReadTimeout):
            http.post("/v1/chat/completions", json=CHAT, timeout=0.2)
        time.sleep(1.0)
        assert upstream.sent <= 1, "some twenty words would have come in that time"


def test_an_upstream_that_breaks_off(tmp_path_factory: pytest.TempPathFactory) -> None:
    with gateway(Upstream(breaks_off=True), tmp_path_factory) as running, running.http() as http:
        events = [data for _, data in parse_sse(http.post("/v1/chat/completions", json=CHAT).text)]
        assert events[-1]["error"]["type"] == "server_error"
        assert not stream_violations("POST", "/chat/completions", [(None, event) for event in events])
        with pytest.raises(openai.APIError):
            list(running.client().chat.completions.create(**CHAT))  # type: ignore[call-overload]
        plain = http.post("/v1/chat/completions", json=CHAT | {"stream": False})
        assert (plain.status_code, plain.json()["error"]["code"]) == (503, "llm_unavailable")
        events = parse_sse(http.post("/v1/responses", json=RESPONSE).text)
        assert [name for name, _ in events[-2:]] == ["error", "response.failed"]
        assert not stream_violations("POST", "/responses", events)


def test_an_upstream_that_is_not_there(tmp_path_factory: pytest.TempPathFactory) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/v1"
        settings = settings_for(tmp_path_factory.mktemp("lost"), llm_base_url=url, llm_model="slow")
        with sherlock(settings, fake_chat_model=False) as running, running.http() as http:
            for stream in (True, False):
                answer = http.post("/v1/chat/completions", json=CHAT | {"stream": stream})
                assert (answer.status_code, answer.json()["error"]["code"]) == (503, "llm_unavailable")
            assert http.get("/health").status_code == 200


def test_a_silent_stream_is_kept_alive(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_stream, "KEEP_ALIVE_S", 0.1)
    upstream = Upstream(words=2, pause_s=0.5)
    with gateway(upstream, tmp_path_factory) as running, running.http() as http:
        text = http.post("/v1/chat/completions", json=CHAT).text
        assert text.count(": keep-alive\n\n") >= 3
        assert not stream_violations("POST", "/chat/completions", parse_sse(text))
        pieces = list(running.client().chat.completions.create(**CHAT))  # type: ignore[call-overload]
        assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == "0 1 "
        text = http.post("/v1/responses", json=RESPONSE).text
        assert text.count(": keep-alive\n\n") >= 3
        assert not stream_violations("POST", "/responses", parse_sse(text))


def test_failing_half_way(rag_off: Served) -> None:
    rag_off.chat_model.reply = "one two three"
    rag_off.chat_model.error, rag_off.chat_model.error_after = ChatModelUnavailable("It broke off."), 2
    with rag_off.http() as http:
        answer = http.post("/v1/chat/completions", json=CHAT | {"model": "fake-model"})
    assert answer.status_code == 200
    assert answer.headers["x-request-id"]
    assert "[DONE]" not in answer.text
    *chunks, last = [data for _, data in parse_sse(answer.text)]
    assert [chunk["choices"][0]["delta"].get("content") for chunk in chunks] == ["", "one", " two"]
    assert last == {
        "error": {
            "message": "It broke off.",
            "type": "server_error",
            "param": None,
            "code": "llm_unavailable",
        }
    }


@pytest.fixture
def rag_off(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with sherlock(settings_for(tmp_path_factory.mktemp("off"))) as running:
        yield running


def test_the_database_is_down(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The chat goes on without knowledge and says so; everything else is 503."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"postgresql://nobody:secret@127.0.0.1:{unused.getsockname()[1]}/nothing"
        settings = settings_for(
            tmp_path_factory.mktemp("down"), rag_enabled=True, postgres_url=SecretStr(url)
        )
        with sherlock(settings) as running, running.http() as http:
            running.chat_model.reply = "I do not know."
            body = CHAT | {
                "model": "fake-model",
                "tools": [{"type": "file_search", "vector_store_ids": ["vs_1"]}],
            }
            plain = http.post("/v1/chat/completions", json=body | {"stream": False})
            assert plain.status_code == 200, plain.text
            assert plain.json()["choices"][0]["message"]["content"] == "I do not know."
            assert plain.json()["sherlock"]["stages"] == []
            assert "unavailable" in plain.json()["sherlock"]["degraded"][0]
            assert plain.headers["sherlock-stages"].startswith("retrieve;degraded=")
            streamed = http.post("/v1/chat/completions", json=body)
            assert '"degraded":["retrieve: ' in streamed.text
            assert list(running.chat_model.requests[-1].messages) == body["messages"], "no empty grounding"
            asked = {"model": "fake-model", "input": "count", "tools": body["tools"]}
            response = http.post("/v1/responses", json=asked).json()
            assert response["output"][1]["content"][0]["text"] == "I do not know."
            assert (response["output"][0]["status"], response["store"]) == ("failed", False)
            assert [reason.partition(":")[0] for reason in response["sherlock"]["degraded"]] == [
                "retrieve",
                "store",
            ]
            for answer in (
                http.post("/v1/responses", json=asked | {"previous_response_id": "resp_1"}),
                http.get("/v1/responses/resp_1"),
                http.get("/v1/files"),
                http.post("/v1/vector_stores/vs_1/search", json={"query": "q"}),
            ):
                assert (answer.status_code, answer.json()["error"]["code"]) == (503, "database_unavailable")
                assert "secret" not in answer.text
            assert http.get("/health").status_code == 200
            ready = http.get("/health/ready")
            assert (ready.status_code, ready.json()["components"]["postgres"]["state"]) == (
                503,
                "unavailable",
            )
