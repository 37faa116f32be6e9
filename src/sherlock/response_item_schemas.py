"""The items of the Responses API that a client may send, brought into the one shape in which they are kept.

`to_item()` gives each what the API's lists need: an id, a type, a status, content as a list of parts.
"""

import secrets
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field, StringConstraints, Tag, model_validator
from pydantic_core import PydanticCustomError

from sherlock.rag.domain.models import ResponseItem
from sherlock.schemas import OpenModel, without_nul

ItemId = Annotated[str, StringConstraints(min_length=1, max_length=256), AfterValidator(without_nul)]


def new_id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(16)}"


# ── parts of content ────────────────────────────────────────────────────────


class TextPart(OpenModel):
    """What a user wrote or a model answered; which of the two the role tells."""

    type: Literal["input_text", "output_text", "text"]
    text: str

    def to_part(self) -> dict[str, Any]:
        return {"type": "input_text", "text": self.text}


class RefusalPart(OpenModel):
    type: Literal["refusal"]
    refusal: str

    def to_part(self) -> dict[str, Any]:
        return {"type": "input_text", "text": self.refusal}


class ImagePart(OpenModel):
    """Passed on to the model, which may or may not see."""

    type: Literal["input_image"]
    image_url: str | None = None
    detail: Literal["low", "high", "auto", "original"] | None = None

    @model_validator(mode="after")
    def _by_address(self) -> "ImagePart":
        if self.image_url is None:
            raise PydanticCustomError("image_url", "an image is given by its image_url")
        return self

    def to_part(self) -> dict[str, Any]:
        return {"type": "input_image", "image_url": self.image_url, "detail": self.detail or "auto"}


Part = Annotated[TextPart | RefusalPart | ImagePart, Discriminator("type")]
Content = str | list[Part]


def parts(content: Content) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": "input_text", "text": content}]
    return [part.to_part() for part in content]


# ── items ───────────────────────────────────────────────────────────────────


class MessageItem(OpenModel):
    type: Literal["message"] | None = None
    id: ItemId | None = None
    role: Literal["user", "assistant", "system", "developer"]
    content: Content

    def to_item(self) -> ResponseItem:
        content = parts(self.content)
        if self.role == "assistant":
            content = [answered(part) for part in content]
        return {
            "id": self.id or new_id("msg"),
            "type": "message",
            "status": "completed",
            "role": self.role,
            "content": content,
        }


def answered(part: dict[str, Any]) -> dict[str, Any]:
    """A text as a part of an answer; an answer holds nothing else."""
    return {"type": "output_text", "text": part.get("text", ""), "annotations": [], "logprobs": []}


class FunctionCallItem(OpenModel):
    type: Literal["function_call"]
    id: ItemId | None = None
    call_id: str = Field(min_length=1)
    name: str = Field(min_length=1)
    arguments: str

    def to_item(self) -> ResponseItem:
        return {
            "id": self.id or new_id("fc"),
            "type": "function_call",
            "status": "completed",
            "call_id": self.call_id,
            "name": self.name,
            "arguments": self.arguments,
        }


class FunctionCallOutputItem(OpenModel):
    type: Literal["function_call_output"]
    id: ItemId | None = None
    call_id: str = Field(min_length=1)
    output: Content

    def to_item(self) -> ResponseItem:
        return {
            "id": self.id or new_id("fc"),
            "type": "function_call_output",
            "status": "completed",
            "call_id": self.call_id,
            "output": self.output if isinstance(self.output, str) else parts(self.output),
        }


class FileSearchCallItem(OpenModel):
    """Of an earlier answer. Its results are not shown to the model again: each turn is searched anew."""

    type: Literal["file_search_call"]
    id: ItemId | None = None
    queries: list[str] = Field([])

    def to_item(self) -> ResponseItem:
        return {
            "id": self.id or new_id("fs"),
            "type": "file_search_call",
            "status": "completed",
            "queries": self.queries,
            "results": None,
        }


class ReasoningItem(OpenModel):
    """Of another model's answer: a chat has no place for it, so what it says is left out."""

    type: Literal["reasoning"]
    id: ItemId | None = None

    def to_item(self) -> ResponseItem:
        return {"id": self.id or new_id("rs"), "type": "reasoning", "summary": []}


class ItemReference(OpenModel):
    """Stands for an item of a stored response."""

    type: Literal["item_reference"] | None = None
    id: ItemId

    def to_item(self) -> ResponseItem:
        return {"id": self.id, "type": "item_reference"}


def item_type(item: Any) -> str:
    """The type of an item, which messages and references may leave out."""
    if isinstance(item, Mapping):
        given = item.get("type")
        if given is None:
            return "item_reference" if "id" in item and "role" not in item else "message"
        return given if isinstance(given, str) else ""
    return "message"  # which then says that it is no object


InputItem = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[FunctionCallItem, Tag("function_call")]
    | Annotated[FunctionCallOutputItem, Tag("function_call_output")]
    | Annotated[FileSearchCallItem, Tag("file_search_call")]
    | Annotated[ReasoningItem, Tag("reasoning")]
    | Annotated[ItemReference, Tag("item_reference")],
    Discriminator(item_type),
]
