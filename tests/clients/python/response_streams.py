"""`/responses`, streamed."""

from itertools import groupby
from typing import Any

from .chat import Weight
from .responses import GROUNDED, WEIGH, file_search
from .rows import MODEL, Given, Row, equal, holds, rows_in

ROWS: list[Row] = []
row = rows_in(ROWS)
PATH = "/responses"

MESSAGE = [
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
]
SEARCH = [
    "response.output_item.added",
    "response.file_search_call.in_progress",
    "response.file_search_call.searching",
    "response.file_search_call.completed",
    "response.output_item.done",
]


def streamed(given: Given, text: Any, **options: Any) -> list[Any]:
    with given.client.responses.create(**{"model": MODEL, "input": text, **options}, stream=True) as events:
        return list(events)


def followed(given: Given, text: Any, **options: Any) -> Any:
    """The final response of the client's own stream helper."""
    with given.client.responses.stream(**{"model": MODEL, "input": text, **options}) as stream:
        for _ in stream:
            pass
        return stream.get_final_response()


def types(events: list[Any]) -> list[str]:
    """Repeated ones once."""
    return [kind for kind, _ in groupby(event.type for event in events)]


@row("POST", PATH, "stream: the events of a message in order")
def _(given: Given) -> None:
    events = streamed(given, "one two three")
    equal(types(events), ["response.created", "response.in_progress", *MESSAGE, "response.completed"])
    equal([event.sequence_number for event in events], list(range(len(events))))
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    equal("".join(deltas), "one two three")
    equal((events[0].response.status, events[0].response.output), ("in_progress", []))
    final = events[-1].response
    equal((final.status, final.output_text, final.usage.total_tokens), ("completed", "one two three", 6))


@row("POST", PATH, "stream: the events of a search, then of the message")
def _(given: Given) -> None:
    events = streamed(given, GROUNDED, tools=file_search(given))
    seen = [kind for kind in types(events) if kind != "response.output_text.annotation.added"]
    seen = [kind for kind, _ in groupby(seen)]
    equal(seen, ["response.created", "response.in_progress", *SEARCH, *MESSAGE, "response.completed"])
    notes = [event.annotation for event in events if event.type == "response.output_text.annotation.added"]
    holds(notes, "no citation is told")
    final = events[-1].response.output[1].content[0].annotations
    equal([note.file_id for note in final], [given.mouse] * len(notes))


@row("POST", PATH, "stream(): a search and its answer, folded by the client")
def _(given: Given) -> None:
    final = followed(given, GROUNDED, tools=file_search(given), include=["file_search_call.results"])
    equal((final.status, final.output_text), ("completed", GROUNDED))
    equal([item.type for item in final.output], ["file_search_call", "message"])
    equal(final.output[0].results[0].filename, "mouse.txt")


@row("POST", PATH, "stream(): a function call, folded by the client")
def _(given: Given) -> None:
    final = followed(given, '{"animal": "mouse"}', tools=[WEIGH])
    (call,) = final.output
    equal((call.name, call.parsed_arguments), ("weigh", {"animal": "mouse"}))


@row("POST", PATH, "stream(): an answer in the shape that was asked for")
def _(given: Given) -> None:
    final = followed(given, '{"animal": "mouse", "grams": 6}', text_format=Weight)
    equal(final.output_parsed, Weight(animal="mouse", grams=6))


@row("POST", PATH, "stream: the limit reached ends with response.incomplete")
def _(given: Given) -> None:
    last = streamed(given, "word " * 30, max_output_tokens=16)[-1]
    equal((last.type, last.response.incomplete_details.reason), ("response.incomplete", "max_output_tokens"))


@row("POST", PATH, "stream: a failure half way is an error, not an end")
def _(given: Given) -> None:
    events = streamed(given, "one two three", model="breaking")
    holds("error" in types(events), "there is no error event")
    equal(events[-1].type, "response.failed")
    equal((events[-1].response.status, events[-1].response.error.code), ("failed", "server_error"))
