"""The gateway and the server behind it, over sockets: what reaches it, and what becomes of its errors."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import openai
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp
from tests.contract.data.check_response import parse_sse, stream_violations
from tests.serving import Served, served, settings_for, sherlock

USER = [{"role": "user", "content": "hello"}]
FUNCTION = {"type": "function", "function": {"name": "f", "strict": True, "parameters": {"type": "object"}}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": True}}


@dataclass
class Upstream:
    """Keeps what it is asked, and answers with `chunks`, or with `refusal` where that is set."""

    asked: list[dict[str, Any]] = field(default_factory=list)
    chunks: list[dict[str, Any]] = field(default_factory=list)
    refusal: Response | None = None

    async def answer(self, request: Request) -> Response:
        self.asked.append(await request.json())
        if self.refusal is not None:
            return self.refusal
        lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in self.chunks]
        return StreamingResponse(iter([*lines, "data: [DONE]\n\n"]), media_type="text/event-stream")

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[ASGIApp]:
        yield Starlette(routes=[Route("/v1/chat/completions", self.answer, methods=["POST"])])


def chunk(delta: dict[str, Any], reason: str | None = None, index: int = 0) -> dict[str, Any]:
    choice = {"index": index, "delta": delta, "finish_reason": reason}
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}


@pytest.fixture(scope="module")
def behind() -> Upstream:
    return Upstream()


@pytest.fixture(scope="module")
def gateway(behind: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(behind.opened) as url:
        settings = settings_for(tmp_path_factory.mktemp("gateway"), llm_base_url=f"{url}/v1", llm_model="m")
        with sherlock(settings, fake_chat_model=False) as running:
            yield running


@pytest.fixture
def http(gateway: Served) -> Iterator[httpx.Client]:
    with gateway.http() as client:
        yield client


@pytest.fixture
def upstream(behind: Upstream) -> Upstream:
    behind.asked.clear()
    behind.chunks = [chunk({"content": "hi"}), chunk({}, "stop")]
    behind.refusal = None
    return behind


PASSED: list[dict[str, Any]] = [
    {"temperature": 0.5, "top_p": 0.9},
    {"max_completion_tokens": 9},
    {"max_tokens": 9},
    {"stop": "x"},
    {"stop": ["x", "y"]},
    {"frequency_penalty": -1, "presence_penalty": 1},
    {"logprobs": True, "top_logprobs": 2},
    {"logit_bias": {"50256": -100}},
    {"seed": 3},
    {"response_format": {"type": "text"}},
    {"response_format": {"type": "json_object"}},
    {"response_format": SCHEMA},
    {"tools": [FUNCTION], "tool_choice": "required", "parallel_tool_calls": False},
    {"tools": [FUNCTION], "tool_choice": {"type": "function", "function": {"name": "f"}}},
    {
        "tools": [FUNCTION],
        "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [FUNCTION]}},
    },
    {"user": "u", "safety_identifier": "s", "prompt_cache_key": "k", "service_tier": "flex"},
    {"reasoning_effort": "low", "verbosity": "low"},
    {"prediction": {"type": "content", "content": "p"}, "web_search_options": {}},
    {"moderation": {"model": "m"}, "prompt_cache_options": {}, "vendor_option": [1, {"a": None}]},
]
KEPT_BACK: list[dict[str, Any]] = [
    {"store": True},
    {"metadata": {"a": "b"}},
    {"modalities": ["text"]},
    {"functions": [], "function_call": "none"},
    {"tool_choice": "auto", "tools": []},
    dict.fromkeys(("n", "stop", "temperature", "tools", "tool_choice", "seed", "response_format", "user")),
]


@pytest.mark.parametrize("members", PASSED + KEPT_BACK, ids=lambda members: "+".join(members)[:40])
def test_every_member_goes_on_or_is_kept_back(
    http: httpx.Client, upstream: Upstream, members: dict[str, Any]
) -> None:
    answer = http.post("/v1/chat/completions", json={"model": "m", "messages": USER, **members})
    assert answer.status_code == 200, answer.text
    (asked,) = upstream.asked
    ours = {"model": "m", "messages": USER, "stream": True, "stream_options": {"include_usage": True}}
    assert asked == ours | ({} if members in KEPT_BACK else members)


def test_messages_of_every_role_and_kind_go_on_as_they_came(http: httpx.Client, upstream: Upstream) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "developer", "content": "d"},
        {"role": "system", "content": [{"type": "text", "text": "s"}], "name": "n"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "u"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA==", "detail": "low"}},
                {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}},
                {"type": "file", "file": {"file_id": "file-1"}},
            ],
        },
        {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None},
        {"role": "tool", "content": "42", "tool_call_id": "call_1"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "content": [{"type": "text", "text": "42"}], "tool_call_id": "call_1"},
        {"role": "function", "name": "f", "content": None},
        {"role": "user", "content": ""},
    ]
    answer = http.post("/v1/chat/completions", json={"model": "m", "messages": messages})
    assert answer.status_code == 200, answer.text
    assert upstream.asked[0]["messages"] == messages


def test_choices_that_come_in_any_order(http: httpx.Client, gateway: Served, upstream: Upstream) -> None:
    """The upstream begins with the last; clients need them introduced one after the other."""
    upstream.chunks = [
        chunk({"role": "assistant", "content": "c"}, index=2),
        chunk({"role": "assistant", "content": "a"}, index=0),
        chunk({}, "stop", index=2),
        chunk({"content": "b"}, index=1),
        chunk({}, "stop", index=0),
        chunk({}, "stop", index=1),
        {
            **chunk({}),
            "choices": [],
            "usage": {"prompt_tokens": 1, "completion_tokens": 3, "total_tokens": 4},
        },
    ]
    body = {"model": "m", "messages": USER, "n": 3}
    options = {"stream": True, "stream_options": {"include_usage": True, "include_obfuscation": True}}
    events = parse_sse(http.post("/v1/chat/completions", json=body | options).text)
    assert not stream_violations("POST", "/chat/completions", events)
    first = [event["choices"][0] for _, event in events[:3]]
    assert [choice["index"] for choice in first] == [0, 1, 2]
    assert all(choice["delta"]["role"] == "assistant" for choice in first)
    with gateway.client().chat.completions.stream(model="m", messages=USER, n=3) as stream:  # type: ignore[arg-type]
        for _ in stream:
            pass
        final = stream.get_final_completion()
    whole = http.post("/v1/chat/completions", json=body).json()
    streamed = [(choice.message.content, choice.finish_reason) for choice in final.choices]
    assert streamed == [("a", "stop"), ("b", "stop"), ("c", "stop")]
    assert streamed == [(c["message"]["content"], c["finish_reason"]) for c in whole["choices"]]
    assert whole["usage"]["total_tokens"] == 4


def refusal(status: int, message: str, code: str | None = None, **headers: str) -> JSONResponse:
    body = {"error": {"message": message, "type": "x", "param": None, "code": code}}
    return JSONResponse(body, status, {name.replace("_", "-"): value for name, value in headers.items()})


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("refused", "status", "code", "words", "headers"),
    [
        (refusal(429, "slow", retry_after="7"), 429, "rate_limit_exceeded", "too many", {"retry-after": "7"}),
        (refusal(401, "bad key sk-secret", "invalid_api_key"), 503, None, "refused Sherlock's key", {}),
        (
            refusal(400, "context too long", "context_length_exceeded"),
            400,
            "context_length_exceeded",
            "long",
            {},
        ),
        (refusal(500, "stack trace"), 503, "llm_unavailable", "status 500", {}),
    ],
    ids=["429", "401", "400", "500"],
)
def test_an_upstream_that_refuses(
    http: httpx.Client,
    upstream: Upstream,
    stream: bool,
    refused: Response,
    status: int,
    code: str | None,
    words: str,
    headers: dict[str, str],
) -> None:
    upstream.refusal = refused
    answer = http.post("/v1/chat/completions", json={"model": "m", "messages": USER, "stream": stream})
    error = answer.json()["error"]
    assert answer.status_code == status, answer.text
    assert set(error) == {"message", "type", "param", "code"}
    assert code in (None, error["code"])
    assert words in error["message"]
    assert "secret" not in answer.text
    assert "stack" not in answer.text
    assert {name: answer.headers[name] for name in headers} == headers
    assert len(upstream.asked) == 1, "Sherlock leaves retrying to its callers"


def test_an_error_in_the_middle_of_a_stream(http: httpx.Client, gateway: Served, upstream: Upstream) -> None:
    upstream.chunks = [chunk({"content": "hi"}), {"error": {"message": "out of memory at 0x7f", "code": 500}}]
    text = http.post("/v1/chat/completions", json={"model": "m", "messages": USER, "stream": True}).text
    *_, (_, last) = parse_sse(text)
    assert last["error"]["code"] == "llm_unavailable"
    assert "0x7f" not in text
    assert "[DONE]" not in text
    with pytest.raises(openai.APIError, match="reported an error"):
        list(gateway.client().chat.completions.create(model="m", messages=USER, stream=True))  # type: ignore[call-overload]
