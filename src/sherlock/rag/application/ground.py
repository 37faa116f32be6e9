"""Grounding, as pure functions: what is asked, what fits, and how passages come into the conversation, or how
it is said that there are none.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sherlock.rag.application.passages import shown_passages
from sherlock.rag.application.small_talk import is_small_talk
from sherlock.rag.domain.models import ChatMessage, Passage
from sherlock.rag.domain.ports import TokenCounter

MESSAGE_TOKENS = 4
"""What a message costs beside its text: role and delimiters (OpenAI Cookbook, "How to count tokens")."""

PASSAGES_SHARE = 0.25
"""However long the history, passages get this share of the context."""

NOTHING_FOUND = (
    "No relevant passages were found for this question. Do not claim to know what the files say about it."
)
SAY_SO = "Say that the files do not hold the answer."
NOTICE_STANDS = "The user reads that in a sentence before your answer, so do not say it again."
NOTICE = "No relevant passages were found in the files."
SMALL_TALK = "The last message asks for nothing that stands in files. Reply to it as it is meant."


# ── messages ────────────────────────────────────────────────────────────────


def text_of(message: ChatMessage) -> str:
    """The text of a message, whether its content is a string, a list of parts, or absent."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "\n".join(part["text"] for part in parts if isinstance(part.get("text"), str))


def question(messages: Sequence[ChatMessage]) -> str:
    """What retrieval asks for: the text of the last user message; empty when there is none."""
    return next((text_of(m).strip() for m in reversed(messages) if m["role"] == "user"), "")


def prompt_tokens(messages: Sequence[ChatMessage], counter: TokenCounter) -> int:
    """cl100k_base tokens of the text of all messages, with what each message costs by itself."""
    return sum(MESSAGE_TOKENS + counter.count(text_of(message)) for message in messages)


def trimmed(messages: Sequence[ChatMessage], counter: TokenCounter, budget_tokens: int) -> list[ChatMessage]:
    """Without the oldest turns, so that the rest fits; system messages and the last user message always stay.

    For models whose window is small. A turn goes as a whole, so a tool's result never loses its call.
    """
    costs = [prompt_tokens([message], counter) for message in messages]
    excess = sum(costs) - budget_tokens
    last_user = max((at for at, m in enumerate(messages) if m["role"] == "user"), default=0)
    dropped: set[int] = set()
    for turn in turns(messages[:last_user]):
        if excess <= 0:
            break
        dropped |= set(turn)
        excess -= sum(costs[at] for at in turn)
    return [message for at, message in enumerate(messages) if at not in dropped]


def turns(messages: Sequence[ChatMessage]) -> Iterator[list[int]]:
    """Positions of a user message and all that answers it, oldest first; system messages belong to none."""
    turn: list[int] = []
    for at, message in enumerate(messages):
        if message["role"] in ("system", "developer"):
            continue
        if message["role"] == "user" and turn:
            yield turn
            turn = []
        turn.append(at)
    if turn:
        yield turn


# ── passages ────────────────────────────────────────────────────────────────


def passage_budget(
    system_prompt: str, messages: Sequence[ChatMessage], counter: TokenCounter, context_tokens: int
) -> int:
    """Tokens for passages: what system prompt and conversation leave, and never less than a fixed share."""
    left = context_tokens - counter.count(system_prompt) - prompt_tokens(messages, counter)
    return max(left, int(context_tokens * PASSAGES_SHARE))


def nothing_found(messages: Sequence[ChatMessage], options: Mapping[str, Any]) -> tuple[str, str]:
    """What the model is told when no passage bears on the question, and the sentence before its answer.

    A small model does not say what it is told to say, so the sentence is ours. It is empty before the reply
    to a greeting, in JSON, and where the model goes on from a function's result or from words put into its
    mouth.
    """
    if is_small_talk(question(messages)):
        return SMALL_TALK, ""
    if messages[-1]["role"] != "user":
        return NOTHING_FOUND, ""
    if (options.get("response_format") or {}).get("type", "text") != "text":
        return f"{NOTHING_FOUND} {SAY_SO}", ""
    return f"{NOTHING_FOUND} {NOTICE_STANDS}", NOTICE


def grounded_messages(
    system_prompt: str, found: Sequence[Passage], messages: Sequence[ChatMessage], instruction: str = ""
) -> list[ChatMessage]:
    """The conversation with the passages before its last question, in the user's own message.

    They are what strangers wrote, so they never stand in a system or developer message; nor in a user message
    of their own, since many chat templates allow no two in a row. For the same reason the system prompt, the
    `instruction` and a leading system message of the caller are one message.
    """
    rest = list(messages)
    instructions = [system_prompt, instruction]
    if rest and rest[0]["role"] in ("system", "developer"):
        instructions.append(text_of(rest.pop(0)))
    if found:
        at = max(at for at, message in enumerate(rest) if message["role"] == "user")
        rest[at] = {**rest[at], "content": behind(shown_passages(found), rest[at].get("content"))}
    said = "\n\n".join(block for block in instructions if block)
    return [{"role": "system", "content": said}, *rest] if said else rest


def behind(text: str, content: Any) -> Any:
    """A message's content, string or parts, with a text before it."""
    if isinstance(content, list):
        return [{"type": "text", "text": text}, *content]
    return f"{text}\n\n{content}"
