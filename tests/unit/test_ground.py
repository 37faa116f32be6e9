"""What is asked, what fits, and where passages stand in the conversation."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cited import COUNTER, TURBINE, numbered

from sherlock.rag.application import ground
from sherlock.rag.application.passages import CLOSING, OPENING


def test_a_long_history_leaves_passages_their_share() -> None:
    history = [{"role": "user", "content": "word " * 5000}]
    assert ground.passage_budget("", history, COUNTER, 1000) == 250
    assert ground.passage_budget("be brief", [{"role": "user", "content": "why?"}], COUNTER, 1000) == 992


# ── messages ────────────────────────────────────────────────────────────────


def test_the_question_is_the_last_user_message() -> None:
    messages = [
        {"role": "user", "content": "first"},
        {
            "role": "user",
            "content": [{"type": "text", "text": " second "}, {"type": "image_url", "image_url": {}}],
        },
        {"role": "assistant", "content": None},
    ]
    assert ground.question(messages) == "second"
    assert ground.question([{"role": "system", "content": "x"}]) == ""


def test_passages_stand_before_the_last_question_in_the_user_s_own_message() -> None:
    messages = [
        {"role": "developer", "content": "Speak Latin."},
        {"role": "user", "content": "When?"},
        {"role": "assistant", "content": "Never."},
        {"role": "user", "content": "Why?", "name": "anna"},
        {"role": "tool", "tool_call_id": "1", "content": "x"},
    ]
    (system, *rest) = ground.grounded_messages("Cite.", numbered(TURBINE), messages)
    assert system == {"role": "system", "content": "Cite.\n\nSpeak Latin."}
    assert [rest[0], rest[1], rest[3]] == [messages[1], messages[2], messages[4]]
    asked = rest[2]
    assert (asked["role"], asked["name"]) == ("user", "anna")
    assert asked["content"] == f"{OPENING}\n\n[1] 1.txt\n{TURBINE}\n\n{CLOSING}\n\nWhy?"


def test_a_question_in_parts_keeps_them() -> None:
    picture: dict[str, Any] = {"type": "image_url", "image_url": {"url": "data:,"}}
    parts = [{"type": "text", "text": "What is this?"}, picture]
    (asked,) = ground.grounded_messages("", numbered(TURBINE), [{"role": "user", "content": parts}])
    assert asked["content"][1:] == parts
    assert TURBINE in asked["content"][0]["text"]


def test_that_nothing_was_found_is_an_instruction() -> None:
    asked = {"role": "user", "content": "Why?"}
    instruction, notice = ground.nothing_found([asked], {})
    assert notice == ground.NOTICE
    assert ground.grounded_messages("Cite.", (), [asked], instruction) == [
        {"role": "system", "content": f"Cite.\n\n{ground.NOTHING_FOUND} {ground.NOTICE_STANDS}"},
        asked,
    ]


@pytest.mark.parametrize(
    ("messages", "options", "told"),
    [
        ([{"role": "user", "content": "Hello, how are you?"}], {}, ground.SMALL_TALK),
        ([{"role": "user", "content": "Why?"}], {"response_format": {"type": "json_object"}}, ground.SAY_SO),
        (
            [{"role": "user", "content": "Why?"}, {"role": "tool", "tool_call_id": "1", "content": "x"}],
            {},
            ground.NOTHING_FOUND,
        ),
        (
            [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "Because"}],
            {},
            ground.NOTHING_FOUND,
        ),
    ],
)
def test_where_a_sentence_of_ours_would_be_out_of_place_there_is_none(
    messages: list[dict[str, Any]], options: dict[str, Any], told: str
) -> None:
    instruction, notice = ground.nothing_found(messages, options)
    assert instruction.endswith(told)
    assert notice == ""


@pytest.mark.parametrize("options", [{}, {"response_format": {"type": "text"}}, {"response_format": None}])
def test_plain_text_gets_the_sentence(options: dict[str, Any]) -> None:
    assert ground.nothing_found([{"role": "user", "content": "Why?"}], options)[1] == ground.NOTICE


ROLES = st.sampled_from(["system", "developer", "user", "assistant", "tool"])


@settings(deadline=None)
@given(st.lists(st.tuples(ROLES, st.text(alphabet="ab ", max_size=60)), max_size=12), st.integers(0, 120))
def test_trimming_drops_whole_turns_from_the_oldest(drawn: list[tuple[str, str]], budget: int) -> None:
    messages = [{"role": role, "content": f"{at} {text}"} for at, (role, text) in enumerate(drawn)]
    kept = ground.trimmed(messages, COUNTER, budget)
    assert [m for m in messages if m in kept] == kept, "in order"
    assert [m for m in messages if m["role"] in ("system", "developer") and m not in kept] == []
    last_user = next((m for m in reversed(messages) if m["role"] == "user"), None)
    assert last_user is None or last_user in kept
    gone = [at for at, m in enumerate(messages) if m not in kept]
    for at in gone:
        follows = next(
            (n for n in range(at + 1, len(messages)) if messages[n]["role"] not in ("system", "developer")),
            at,
        )
        assert messages[follows]["role"] == "user" or follows in gone, (
            "no answer is left without its question"
        )
    if ground.prompt_tokens(messages, COUNTER) <= budget:
        assert kept == messages
