"""`/embeddings`."""

import base64
import struct
from typing import Any

import openai

from .rows import Given, Row, equal, holds, refused, rows_in

ROWS: list[Row] = []
row = rows_in(ROWS)


def vectors(given: Given, texts: Any, **options: Any) -> list[Any]:
    made = given.client.embeddings.create(model="hash", input=texts, **options)
    equal([item.index for item in made.data], list(range(len(made.data))))
    equal((made.object, made.model), ("list", "hash"))
    return [item.embedding for item in made.data]


def close(one: list[float], other: list[float]) -> None:
    holds(len(one) == len(other), f"{len(one)} figures are not {len(other)}")
    holds(all(abs(a - b) < 1e-6 for a, b in zip(one, other, strict=True)), "the vectors differ")


@row("POST", "/embeddings", "strings and token ids, one or many, in order")
def _(given: Given) -> None:
    (one,) = vectors(given, "hello world")
    many = vectors(given, ["good night", "hello world"])
    equal(len(many), 2)
    close(many[1], one)
    holds(many[0] != many[1], "two texts, one vector")
    (tokens,) = vectors(given, [15339, 1917])
    close(tokens, one)
    close(vectors(given, [[15339, 1917], [15339]])[0], one)
    usage = given.client.embeddings.create(model="hash", input="hello world").usage
    equal((usage.prompt_tokens, usage.total_tokens), (2, 2))


@row("POST", "/embeddings", "floats and base64 are the same figures")
def _(given: Given) -> None:
    (packed,) = vectors(given, "hello world", encoding_format="base64")
    holds(isinstance(packed, str), "base64 was asked for and is no string")
    (floats,) = vectors(given, "hello world", encoding_format="float")
    (as_the_client_asks,) = vectors(given, "hello world")
    close(list(struct.unpack(f"<{len(floats)}f", base64.b64decode(packed))), floats)
    close(as_the_client_asks, floats)


@row("POST", "/embeddings", "dimensions: cut, and of unit length again")
def _(given: Given) -> None:
    (short,) = vectors(given, "the quick brown fox jumps over the lazy dog", dimensions=200)
    equal(len(short), 200)
    holds(abs(sum(x * x for x in short) - 1) < 1e-5, "it is not of unit length")


@row("POST", "/embeddings", "nothing to embed: 400; an unknown model: 404")
def _(given: Given) -> None:
    refused(openai.BadRequestError, lambda: vectors(given, ""), param="input")
    refused(openai.BadRequestError, lambda: vectors(given, ["a", ""]), param="input[1]")
    refused(openai.BadRequestError, lambda: vectors(given, "a", dimensions=385), param="dimensions")
    refused(
        openai.NotFoundError,
        lambda: given.client.embeddings.create(model="unknown", input="a"),
        code="model_not_found",
    )
