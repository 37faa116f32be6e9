"""A language model behind Sherlock that does what the last message says, over OpenAI's chat completions.

It repeats the last message word by word, and calls the first function it is given with that message as the
arguments.
The model's name chooses another behaviour:

    parrot, zoo/owl   as above
    refusing          answers with a refusal
    breaking          breaks off after the first word
    busy              is never free: 429, come back in 7 s
"""

import json
from collections.abc import Iterator
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

MODELS = ("parrot", "zoo/owl", "refusing", "breaking", "busy")


class Upstream:
    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        """The body of every request, in order."""
        self.app = Starlette(
            routes=[
                Route("/v1/chat/completions", self.chat, methods=["POST"]),
                Route("/v1/models", self.models),
            ]
        )

    async def models(self, _: Request) -> Response:
        data = [{"id": name, "object": "model", "created": 1, "owned_by": "zoo"} for name in MODELS]
        return JSONResponse({"object": "list", "data": data})

    async def chat(self, request: Request) -> Response:
        body = await request.json()
        self.asked.append(body)
        if body["model"] == "busy":
            return error(429, "Too many questions.", "rate_limit_exceeded", {"retry-after": "7"})
        if body["model"] not in MODELS:
            return error(404, f"The model '{body['model']}' does not exist.", "model_not_found")
        return StreamingResponse(frames(body), media_type="text/event-stream")


def error(status: int, message: str, code: str, headers: dict[str, str] | None = None) -> Response:
    body = {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": code}}
    return JSONResponse(body, status, headers)


def frames(body: dict[str, Any]) -> Iterator[str]:
    for chunk in chunks(body):
        yield f"data: {json.dumps(chunk)}\n\n"
    yield "data: [DONE]\n\n"


def chunks(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    said = 0
    for index in range(body.get("n") or 1):
        yield chunk(index, {"role": "assistant", "content": "", "refusal": None})
        if body["model"] == "refusing":
            yield chunk(index, {"refusal": "I would rather not."})
            yield chunk(index, {}, "content_filter")
            continue
        if call := function_call(body):
            name, arguments = call
            yield chunk(index, {"tool_calls": [called(f"call_{index}", name, "")]})
            for piece in (arguments[:5], arguments[5:]):
                yield chunk(index, {"tool_calls": [called(None, None, piece)]})
            yield chunk(index, {}, "tool_calls")
            continue
        words, reason = answer(body)
        for position, word in enumerate(words):
            yield chunk(index, {"content": word}, logprobs=logprobs(word) if body.get("logprobs") else None)
            if body["model"] == "breaking" and position == 0:
                yield {"error": {"message": "out of memory", "type": "server_error"}}
                return
        said += len(words)
        yield chunk(index, {}, reason)
    if (body.get("stream_options") or {}).get("include_usage"):
        asked = sum(len(text(message).split()) for message in body["messages"])
        usage = {"prompt_tokens": asked, "completion_tokens": said, "total_tokens": asked + said}
        yield envelope([]) | {"usage": usage}


def envelope(choices: list[Any]) -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "parrot",
        "choices": choices,
    }


def chunk(index: int, delta: dict[str, Any], reason: str | None = None, **more: Any) -> dict[str, Any]:
    return envelope([{"index": index, "delta": delta, "finish_reason": reason, **more}])


def called(identifier: str | None, name: str | None, arguments: str) -> dict[str, Any]:
    """A piece of a call: its id and name stand in the first one only."""
    if identifier is None:
        return {"index": 0, "function": {"arguments": arguments}}
    function = {"name": name, "arguments": arguments}
    return {"index": 0, "id": identifier, "type": "function", "function": function}


def logprobs(word: str) -> dict[str, Any]:
    token = {"token": word, "logprob": -0.5, "bytes": list(word.encode())}
    return {"content": [token | {"top_logprobs": [token]}], "refusal": None}


def text(message: dict[str, Any]) -> str:
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content)


def question(body: dict[str, Any]) -> str:
    """What the last message says, without passages that came into it."""
    return text(body["messages"][-1]).rpartition("</passages>\n\n")[2]


def function_call(body: dict[str, Any]) -> tuple[str, str] | None:
    """Name and arguments of the function that a user's message calls; a tool's answer is repeated instead."""
    choice = body.get("tool_choice", "auto")
    last = body["messages"][-1]
    if not body.get("tools") or choice == "none" or last["role"] != "user":
        return None
    first = body["tools"][0]["function"]["name"]
    name = choice["function"]["name"] if isinstance(choice, dict) and "function" in choice else first
    return name, question(body)


def answer(body: dict[str, Any]) -> tuple[list[str], str]:
    """The words to say, blanks before all but the first, and how it ends."""
    said = question(body)
    stops = body.get("stop") or []
    for stop in [stops] if isinstance(stops, str) else stops:
        said = said.partition(stop)[0]
    words = said.split(" ")
    words = [word if position == 0 else f" {word}" for position, word in enumerate(words)]
    limit = body.get("max_completion_tokens") or body.get("max_tokens") or len(words)
    return words[:limit], "stop" if len(words) <= limit else "length"
