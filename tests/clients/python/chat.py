"""`/chat/completions`, answered in one piece."""

import json
from typing import Any

import openai
from pydantic import BaseModel

from .rows import MODEL, Given, Row, equal, holds, refused, rows_in

ROWS: list[Row] = []
row = rows_in(ROWS)
PATH = "/chat/completions"

WEIGH: Any = {
    "type": "function",
    "function": {
        "name": "weigh",
        "parameters": {
            "type": "object",
            "properties": {"animal": {"type": "string"}},
            "required": ["animal"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}


class Weight(BaseModel):
    animal: str
    grams: int


def user(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def file_search(store_id: str, **options: Any) -> Any:
    return {"type": "file_search", "vector_store_ids": [store_id], **options}


def asked(given: Given, text: str, **options: Any) -> Any:
    options = {"model": MODEL, "messages": user(text), **options}
    return given.client.chat.completions.create(**options)


@row("POST", PATH, "an answer with everything a client reads")
def _(given: Given) -> None:
    answer = asked(given, "Six grams.", temperature=0, user="me", seed=7)
    equal((answer.object, answer.model), ("chat.completion", MODEL))
    holds(answer.id.startswith("chatcmpl-"), answer.id)
    (choice,) = answer.choices
    equal((choice.index, choice.finish_reason, choice.logprobs), (0, "stop", None))
    message = choice.message
    equal((message.role, message.content, message.refusal), ("assistant", "Six grams.", None))
    equal(message.tool_calls, None)
    equal((answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens), (2, 2, 4))


@row("POST", PATH, "every role, content as text and in parts")
def _(given: Given) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "weigh", "arguments": "{}"}}
    messages: list[Any] = [
        {"role": "developer", "content": "Be brief."},
        {"role": "system", "content": [{"type": "text", "text": "Be kind."}]},
        {"role": "user", "content": "How heavy is it?", "name": "ann"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "6 g"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "Six grams."}]},
        {"role": "user", "content": [{"type": "text", "text": "Thank "}, {"type": "text", "text": "you."}]},
    ]
    answer = asked(given, "", messages=messages)
    equal(answer.choices[0].message.content, "Thank you.")


@row("POST", PATH, "n, stop and a length limit")
def _(given: Given) -> None:
    answer = asked(given, "one two three", n=3, stop=[" three"])
    equal([choice.index for choice in answer.choices], [0, 1, 2])
    equal([choice.message.content for choice in answer.choices], ["one two"] * 3)
    for limit in ({"max_completion_tokens": 2}, {"max_tokens": 2}):
        cut = asked(given, "one two three", **limit).choices[0]
        equal((cut.message.content, cut.finish_reason), ("one two", "length"))


@row("POST", PATH, "logprobs when asked for")
def _(given: Given) -> None:
    shown = asked(given, "one two", logprobs=True, top_logprobs=1).choices[0].logprobs
    equal([(token.token, token.logprob) for token in shown.content], [("one", -0.5), (" two", -0.5)])
    equal([len(token.top_logprobs) for token in shown.content], [1, 1])
    equal(shown.refusal, None)


@row("POST", PATH, "a refusal is no content")
def _(given: Given) -> None:
    choice = asked(given, "hello", model="refusing").choices[0]
    equal((choice.message.content, choice.message.refusal), (None, "I would rather not."))
    equal(choice.finish_reason, "content_filter")


@row("POST", PATH, "function calls, there and back")
def _(given: Given) -> None:
    question = '{"animal": "mouse"}'
    choice = asked(given, question, tools=[WEIGH], tool_choice="required").choices[0]
    equal((choice.finish_reason, choice.message.content), ("tool_calls", None))
    (call,) = choice.message.tool_calls
    equal((call.type, call.function.name), ("function", "weigh"))
    equal(json.loads(call.function.arguments), {"animal": "mouse"})
    history = [
        *user(question),
        choice.message.to_dict(),
        {"role": "tool", "tool_call_id": call.id, "content": "6 grams"},
    ]
    equal(asked(given, "", messages=history, tools=[WEIGH]).choices[0].message.content, "6 grams")


@row("POST", PATH, "file_search: citations that quote the file")
def _(given: Given) -> None:
    answer = asked(given, "The harvest mouse weighs six grams [1].", tools=[file_search(given.animals)])
    message = answer.choices[0].message
    equal((message.tool_calls, answer.choices[0].finish_reason), (None, "stop"))
    holds(message.annotations, "nothing is cited")
    cited = message.annotations[0]
    equal(cited.type, "url_citation")
    where = message.content[cited.url_citation.start_index : cited.url_citation.end_index]
    equal(where, "[1]")
    equal(cited.url_citation.title, "mouse.txt")
    holds(f"/files/{given.mouse}/content" in cited.url_citation.url, cited.url_citation.url)
    equal(cited.url_citation.quote, "The harvest mouse weighs six grams.")  # type: ignore[attr-defined]
    holds(answer.sherlock["stages"], "the stages of the search are not told")  # type: ignore[attr-defined]
    holds(answer.usage.prompt_tokens > 20, "the passages are not counted")


@row("POST", PATH, "file_search beside functions; the function is called")
def _(given: Given) -> None:
    tools = [file_search(given.animals, max_num_results=1), WEIGH]
    choice = asked(given, '{"animal": "mouse"}', tools=tools).choices[0]
    equal([call.function.name for call in choice.message.tool_calls], ["weigh"])
    silent = asked(given, "harvest mouse", tools=tools, tool_choice="none").choices[0]
    equal((silent.message.content, silent.message.tool_calls), ("harvest mouse", None))


@row("POST", PATH, "parse(): an answer in the shape that was asked for")
def _(given: Given) -> None:
    completions: Any = given.client.chat.completions
    answer = completions.parse(
        model=MODEL, messages=user('{"animal": "mouse", "grams": 6}'), response_format=Weight
    )
    equal(answer.choices[0].message.parsed, Weight(animal="mouse", grams=6))


@row("POST", PATH, "errors by class: 400, 404 and 429")
def _(given: Given) -> None:
    refused(openai.BadRequestError, lambda: asked(given, "", messages=[]), code="bad_request")
    refused(openai.BadRequestError, lambda: asked(given, "hello", n=129), param="n")
    refused(openai.NotFoundError, lambda: asked(given, "hello", model="emu"), code="model_not_found")
    busy = refused(openai.RateLimitError, lambda: asked(given, "hello", model="busy"))
    equal(busy.response.headers["retry-after"], "7")


@row("POST", PATH, "the bare response beside what is read from it")
def _(given: Given) -> None:
    completions = given.client.chat.completions
    raw = completions.with_raw_response.create(model=MODEL, messages=user("hello"))
    equal(raw.parse().choices[0].message.content, "hello")
    holds(raw.headers["x-request-id"], "there is no request id")
    with completions.with_streaming_response.create(model=MODEL, messages=user("hello")) as response:
        equal(response.parse().choices[0].message.content, "hello")
