"""`/chat/completions`, streamed."""

from typing import Any

import openai

from .chat import WEIGH, Weight, file_search, user
from .rows import MODEL, Given, Row, equal, holds, rows_in

ROWS: list[Row] = []
row = rows_in(ROWS)
PATH = "/chat/completions"


def streamed(given: Given, text: str, **options: Any) -> list[Any]:
    options = {"model": MODEL, "messages": user(text), **options}
    with given.client.chat.completions.create(stream=True, **options) as chunks:
        return list(chunks)


def followed(given: Given, text: str, **options: Any) -> Any:
    """The final answer of the client's own stream helper."""
    options = {"model": MODEL, "messages": user(text), **options}
    with given.client.chat.completions.stream(**options) as stream:
        for _ in stream:
            pass
        return stream.get_final_completion()


@row("POST", PATH, "stream: pieces in order, one role, one reason, no usage unasked")
def _(given: Given) -> None:
    chunks = streamed(given, "one two three")
    equal({(chunk.object, chunk.model) for chunk in chunks}, {("chat.completion.chunk", MODEL)})
    equal(len({(chunk.id, chunk.created) for chunk in chunks}), 1)
    deltas = [chunk.choices[0].delta for chunk in chunks]
    equal("".join(delta.content or "" for delta in deltas), "one two three")
    equal([delta.role for delta in deltas if delta.role], ["assistant"])
    equal([chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason], ["stop"])
    equal([chunk.usage for chunk in chunks if chunk.usage], [])


@row("POST", PATH, "stream: usage in the last chunk when asked for")
def _(given: Given) -> None:
    *others, last = streamed(given, "one two three", stream_options={"include_usage": True})
    equal((last.choices, last.usage.total_tokens), ([], 6))
    equal([chunk.usage for chunk in others if chunk.usage], [])


@row("POST", PATH, "stream(): several choices, folded by the client")
def _(given: Given) -> None:
    answer = followed(given, "one two", n=2)
    equal([choice.message.content for choice in answer.choices], ["one two"] * 2)
    equal([choice.message.role for choice in answer.choices], ["assistant"] * 2)


@row("POST", PATH, "stream(): function calls, folded by the client")
def _(given: Given) -> None:
    answer = followed(given, '{"animal": "mouse"}', tools=[WEIGH])
    (call,) = answer.choices[0].message.tool_calls
    equal((call.function.name, call.function.parsed_arguments), ("weigh", {"animal": "mouse"}))
    equal(answer.choices[0].finish_reason, "tool_calls")


@row("POST", PATH, "stream(): an answer in the shape that was asked for")
def _(given: Given) -> None:
    answer = followed(given, '{"animal": "mouse", "grams": 6}', response_format=Weight)
    equal(answer.choices[0].message.parsed, Weight(animal="mouse", grams=6))


@row("POST", PATH, "stream(): file_search, all citations in the final message")
def _(given: Given) -> None:
    text = "It weighs six grams [1]. Its nest is of woven grass [1]."
    answer = followed(given, text, extra_body={"tools": [file_search(given.animals)]})
    message = answer.choices[0].message
    equal(message.content, text)
    equal([note.type for note in message.annotations], ["url_citation"] * 2)
    titles = [
        note.url_citation.title if hasattr(note.url_citation, "title") else note.url_citation["title"]
        for note in message.annotations
    ]
    equal(titles, ["mouse.txt"] * 2)


@row("POST", PATH, "stream: logprobs and a refusal")
def _(given: Given) -> None:
    shown = [chunk.choices[0].logprobs for chunk in streamed(given, "one two", logprobs=True)]
    equal([token.token for logprobs in shown if logprobs for token in logprobs.content], ["one", " two"])
    deltas = [chunk.choices[0].delta for chunk in streamed(given, "hello", model="refusing")]
    equal("".join(delta.refusal or "" for delta in deltas), "I would rather not.")


@row("POST", PATH, "stream: a failure before the first piece has its status")
def _(given: Given) -> None:
    for model, kind in (("busy", openai.RateLimitError), ("emu", openai.NotFoundError)):
        try:
            streamed(given, "hello", model=model)
        except openai.APIStatusError as error:
            equal(type(error), kind)
        else:
            raise AssertionError(f"{model} answered")


@row("POST", PATH, "stream: a failure half way is an error, not an end")
def _(given: Given) -> None:
    read = []
    try:
        with given.client.chat.completions.create(
            model="breaking", messages=user("one two three"), stream=True
        ) as chunks:
            for chunk in chunks:
                read.append(chunk.choices[0].delta.content or "")
    except openai.APIError as error:
        holds(not isinstance(error, openai.APIStatusError | openai.APIConnectionError), repr(error))
        holds(error.message, "the error says nothing")
        equal("".join(read), "one")
    else:
        raise AssertionError("the answer looks finished")


@row("POST", PATH, "stream: left early, the next request is answered")
def _(given: Given) -> None:
    with given.client.chat.completions.create(
        model=MODEL, messages=user("word " * 2_000), stream=True
    ) as chunks:
        next(iter(chunks))
    equal(len(streamed(given, "one")) > 1, True)
