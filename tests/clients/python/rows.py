"""What a row of the checklist is, and what every row is given."""

import dataclasses
import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import openai

ROW_HEADER = "x-checklist-row"
"""Names the row in every request it makes, so that a recording can be told apart."""

MODEL = "parrot"
"""Repeats the last message, or calls the first function with it."""

MOUSE = "The harvest mouse weighs six grams. It builds its nest from woven grass, high above the ground."
WHALE = (
    "The blue whale weighs up to one hundred and fifty tonnes. Its heart alone is as heavy as a small car."
)


@dataclass(frozen=True)
class Given:
    client: openai.OpenAI
    animals: str
    """A store in which `mouse.txt` and `whale.md` are searchable."""
    mouse: str
    """The id of its file `mouse.txt`."""

    @classmethod
    def made(cls, client: openai.OpenAI) -> "Given":
        given = cls(client, client.vector_stores.create(name="animals").id, "")
        mouse = given.ingested(given.animals, "mouse.txt", MOUSE, {"legs": 4, "small": True})
        given.ingested(given.animals, "whale.md", WHALE, {"legs": 0, "small": False})
        return dataclasses.replace(given, mouse=mouse)

    def with_client(self, client: openai.OpenAI) -> "Given":
        return dataclasses.replace(self, client=client)

    def file(self, name: str = "note.txt", text: str = "Owls hunt at night.") -> str:
        """The id of a new file."""
        return self.client.files.create(file=(name, text.encode()), purpose="assistants").id

    def ingested(self, store_id: str, name: str, text: str, attributes: Any = None) -> str:
        """The id of a new file that is searchable in the store."""
        file_id = self.file(name, text)
        done = self.client.vector_stores.files.create_and_poll(
            file_id, vector_store_id=store_id, attributes=attributes or {}
        )
        equal((done.status, done.last_error), ("completed", None))
        return file_id


@dataclass(frozen=True)
class Row:
    method: str
    path: str
    what: str
    check: Callable[[Given], None]
    alone: bool = False
    """Lists everything, so nothing may come or go meanwhile."""

    @property
    def key(self) -> str:
        return f"{self.method} {self.path}: {self.what}"


Check = Callable[[Given], None]


def rows_in(rows: list[Row]) -> Callable[..., Callable[[Check], None]]:
    """A decorator that adds a check to `rows`, with its method, its path and what it holds."""

    def row(method: str, path: str, what: str, *, alone: bool = False) -> Callable[[Check], None]:
        return lambda check: rows.append(Row(method, path, what, check, alone))

    return row


def equal(actual: Any, expected: Any) -> None:
    if actual != expected:
        raise AssertionError(f"{actual!r} is not {expected!r}")


def holds(condition: Any, otherwise: str) -> None:
    if not condition:
        raise AssertionError(otherwise)


def refused(
    kind: type[openai.APIStatusError],
    call: Callable[[], Any],
    *,
    param: str | None = None,
    code: str | None = None,
) -> openai.APIStatusError:
    """The error that `call` raised, which is of `kind`. Where `param` or `code` are given it has them."""
    try:
        call()
    except openai.APIStatusError as error:
        equal(type(error), kind)
        holds(isinstance(error.body, dict) and error.body["message"], "the error has no message")
        holds(error.request_id, "the error has no request id")
        if param is not None:
            equal(error.param, param)
        if code is not None:
            equal(error.code, code)
        return error
    raise AssertionError("it was not refused")


def named(text: str, name: str) -> io.BytesIO:
    """A file in memory that has a name."""
    file = io.BytesIO(text.encode())
    file.name = name
    return file
