"""The OpenAI shapes of embeddings."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, StringConstraints, Tag
from typing_extensions import TypedDict

from sherlock.schemas import ClosedModel

MAX_INPUTS = 2048
LAST_TOKEN = 100_276
"""Of cl100k_base; some numbers before it stand for nothing."""


def input_kind(value: Any) -> str | None:
    """Which of the four shapes of `input` a value has, by its first element."""
    if isinstance(value, str):
        return "text"
    if not isinstance(value, list):
        return None
    first = value[0] if value else ""
    if isinstance(first, list):
        return "token lists"
    return "tokens" if isinstance(first, int) and not isinstance(first, bool) else "texts"


InputText = Annotated[str, StringConstraints(min_length=1)]
InputToken = Annotated[int, Field(ge=0, json_schema_extra={"maximum": LAST_TOKEN})]
InputTokens = Annotated[list[InputToken], Field(min_length=1, max_length=MAX_INPUTS)]


class EmbeddingsRequest(ClosedModel):
    model: str
    input: Annotated[
        Annotated[InputText, Tag("text")]
        | Annotated[list[InputText], Field(min_length=1, max_length=MAX_INPUTS), Tag("texts")]
        | Annotated[InputTokens, Tag("tokens")]
        | Annotated[list[InputTokens], Field(min_length=1, max_length=MAX_INPUTS), Tag("token lists")],
        Discriminator(
            input_kind,
            custom_error_type="input_shape",
            custom_error_message="expected a string, an array of strings, or token ids in one or more arrays",
        ),
    ]
    dimensions: int | None = Field(None, ge=1)
    encoding_format: Literal["float", "base64"] = "float"
    user: str | None = None


class EmbeddingObject(TypedDict):
    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingUsage(TypedDict):
    prompt_tokens: int
    total_tokens: int


class EmbeddingList(TypedDict):
    object: Literal["list"]
    data: list[EmbeddingObject]
    model: str
    usage: EmbeddingUsage


def embedding_object(index: int, embedding: list[float] | str) -> EmbeddingObject:
    return {"object": "embedding", "index": index, "embedding": embedding}


def embedding_list(model: str, tokens: int) -> EmbeddingList:
    """Without its embeddings, which are too many to be shown in one piece."""
    return {
        "object": "list",
        "data": [],
        "model": model,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }
