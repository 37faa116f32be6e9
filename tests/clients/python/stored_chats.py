"""Stored completions: none are kept, and the calls say so."""

import openai

from .rows import Given, Row, equal, refused, rows_in

ROWS: list[Row] = []
row = rows_in(ROWS)
ONE = "/chat/completions/{completion_id}"


@row("GET", "/chat/completions", "an empty list")
def _(given: Given) -> None:
    equal(list(given.client.chat.completions.list(limit=5)), [])


@row("GET", ONE, "404")
def _(given: Given) -> None:
    refused(openai.NotFoundError, lambda: given.client.chat.completions.retrieve("chatcmpl-unknown"))


@row("GET", ONE + "/messages", "404")
def _(given: Given) -> None:
    refused(openai.NotFoundError, lambda: given.client.chat.completions.messages.list("chatcmpl-unknown"))


@row("POST", ONE, "404")
def _(given: Given) -> None:
    completions = given.client.chat.completions
    refused(openai.NotFoundError, lambda: completions.update("chatcmpl-unknown", metadata={"a": "b"}))


@row("DELETE", ONE, "404")
def _(given: Given) -> None:
    refused(openai.NotFoundError, lambda: given.client.chat.completions.delete("chatcmpl-unknown"))
