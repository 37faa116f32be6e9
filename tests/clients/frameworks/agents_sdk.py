"""The OpenAI Agents SDK over `/responses` and over `/chat/completions`."""

import asyncio
from typing import Any

from agents import (
    Agent,
    FileSearchTool,
    Model,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    RunResultStreaming,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from pydantic import BaseModel

from ..python.rows import MODEL, Given, equal, holds
from .rows import FrameworkRow, rows_in

FRAMEWORK = "openai-agents"
ROWS: list[FrameworkRow] = []
row = rows_in(ROWS, FRAMEWORK)

# Traces would go to OpenAI.
set_tracing_disabled(True)

GROUNDED = "The harvest mouse weighs six grams [1]."


class Weight(BaseModel):
    animal: str
    grams: int


@function_tool
def weigh(animal: str) -> str:
    """How heavy an animal is."""
    return f"The {animal} weighs six grams."


def client(given: Given) -> AsyncOpenAI:
    return AsyncOpenAI(
        base_url=given.client.base_url,
        api_key=given.client.api_key,
        default_headers=given.client._custom_headers,
        max_retries=0,
    )


def agent(given: Given, *tools: Any, model: type[Model] = OpenAIResponsesModel, **options: Any) -> Agent:
    speaking: Any = model(model=MODEL, openai_client=client(given))  # type: ignore[call-arg]
    return Agent(name="keeper", instructions="Be brief.", model=speaking, tools=list(tools), **options)


def file_search(given: Given, **options: Any) -> FileSearchTool:
    return FileSearchTool(vector_store_ids=[given.animals], include_search_results=True, **options)


def searched(result: Any) -> tuple[Any, Any]:
    """The search and the message that a run produced, as the API told them."""
    call, message = [item.raw_item for item in result.new_items]
    equal((call.type, message.type), ("file_search_call", "message"))
    return call, message


async def streamed(result: RunResultStreaming) -> tuple[str, list[str]]:
    """The text as it came piece by piece, and the names of the items in the order they were ready."""
    pieces, items = [], []
    async for event in result.stream_events():
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            pieces.append(event.data.delta)
        if event.type == "run_item_stream_event":
            items.append(event.name)
    return "".join(pieces), items


@row("run_sync: FileSearchTool, its results and the citations")
def _(given: Given) -> None:
    result = Runner.run_sync(agent(given, file_search(given)), GROUNDED)
    equal(result.final_output, GROUNDED)
    call, message = searched(result)
    found = call.results[0]
    equal((found.file_id, found.filename, found.attributes["legs"]), (given.mouse, "mouse.txt", 4))
    holds("six grams" in found.text and 0 <= found.score <= 1, "the result is not complete")
    (note,) = message.content[0].annotations
    equal((note.type, note.file_id, note.filename), ("file_citation", given.mouse, "mouse.txt"))


@row("run_sync: FileSearchTool with a filter and a limit")
def _(given: Given) -> None:
    tool = file_search(given, max_num_results=1, filters={"type": "eq", "key": "small", "value": False})
    call, _ = searched(Runner.run_sync(agent(given, tool), "How heavy is a mouse?"))
    equal([found.filename for found in call.results], ["whale.md"])


@row("run_streamed: FileSearchTool, the search before the message")
def _(given: Given) -> None:
    async def run() -> None:
        result = Runner.run_streamed(agent(given, file_search(given)), GROUNDED)
        equal(await streamed(result), (GROUNDED, ["tool_called", "message_output_created"]))
        equal(result.final_output, GROUNDED)
        call, _ = searched(result)
        equal(call.results[0].filename, "mouse.txt")

    asyncio.run(run())


@row("run_sync: a function is called, and its result answered")
def _(given: Given) -> None:
    result = Runner.run_sync(agent(given, weigh), '{"animal": "mouse"}')
    equal(result.final_output, "The mouse weighs six grams.")
    called, told, _ = result.new_items
    equal((called.raw_item.name, told.output), ("weigh", "The mouse weighs six grams."))
    equal(len(result.raw_responses), 2)


@row("run_streamed: a function is called, and its result answered")
def _(given: Given) -> None:
    async def run() -> None:
        result = Runner.run_streamed(agent(given, weigh), '{"animal": "mouse"}')
        items = ["tool_called", "tool_output", "message_output_created"]
        equal(await streamed(result), ("The mouse weighs six grams.", items))

    asyncio.run(run())


@row("run_sync: FileSearchTool and a function in one agent")
def _(given: Given) -> None:
    result = Runner.run_sync(agent(given, file_search(given), weigh), '{"animal": "mouse"}')
    equal(result.final_output, "The mouse weighs six grams.")
    holds(
        "file_search_call" in [getattr(item.raw_item, "type", None) for item in result.new_items], "no search"
    )


@row("run_sync: output_type, an answer in the shape that was asked for")
def _(given: Given) -> None:
    result = Runner.run_sync(agent(given, output_type=Weight), '{"animal": "mouse", "grams": 6}')
    equal(result.final_output, Weight(animal="mouse", grams=6))


@row("run_sync: the next turn, by previous_response_id and by to_input_list()")
def _(given: Given) -> None:
    keeper = agent(given, file_search(given))
    first = Runner.run_sync(keeper, GROUNDED)
    second = Runner.run_sync(keeper, "Thank you.", previous_response_id=first.last_response_id)
    equal(second.final_output, "Thank you.")
    again = Runner.run_sync(keeper, [*first.to_input_list(), {"role": "user", "content": "Thank you."}])
    equal(again.final_output, "Thank you.")
    for result in (second, again):
        holds(
            result.raw_responses[0].usage.input_tokens > len(GROUNDED.split()), "the first turn is forgotten"
        )


@row("OpenAIChatCompletionsModel: a function is called, and its result answered")
def _(given: Given) -> None:
    keeper = agent(given, weigh, model=OpenAIChatCompletionsModel)
    equal(Runner.run_sync(keeper, '{"animal": "mouse"}').final_output, "The mouse weighs six grams.")
