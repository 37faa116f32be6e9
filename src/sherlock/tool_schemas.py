"""Tools, as chat completions and responses share them: `file_search` is used here, functions by the model."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from sherlock.rag.domain.models import FileSearch
from sherlock.schemas import Text
from sherlock.search_schemas import SearchOptions

Name = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9_-]+$", max_length=64)]


class FileSearchTool(SearchOptions):
    """Searched here, never handed to the model as a tool. In a chat it is Sherlock's extension."""

    type: Literal["file_search"]
    vector_store_ids: list[Text] = Field(max_length=100)

    def to_domain(self, default_limit: int, default_alpha: float) -> FileSearch:
        return FileSearch(
            vector_store_ids=tuple(self.vector_store_ids),
            options=self.to_options(default_limit, default_alpha, rewrite=True),
        )


def may_search(choice: Any) -> bool:
    """Whether a `tool_choice` leaves room for `file_search`: `none` and a forced function do not."""
    if not isinstance(choice, dict):
        return bool(choice != "none")
    if choice.get("type") == "allowed_tools":
        return any(tool.get("type") == "file_search" for tool in allowed_tools(choice))
    return choice.get("type") == "file_search"


def function_options(
    functions: Sequence[Mapping[str, Any]], choice: Any, *, searched: bool
) -> dict[str, Any]:
    """The members `tools` and `tool_choice` of the model's request; functions nested as chat has them.

    Empty without functions: models refuse a choice among no tools.
    """
    if not functions:
        return {}
    options: dict[str, Any] = {"tools": list(functions)}
    if (upstream := upstream_choice(choice, searched=searched)) is not None:
        options["tool_choice"] = upstream
    return options


def allowed_tools(choice: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The tools of a choice of type `allowed_tools`, in chat's nesting or flat."""
    inner = choice.get("allowed_tools")
    listed = (inner if isinstance(inner, dict) else choice).get("tools")
    return [tool for tool in listed if isinstance(tool, dict)] if isinstance(listed, list) else []


def upstream_choice(choice: Any, *, searched: bool) -> Any:
    """`tool_choice` for a model that knows nothing of `file_search`, which has been done by then."""
    if not searched:
        return choice
    if choice == "required":
        return "auto"
    if not isinstance(choice, dict):
        return choice
    if choice.get("type") == "file_search":
        return "none"
    if choice.get("type") == "allowed_tools":
        functions = [tool for tool in allowed_tools(choice) if tool.get("type") != "file_search"]
        if not functions:
            return "none"
        return {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": functions}}
    return choice
