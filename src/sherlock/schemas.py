"""What the OpenAI shapes of all resources share, and the shapes of lists, models and health.

Requests are closed: an unknown member is an error. `null` means "not given", but in updates, where it clears.
Objects are written by the `*_object`, `*_list` and `*_page` functions, one for each shape of the API.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, ClassVar, Generic, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    StringConstraints,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, PydanticKnownError
from typing_extensions import TypedDict

from sherlock.rag.domain.errors import InvalidRequest
from sherlock.rag.domain.models import ComponentStatus, Page, QueueActivity

# ── requests ────────────────────────────────────────────────────────────────


def without_nul(text: str) -> str:
    """The database stores no NUL character."""
    if "\x00" in text:
        raise PydanticCustomError("nul_character", "the character U+0000 is not allowed")
    return text


Text = Annotated[str, AfterValidator(without_nul)]
Key = Annotated[str, StringConstraints(min_length=1, max_length=64), AfterValidator(without_nul)]
Value = Annotated[str, StringConstraints(max_length=512), AfterValidator(without_nul)]
Number = Annotated[float, Field(allow_inf_nan=False)]
MetadataInput = Annotated[dict[Key, Value], Field(max_length=16)]


def in_digits(given: object) -> object:
    """The string of a query or a form, as pydantic may read it: it would take `5.0`, `5_0` and ` 5 ` too."""
    if isinstance(given, str) and not re.fullmatch(r"-?[0-9]+", given):
        raise PydanticKnownError("int_parsing")
    return given


InDigits = BeforeValidator(in_digits)

POLL_AFTER_MS = "500"
"""Sent as `openai-poll-after-ms`: without it the clients' polling helpers wait for seconds."""


class ClosedModel(BaseModel):
    """A closed request object."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    null_clears: ClassVar[bool] = False
    """In updates `null` clears a value; everywhere else it means that nothing was given."""

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """In the document, too, what may be left out may be `null`."""
        described = handler(schema)
        shape = handler.resolve_ref_schema(described)
        for name, member in shape["properties"].items():
            if name not in shape.get("required", ()) and {"type": "null"} not in member.get("anyOf", ()):
                shape["properties"][name] = {"anyOf": [member, {"type": "null"}]}
        return described

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, body: Any) -> Any:
        if cls.null_clears or not isinstance(body, dict):
            return body
        known = cls.model_fields
        return {name: value for name, value in body.items() if value is not None or name not in known}


class OpenModel(BaseModel):
    """A request object that may have members we do not know: they go to the model as they came."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)


def refuse_stream_options(given: object) -> None:
    """Where nothing is streamed. Raises `InvalidRequest`."""
    if given is not None:
        raise InvalidRequest(
            "The 'stream_options' parameter is only allowed when 'stream' is enabled.",
            param="stream_options",
        )


def refuse_infinite(members: Mapping[str, Any]) -> None:
    """Raises `InvalidRequest` for numbers that only a longer notation could hold."""
    for name, value in members.items():
        if not is_finite(value):
            raise InvalidRequest(f"Invalid '{name}': a number is out of range.", param=name)


def is_finite(value: Any) -> bool:
    """Whether all numbers in it are: `1e999` is JSON, and read as an infinity, which is none."""
    found = [value]
    while found:
        part = found.pop()
        if isinstance(part, float):
            if not math.isfinite(part):
                return False
        elif isinstance(part, Mapping):
            found.extend(part.values())
        elif isinstance(part, list | tuple):
            found.extend(part)
    return True


# ── lists and texts ─────────────────────────────────────────────────────────

Item = TypeVar("Item")
Model = TypeVar("Model")


class ListObject(TypedDict, Generic[Item]):
    object: Literal["list"]
    data: list[Item]
    first_id: str | None
    last_id: str | None
    has_more: bool


def list_object(page: Page[Model], present: Callable[[Model], Item]) -> ListObject[Item]:
    """A page as the API shows it; every shape has an `id`."""
    items: list[Any] = [present(item) for item in page.items]
    return {
        "object": "list",
        "data": items,
        "first_id": items[0]["id"] if items else None,
        "last_id": items[-1]["id"] if items else None,
        "has_more": page.has_more,
    }


class TextObject(TypedDict):
    type: Literal["text"]
    text: str


# ── models ──────────────────────────────────────────────────────────────────


class ModelObject(TypedDict):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelList(TypedDict):
    object: Literal["list"]
    data: list[ModelObject]


def model_object(name: str, created: int) -> ModelObject:
    return {"id": name, "object": "model", "created": created, "owned_by": "sherlock"}


def model_list(names: Iterable[str], created: int) -> ModelList:
    return {"object": "list", "data": [model_object(name, created) for name in names]}


# ── health ──────────────────────────────────────────────────────────────────


class HealthObject(TypedDict):
    status: Literal["ok"]
    version: str


class ComponentObject(TypedDict):
    state: Literal["ready", "starting", "idle", "off", "unavailable"]
    since: int
    reason: str | None
    model: str | None


class IngestActivityObject(TypedDict):
    """The queue over all workspaces, and the mean times of the jobs that were completed last."""

    waiting: int
    running: int
    oldest_age_s: float
    """Age of the oldest job that waits."""
    recent_jobs: int
    """How many jobs `stage_ms` is the mean of."""
    stage_ms: dict[str, float]
    """Milliseconds in each stage; stages overlap."""


class ReadinessObject(TypedDict):
    status: Literal["ready", "not_ready"]
    version: str
    components: dict[str, ComponentObject]
    ingest: IngestActivityObject | None
    """`null` where retrieval is off or the database does not answer."""


def readiness_object(
    components: Mapping[str, ComponentStatus],
    activity: QueueActivity | None,
    *,
    ready: bool,
    version: str,
) -> ReadinessObject:
    return {
        "status": "ready" if ready else "not_ready",
        "version": version,
        "components": {
            name: {"state": part.state, "since": part.since, "reason": part.reason, "model": part.model}
            for name, part in components.items()
        },
        "ingest": None
        if activity is None
        else {
            "waiting": activity.waiting,
            "running": activity.running,
            "oldest_age_s": round(activity.oldest_age_s, 1),
            "recent_jobs": activity.recent_jobs,
            "stage_ms": dict(activity.stage_ms),
        },
    }
