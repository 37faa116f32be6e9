"""`/responses`, answered in one piece."""

import json
from typing import Any

import openai

from .chat import Weight
from .rows import MODEL, Given, Row, equal, holds, refused, rows_in

ROWS: list[Row] = []
row = rows_in(ROWS)
PATH = "/responses"
ONE = "/responses/{response_id}"

WEIGH: Any = {
    "type": "function",
    "name": "weigh",
    "parameters": {
        "type": "object",
        "properties": {"animal": {"type": "string"}},
        "required": ["animal"],
        "additionalProperties": False,
    },
    "strict": True,
}
GROUNDED = "The harvest mouse weighs six grams [1]."


def asked(given: Given, text: Any, **options: Any) -> Any:
    return given.client.responses.create(**{"model": MODEL, "input": text, **options})


def file_search(given: Given, **options: Any) -> list[Any]:
    return [{"type": "file_search", "vector_store_ids": [given.animals], **options}]


@row("POST", PATH, "a response with everything a client reads")
def _(given: Given) -> None:
    answer = asked(given, "Six grams.", temperature=0.5, metadata={"a": "b"})
    equal((answer.object, answer.status, answer.model), ("response", "completed", MODEL))
    holds(answer.id.startswith("resp_"), answer.id)
    equal((answer.output_text, answer.error, answer.incomplete_details), ("Six grams.", None, None))
    (message,) = answer.output
    equal((message.type, message.role, message.status), ("message", "assistant", "completed"))
    equal((message.content[0].type, message.content[0].annotations), ("output_text", []))
    equal((answer.temperature, answer.metadata, answer.tools), (0.5, {"a": "b"}, []))
    usage = answer.usage
    equal((usage.input_tokens, usage.output_tokens, usage.total_tokens), (2, 2, 4))
    equal((usage.input_tokens_details.cached_tokens, usage.output_tokens_details.reasoning_tokens), (0, 0))


@row("POST", PATH, "items as input, earlier answers among them")
def _(given: Given) -> None:
    answered = [item.to_dict() for item in asked(given, "Six grams.").output]
    said: list[Any] = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "input_text", "text": "How heavy?"}]},
        *answered,
        {"role": "user", "content": "Thank you."},
    ]
    equal(asked(given, said, instructions="Be kind.").output_text, "Thank you.")


@row("POST", PATH, "file_search: four-member citations, results only on request")
def _(given: Given) -> None:
    answer = asked(given, GROUNDED, tools=file_search(given))
    call, message = answer.output
    equal((call.type, call.status, call.results), ("file_search_call", "completed", None))
    holds(call.queries, "no query is told")
    (note,) = message.content[0].annotations
    equal((note.type, note.file_id, note.filename), ("file_citation", given.mouse, "mouse.txt"))
    holds(0 <= note.index <= len(GROUNDED), f"index {note.index} lies outside the text")
    equal(answer.tools[0].vector_store_ids, [given.animals])
    with_results = asked(given, GROUNDED, tools=file_search(given), include=["file_search_call.results"])
    results = with_results.output[0].results
    equal((results[0].file_id, results[0].filename), (given.mouse, "mouse.txt"))
    holds("six grams" in results[0].text and 0 <= results[0].score <= 1, "the result is not complete")
    equal(results[0].attributes, {"legs": 4, "small": True})


@row("POST", PATH, "file_search with filters and ranking options")
def _(given: Given) -> None:
    tools = file_search(
        given,
        max_num_results=1,
        filters={"type": "eq", "key": "small", "value": False},
        ranking_options={
            "ranker": "auto",
            "score_threshold": 0,
            "hybrid_search": {"embedding_weight": 1, "text_weight": 1},
        },
    )
    answer = asked(given, "How heavy is a mouse?", tools=tools, include=["file_search_call.results"])
    equal([result.filename for result in answer.output[0].results], ["whale.md"])
    equal(answer.tools[0].max_num_results, 1)


@row("POST", PATH, "function calls, there and back")
def _(given: Given) -> None:
    answer = asked(given, '{"animal": "mouse"}', tools=[WEIGH])
    (call,) = answer.output
    equal((call.type, call.name, call.status), ("function_call", "weigh", "completed"))
    equal(json.loads(call.arguments), {"animal": "mouse"})
    told = [{"type": "function_call_output", "call_id": call.call_id, "output": "6 grams"}]
    after = asked(given, told, previous_response_id=answer.id, tools=[WEIGH])
    equal((after.output_text, after.previous_response_id), ("6 grams", answer.id))


