"""What a model reads of the items of a conversation."""

from typing import Any

import pytest

from sherlock.rag.application.transcript import transcript
from sherlock.rag.domain.errors import InvalidRequest


def said(role: str, *texts: str) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text} for text in texts]}


def call(id: str) -> dict[str, Any]:
    return {"type": "function_call", "call_id": id, "name": "f", "arguments": "{}"}


def output(id: str, value: Any = "x") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": id, "output": value}


def test_text_in_one_piece_is_a_string() -> None:
    messages = transcript(
        "Be brief.", [said("user", "a"), said("user", "a", "b"), said("assistant", "a", "b")]
    )
    assert [message["content"] for message in messages] == [
        "Be brief.",
        "a",
        [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
        "ab",
    ]


def test_nothing_was_said() -> None:
    passed_over = [{"type": "reasoning", "summary": []}, {"type": "file_search_call", "queries": ["q"]}]
    assert transcript(None, passed_over) == ()
    assert transcript(None, [said("assistant")])[0]["content"] == ""


@pytest.mark.parametrize(
    "items",
    [
        [said("assistant", "Well."), call("1"), call("2"), output("1"), output("2")],
        [call("1"), call("2"), said("assistant", "Well."), output("1"), output("2")],
    ],
)
def test_calls_and_the_text_beside_them_are_one_message(items: list[Any]) -> None:
    roles = [message["role"] for message in transcript(None, items)]
    assert roles == ["assistant", "tool", "tool"]
    message = transcript(None, items)[0]
    assert message["content"] == "Well."
    assert [tool["id"] for tool in message["tool_calls"]] == ["1", "2"]


def test_calls_one_after_the_other_are_messages_of_their_own() -> None:
    messages = transcript(None, [call("1"), output("1"), call("2"), output("2"), said("assistant", "Done.")])
    assert [message["role"] for message in messages] == [
        "assistant",
        "tool",
        "assistant",
        "tool",
        "assistant",
    ]
    assert messages[0]["content"] is None


def test_a_refusal_is_what_was_answered() -> None:
    refusal = {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}
    assert transcript(None, [refusal])[0]["content"] == "No."


def test_what_a_function_showed() -> None:
    picture = {"type": "input_image", "image_url": "data:,", "detail": "low"}
    *_, message = transcript(None, [call("1"), output("1", [picture])])
    assert message["content"] == [{"type": "image_url", "image_url": {"url": "data:,", "detail": "low"}}]


@pytest.mark.parametrize(
    "items",
    [
        [call("1")],
        [output("1")],
        [output("1"), call("1")],
        [call("1"), output("2")],
        [call("1"), output("1"), output("1", "y")],
    ],
)
def test_a_call_needs_an_output_and_an_output_a_call(items: list[Any]) -> None:
    with pytest.raises(InvalidRequest, match=r"'[12]'") as refused:
        transcript(None, items)
    assert refused.value.param == "input"


def test_a_call_id_may_be_used_again() -> None:
    messages = transcript(None, [call("1"), output("1"), call("1"), output("1", "y")])
    assert [message["content"] for message in messages] == [None, "x", None, "y"]
