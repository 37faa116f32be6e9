"""The OpenAI shape of a request for a response, and what of it the response repeats."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, StringConstraints, field_validator, model_validator
from pydantic_core import PydanticCustomError

from sherlock.rag.domain.errors import InvalidRequest
from sherlock.rag.domain.models import ResponseItem, ResponseTurn
from sherlock.response_item_schemas import InputItem, ItemReference, MessageItem
from sherlock.response_object_schemas import LOGPROBS
from sherlock.schemas import MetadataInput, OpenModel, Text, refuse_infinite, refuse_stream_options
from sherlock.tool_schemas import FileSearchTool, Name, allowed_tools, function_options, may_search

MAX_ITEMS = 2048
MIN_OUTPUT_TOKENS = 16


# ── tools ───────────────────────────────────────────────────────────────────


class FlatFunctionTool(OpenModel):
    """A function; unlike in a chat, its members stand beside the type."""

    type: Literal["function"]
    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _flat(cls, tool: Any) -> Any:
        if isinstance(tool, dict) and "function" in tool and "name" not in tool:
            raise PydanticCustomError("nested", "the members of a function stand beside its type here")
        return tool

    def nested(self) -> dict[str, Any]:
        """As chat has it."""
        given = {"description": self.description, "parameters": self.parameters, "strict": self.strict}
        present = {name: value for name, value in given.items() if value is not None}
        return {"type": "function", "function": {"name": self.name, **present}}

    def echo(self) -> dict[str, Any]:
        return {
            "type": "function",
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters,
            "strict": self.strict,
        }


ToolInput = Annotated[FlatFunctionTool | FileSearchTool, Discriminator("type")]


def file_search_echo(tool: FileSearchTool, default_limit: int, default_alpha: float) -> dict[str, Any]:
    """The tool with everything that was left to defaults."""
    ranking = tool.ranking_options
    options: dict[str, Any] = {"ranker": ranking.ranker, "score_threshold": ranking.score_threshold}
    if ranking.hybrid_search is not None:
        options["hybrid_search"] = ranking.hybrid_search.model_dump()
    return {
        "type": "file_search",
        "vector_store_ids": tool.vector_store_ids,
        "max_num_results": tool.limit(default_limit),
        "filters": tool.filters.model_dump() if tool.filters else None,
        "ranking_options": options,
        "hybrid_alpha": tool.alpha(default_alpha),
    }


class FunctionChoice(OpenModel):
    type: Literal["function"]
    name: Name


class FileSearchChoice(OpenModel):
    type: Literal["file_search"]


class AllowedTool(OpenModel):
    type: Literal["function", "file_search"]
    name: Name | None = None


class AllowedToolsChoice(OpenModel):
    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: list[AllowedTool] = Field(max_length=128)


ToolChoice = (
    Literal["none", "auto", "required"]
    | Annotated[FunctionChoice | FileSearchChoice | AllowedToolsChoice, Discriminator("type")]
)


def nested_choice(choice: Any) -> Any:
    """A choice in chat's nesting."""
    if not isinstance(choice, dict):
        return choice
    if choice["type"] == "function":
        return {"type": "function", "function": {"name": choice["name"]}}
    if choice["type"] == "allowed_tools":
        tools = [nested_choice(tool) for tool in allowed_tools(choice)]
        return {"type": "allowed_tools", "allowed_tools": {"mode": choice["mode"], "tools": tools}}
    return {"type": choice["type"]}


# ── request ─────────────────────────────────────────────────────────────────


class PlainTextFormat(OpenModel):
    type: Literal["text", "json_object"]


class FlatJsonSchemaFormat(OpenModel):
    """Unlike in a chat, its members stand beside the type."""

    type: Literal["json_schema"]
    name: Name
    json_schema: dict[str, Any] = Field(alias="schema")
    description: str | None = None
    strict: bool | None = None


TextFormat = Annotated[PlainTextFormat | FlatJsonSchemaFormat, Discriminator("type")]


class TextOptions(OpenModel):
    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class Reasoning(OpenModel):
    effort: Annotated[str, StringConstraints(max_length=16)] | None = None


class ResponseStreamOptions(OpenModel):
    include_obfuscation: bool | None = None


class ConversationReference(OpenModel):
    id: Text


