"""Embedding texts for a caller: the bounds of one request, and the model that is asked for."""

from collections.abc import Sequence
from typing import Any

from sherlock.rag.domain.errors import InvalidRequest, ModelNotFound
from sherlock.rag.domain.models import Encoder
from sherlock.rag.domain.ports import TokenCounter

MAX_INPUT_TOKENS = 8192
MAX_REQUEST_TOKENS = 300_000
"""OpenAI's own bounds; they keep one request from holding the encoder for minutes."""


def check_model(model: str, encoder: Encoder) -> None:
    """The full name or its last part. Raises `ModelNotFound`."""
    if model not in (encoder.name, encoder.name.rpartition("/")[2]):
        raise ModelNotFound(model)


def read_input(given: Any, counter: TokenCounter) -> tuple[list[str], int]:
    """The texts of any of the four shapes of `input`, and their tokens in all. Raises `InvalidRequest`."""
    if isinstance(given, str):
        texts = [given]
    elif isinstance(given[0], str):
        texts = given
    else:
        texts = [decoded(tokens, counter) for tokens in (given if isinstance(given[0], list) else [given])]
    total = 0
    for text in texts:
        count = counter.count(text)
        total += count
        if count > MAX_INPUT_TOKENS or total > MAX_REQUEST_TOKENS:
            raise InvalidRequest(
                f"'input': {MAX_INPUT_TOKENS} tokens an input, {MAX_REQUEST_TOKENS} a request at most.",
                param="input",
                code="context_length_exceeded",
            )
    return texts, total


def decoded(tokens: Sequence[int], counter: TokenCounter) -> str:
    try:
        return counter.decode(tokens)
    except ValueError:
        raise InvalidRequest(
            "Invalid 'input': token ids are read as cl100k_base, and one of them is not in it.",
            param="input",
            code="invalid_value",
        ) from None
