"""Items of the Responses API as messages of a chat, which is what models understand."""

from collections.abc import Iterable, Mapping
from typing import Any

from sherlock.rag.domain.errors import InvalidRequest, abridged
from sherlock.rag.domain.models import ChatMessage, ResponseItem


def transcript(instructions: str | None, items: Iterable[ResponseItem]) -> tuple[ChatMessage, ...]:
    """The messages of a conversation, instructions first.

    What an assistant said and the functions it called are one message, as long as nothing comes between.
    Items that only tell how an answer came about are passed over. Raises `InvalidRequest` where a call has
    no output or an output no call: no model takes that.
    """
    messages: list[dict[str, Any]] = []
    if instructions is not None:
        messages.append({"role": "system", "content": instructions})
    waiting: dict[str, None] = {}
    known: set[str] = set()
    for item in items:
        if item["type"] == "message":
            message = {"role": item["role"], "content": content(item["content"])}
            if item["role"] == "assistant" and calls_only(messages):
                messages[-1]["content"] = message["content"]
            else:
                messages.append(message)
        elif item["type"] == "function_call":
            if not (messages and messages[-1]["role"] == "assistant"):
                messages.append({"role": "assistant", "content": None})
            messages[-1].setdefault("tool_calls", []).append(tool_call(item))
            waiting[item["call_id"]] = None
            known.add(item["call_id"])
        elif item["type"] == "function_call_output":
            call_id = item["call_id"]
            if call_id not in known:
                raise InvalidRequest(
                    f"No function call '{abridged(call_id)}' comes before its output.", param="input"
                )
            if call_id not in waiting:
                raise InvalidRequest(
                    f"The function call '{abridged(call_id)}' has more than one output.", param="input"
                )
            messages.append({"role": "tool", "tool_call_id": call_id, "content": content(item["output"])})
            del waiting[call_id]
    for call_id in waiting:
        raise InvalidRequest(f"The function call '{abridged(call_id)}' has no output.", param="input")
    return tuple(messages)


def calls_only(messages: list[dict[str, Any]]) -> bool:
    """Whether the last message is one of calls, without text so far."""
    return bool(messages) and "tool_calls" in messages[-1] and messages[-1]["content"] is None


def tool_call(item: ResponseItem) -> dict[str, Any]:
    return {
        "id": item["call_id"],
        "type": "function",
        "function": {"name": item["name"], "arguments": item["arguments"]},
    }


def content(given: str | list[Mapping[str, Any]]) -> str | list[dict[str, Any]]:
    """As a string wherever there is only text in one piece, or an answer: not every model reads parts."""
    if isinstance(given, str):
        return given
    answered = all(part["type"] in ("output_text", "refusal") for part in given)
    if answered or [part["type"] for part in given] == ["input_text"]:
        return "".join(said(part) for part in given)
    return [
        image(part) if part["type"] == "input_image" else {"type": "text", "text": said(part)}
        for part in given
    ]


def said(part: Mapping[str, Any]) -> str:
    text: str = part["refusal"] if part["type"] == "refusal" else part["text"]
    return text


def image(part: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": part["image_url"], "detail": part["detail"]}}