class CreateResponseRequest(OpenModel):
    """Members that Sherlock acts on or repeats; unknown ones are ignored."""

    model: str | None = Field(None, description="Default: the model of the server, where it has one.")
    input: str | Annotated[list[InputItem], Field(max_length=MAX_ITEMS)] | None = None
    instructions: str | None = Field(None, description="For this turn; not inherited by the next.")
    previous_response_id: Text | None = None
    conversation: Text | ConversationReference | None = None
    store: bool | None = None
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    background: bool | None = None
    include: list[str] | None = Field(None, max_length=64)
    tools: list[ToolInput] | None = Field(None, max_length=128)
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: int | None = Field(None, ge=1)
    max_output_tokens: int | None = Field(None, ge=MIN_OUTPUT_TOKENS)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, ge=0, le=1)
    top_logprobs: int | None = Field(None, ge=0, le=20)
    text: TextOptions | None = None
    reasoning: Reasoning | None = None
    truncation: Literal["auto", "disabled"] | None = None
    metadata: MetadataInput | None = None
    user: str | None = None
    safety_identifier: str | None = Field(None, max_length=128)
    prompt_cache_key: str | None = None
    service_tier: str | None = None

    REFUSED: ClassVar[Mapping[str, str]] = {
        "background": "a response is made while its client waits",
        "prompt": "there are no stored prompts; use 'instructions' and 'input'",
    }
    PASSED_ON: ClassVar[tuple[str, ...]] = (
        "temperature",
        "top_p",
        "user",
        "safety_identifier",
        "prompt_cache_key",
        "service_tier",
    )
    """To the model as they came."""

    @field_validator("tools")
    @classmethod
    def _one_search(cls, tools: list[ToolInput] | None) -> list[ToolInput] | None:
        if sum(isinstance(tool, FileSearchTool) for tool in tools or ()) > 1:
            raise InvalidRequest("Only one 'file_search' tool can be used at a time.", param="tools")
        return tools

    @model_validator(mode="after")
    def _supported(self) -> "CreateResponseRequest":
        members = (self.model_extra or {}) | {"background": self.background or None}
        for name, reason in self.REFUSED.items():
            if members.get(name) is not None:
                raise InvalidRequest(
                    f"Unsupported parameter: '{name}' ({reason}).", param=name, code="unsupported_parameter"
                )
        if not self.stream:
            refuse_stream_options(self.stream_options)
        if self.previous_response_id is not None and self.conversation is not None:
            raise InvalidRequest(
                "'previous_response_id' and 'conversation' cannot be used together.",
                param="previous_response_id",
            )
        if self.input in (None, []) and self.previous_response_id is None:
            raise InvalidRequest(
                "Missing required parameter: 'input'.", param="input", code="missing_required_parameter"
            )
        self._known_choice()
        return self

    def _known_choice(self) -> None:
        """Raises `InvalidRequest` for the choice of a tool that is not there."""
        choice = self.tool_choice
        if choice is None or isinstance(choice, str):
            return
        chosen = choice.tools if isinstance(choice, AllowedToolsChoice) else [choice]
        names = {tool.name for tool in self.function_tools}
        for tool in chosen:
            known = tool.type == "file_search" and self.file_search_tool is not None
            if not known and getattr(tool, "name", None) not in names:
                raise InvalidRequest(
                    "Invalid 'tool_choice': the tool it names is not among 'tools'.", param="tool_choice"
                )

    @property
    def file_search_tool(self) -> FileSearchTool | None:
        return next((tool for tool in self.tools or () if isinstance(tool, FileSearchTool)), None)

    @property
    def function_tools(self) -> list[FlatFunctionTool]:
        return [tool for tool in self.tools or () if isinstance(tool, FlatFunctionTool)]

    @property
    def included(self) -> frozenset[str]:
        return frozenset(self.include or ())

    @property
    def conversation_id(self) -> str | None:
        given = self.conversation
        return given.id if isinstance(given, ConversationReference) else given

    @property
    def needs_rag(self) -> bool:
        """Whether what it asks for is stored or searched."""
        items = self.input if isinstance(self.input, list) else ()
        refers = any(isinstance(item, ItemReference) for item in items)
        return bool(self.file_search_tool or self.previous_response_id or self.conversation or refers)

    def to_domain(self, model: str, default_limit: int, default_alpha: float) -> ResponseTurn:
        """Raises `InvalidRequest` for numbers that only a longer notation could hold."""
        refuse_infinite(self.model_dump(exclude_unset=True, exclude={"input"}))
        choice = self._choice()
        search = self._search(choice)
        return ResponseTurn(
            model=model,
            input=self._items(),
            instructions=self.instructions,
            previous_response_id=self.previous_response_id,
            store=self.store is not False,
            file_search=search.to_domain(default_limit, default_alpha) if search else None,
            options=self._options(choice),
        )

    def _search(self, choice: Any) -> FileSearchTool | None:
        """The search that is done, if any."""
        return self.file_search_tool if may_search(choice) else None

    def _items(self) -> tuple[ResponseItem, ...]:
        if isinstance(self.input, str):
            return (MessageItem(role="user", content=self.input).to_item(),)
        return tuple(item.to_item() for item in self.input or ())

    def _choice(self) -> Any:
        choice = self.tool_choice
        return choice if choice is None or isinstance(choice, str) else choice.model_dump(exclude_none=True)

    def _options(self, choice: Any) -> dict[str, Any]:
        """What goes to the model, under chat's names."""
        text = self.text or TextOptions()
        options: dict[str, Any] = {name: getattr(self, name) for name in self.PASSED_ON}
        options |= {
            "max_completion_tokens": self.max_output_tokens,
            "response_format": nested_format(text.format),
            "verbosity": text.verbosity,
            "reasoning_effort": self.reasoning.effort if self.reasoning else None,
        }
        if LOGPROBS in self.included:
            options |= {"logprobs": True, "top_logprobs": self.top_logprobs}
        functions = [tool.nested() for tool in self.function_tools]
        if functions:
            options["parallel_tool_calls"] = self.parallel_tool_calls
        given = {name: value for name, value in options.items() if value is not None}
        searched = self._search(choice) is not None
        return given | function_options(functions, nested_choice(choice), searched=searched)

    def echo(self, model: str, default_limit: int, default_alpha: float, *, stores: bool) -> dict[str, Any]:
        """The members of the response that repeat the request, with everything that was left to defaults."""
        text = self.text or TextOptions()
        shown: dict[str, Any] = {
            "background": False,
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "max_tool_calls": self.max_tool_calls,
            "metadata": self.metadata or {},
            "model": model,
            "parallel_tool_calls": self.parallel_tool_calls is not False,
            "previous_response_id": self.previous_response_id,
            "reasoning": {"effort": self.reasoning.effort if self.reasoning else None},
            "store": stores,
            "temperature": 1.0 if self.temperature is None else self.temperature,
            "text": {"format": format_echo(text.format), "verbosity": text.verbosity or "medium"},
            "tool_choice": self._choice() or "auto",
            "tools": [
                tool.echo()
                if isinstance(tool, FlatFunctionTool)
                else file_search_echo(tool, default_limit, default_alpha)
                for tool in self.tools or ()
            ],
            "top_logprobs": self.top_logprobs or 0,
            "top_p": 1.0 if self.top_p is None else self.top_p,
            "truncation": self.truncation or "disabled",
        }
        for name in ("user", "safety_identifier", "prompt_cache_key"):
            if (value := getattr(self, name)) is not None:
                shown[name] = value
        return shown


def nested_format(given: TextFormat | None) -> dict[str, Any] | None:
    """As chat has it; `None` for plain text."""
    if isinstance(given, FlatJsonSchemaFormat):
        options = {"description": given.description, "strict": given.strict}
        present = {name: value for name, value in options.items() if value is not None}
        schema = {"name": given.name, "schema": given.json_schema, **present}
        return {"type": "json_schema", "json_schema": schema}
    return None if given is None or given.type == "text" else {"type": given.type}


def format_echo(given: TextFormat | None) -> dict[str, Any]:
    if isinstance(given, FlatJsonSchemaFormat):
        shown = {
            "type": "json_schema",
            "name": given.name,
            "schema": given.json_schema,
            "strict": given.strict,
        }
        return shown | ({"description": given.description} if given.description is not None else {})
    return {"type": given.type if given else "text"}