@row("POST", PATH, "previous_response_id: what was said counts, old instructions do not")
def _(given: Given) -> None:
    first = asked(given, "hello", instructions="Speak softly and slowly.")
    equal(first.usage.input_tokens, 5)
    second = asked(given, "again", previous_response_id=first.id)
    equal((second.output_text, second.usage.input_tokens), ("again", 3))
    refused(openai.NotFoundError, lambda: asked(given, "x", previous_response_id="resp_unknown"))


@row("POST", PATH, "store false: it can be neither read nor continued")
def _(given: Given) -> None:
    answer = asked(given, "hello", store=False)
    refused(openai.NotFoundError, lambda: given.client.responses.retrieve(answer.id))
    refused(openai.NotFoundError, lambda: asked(given, "again", previous_response_id=answer.id))


@row("POST", PATH, "max_output_tokens reached: incomplete")
def _(given: Given) -> None:
    answer = asked(given, "word " * 30, max_output_tokens=16)
    equal((answer.status, answer.incomplete_details.reason), ("incomplete", "max_output_tokens"))
    equal(answer.usage.output_tokens, 16)


@row("POST", PATH, "parse(): an answer in the shape that was asked for")
def _(given: Given) -> None:
    answer = given.client.responses.parse(
        model=MODEL, input='{"animal": "mouse", "grams": 6}', text_format=Weight
    )
    equal(answer.output_parsed, Weight(animal="mouse", grams=6))


@row("POST", PATH, "errors by class: 400, 404 and 429")
def _(given: Given) -> None:
    refused(openai.NotFoundError, lambda: asked(given, "hello", model="emu"), code="model_not_found")
    refused(openai.RateLimitError, lambda: asked(given, "hello", model="busy"))
    refused(openai.BadRequestError, lambda: asked(given, "hello", background=True), param="background")
    refused(openai.BadRequestError, lambda: asked(given, "hello", tools=[{"type": "web_search"}]))
    refused(
        openai.BadRequestError, lambda: asked(given, "hello", max_output_tokens=15), param="max_output_tokens"
    )


@row("GET", ONE, "as it was answered; results on request; unknown: 404")
def _(given: Given) -> None:
    made = asked(given, GROUNDED, tools=file_search(given))
    again = given.client.responses.retrieve(made.id)
    equal((again.id, again.output_text, again.usage), (made.id, made.output_text, made.usage))
    equal(again.output[0].results, None)  # type: ignore[union-attr]
    shown = given.client.responses.retrieve(made.id, include=["file_search_call.results"])
    equal(shown.output[0].results[0].filename, "mouse.txt")  # type: ignore[union-attr,index]
    refused(openai.NotFoundError, lambda: given.client.responses.retrieve("resp_unknown"))


@row("DELETE", ONE, "whatever is accepted; then it is gone")
def _(given: Given) -> None:
    made = asked(given, "hello").id
    given.client.responses.delete(made)
    refused(openai.NotFoundError, lambda: given.client.responses.retrieve(made))
    refused(openai.NotFoundError, lambda: given.client.responses.delete(made))


@row("GET", ONE + "/input_items", "with ids, the newest first, in pages")
def _(given: Given) -> None:
    said: list[Any] = [{"role": "user", "content": text} for text in ("one", "two", "three")]
    made = asked(given, said).id
    items: list[Any] = list(given.client.responses.input_items.list(made, limit=2))
    equal([item.content[0].text for item in items], ["three", "two", "one"])
    equal(len({item.id for item in items}), 3)
    oldest_first: list[Any] = list(given.client.responses.input_items.list(made, order="asc"))
    equal([item.id for item in oldest_first], [item.id for item in reversed(items)])
    string = given.client.responses.input_items.list(asked(given, "hello").id).data[0]
    equal((string.type, string.role, string.content[0].type), ("message", "user", "input_text"))  # type: ignore[union-attr]
    refused(openai.NotFoundError, lambda: given.client.responses.input_items.list("resp_unknown"))


@row("POST", ONE + "/cancel", "not in the background: 400; unknown: 404")
def _(given: Given) -> None:
    made = asked(given, "hello").id
    refused(openai.BadRequestError, lambda: given.client.responses.cancel(made))
    refused(openai.NotFoundError, lambda: given.client.responses.cancel("resp_unknown"))


@row("POST", "/responses/input_tokens", "counts what would be asked")
def _(given: Given) -> None:
    # Not every version has a method for it.
    told: Any = given.client.post(
        "/responses/input_tokens", body={"model": MODEL, "input": "one two three"}, cast_to=object
    )
    equal(told["object"], "response.input_tokens")
    holds(told["input_tokens"] > 0, "it counts nothing")


@row("POST", "/responses/compact", "not offered: 404")
def _(given: Given) -> None:
    refused(
        openai.NotFoundError,
        lambda: given.client.post(
            "/responses/compact", body={"model": MODEL, "input": "hello"}, cast_to=object
        ),
    )
