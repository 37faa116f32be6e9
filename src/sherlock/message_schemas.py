"""Messages (NATS): their subjects and payloads. `contracts/asyncapi.yaml` is made from them.

Requests are open, unlike those over HTTP: what a member is unknown is passed over, since messages often carry
their sender's own members along. `null` means "not given". Every result has `request_id`, the ids that its
request named, and `error`: a plain sentence, or `null`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, NotRequired

from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    model_validator,
)
from typing_extensions import TypedDict

from sherlock.chat_schemas import MAX_MESSAGES, ChatCompletion, ChatCompletionRequest, ChatMessageInput
from sherlock.embedding_schemas import MAX_INPUTS, InputText
from sherlock.rag.domain.errors import InvalidRequest
from sherlock.rag.domain.models import (
    Attributes,
    ChatRequest,
    FileSearch,
    Result,
    Retrieval,
    SearchOptions,
    SearchQuery,
)
from sherlock.schemas import Text
from sherlock.search_schemas import MAX_QUERY_CHARS, QueryText, RetrievalObject, retrieval_object

MAX_ID_CHARS = 128
MAX_STORES = 100

# ── requests ────────────────────────────────────────────────────────────────


def listed(given: object) -> object:
    """One id where a list of them is expected."""
    return [given] if isinstance(given, str) else given


Id = Annotated[Text, StringConstraints(min_length=1, max_length=MAX_ID_CHARS)]
Ids = Annotated[list[Id], Field(max_length=MAX_STORES), BeforeValidator(listed)]
RequestId = Annotated[
    Id | None, Field(None, description="Echoed in the result; one is made where none is given.")
]
StoreIds = Annotated[
    Ids,
    Field(
        validation_alias=AliasChoices("vector_store_ids", "vs_ids"),
        description="`vs_ids` is an older spelling. Unknown ones yield nothing, if there is another.",
    ),
]
Alpha = Annotated[
    float | None,
    Field(
        ge=0,
        le=1,
        validation_alias=AliasChoices("hybrid_alpha", "alpha"),
        description="0: keyword only, 1: dense only. `alpha` is an older spelling.",
    ),
]


class MessageModel(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    IDS: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Members that the result echoes, and the spellings in which a request may have them."""

    request_id: RequestId = None

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            return body
        return {name: value for name, value in body.items() if value is not None}


STORE_IDS = {"vector_store_ids": ("vector_store_ids", "vs_ids")}


class IngestMessage(MessageModel):
    """Attach a file to a vector store and ingest it; one that is attached already is not ingested again."""

    IDS: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "file_id": ("file_id",),
        "vector_store_id": ("vector_store_id", "vs_id"),
    }

    file_id: Id
    vector_store_id: Id = Field(
        validation_alias=AliasChoices("vector_store_id", "vs_id"), description="`vs_id` is an older spelling."
    )


def search_options(
    limit: int, alpha: float | None, default_alpha: float, *, rewrite: bool = False
) -> SearchOptions:
    return SearchOptions(limit, default_alpha if alpha is None else alpha, rewrite=rewrite)


class SearchMessage(MessageModel):
    IDS: ClassVar[Mapping[str, tuple[str, ...]]] = STORE_IDS

    query: QueryText
    vector_store_ids: StoreIds = Field(min_length=1)
    hybrid_alpha: Alpha = None
    top_k: int | None = Field(None, ge=1, le=50)

    def to_query(self, default_limit: int, default_alpha: float) -> SearchQuery:
        options = search_options(self.top_k or default_limit, self.hybrid_alpha, default_alpha)
        return SearchQuery((self.query,), tuple(self.vector_store_ids), options)


class EmbedMessage(MessageModel):
    input: InputText | Annotated[list[InputText], Field(min_length=1, max_length=MAX_INPUTS)]
    model: str | None = Field(
        None, description="Its full name or last part; this server's own when left out."
    )


class RagChatMessage(MessageModel):
    """A question to the files of vector stores: `text`, or a conversation in `messages`."""

    IDS: ClassVar[Mapping[str, tuple[str, ...]]] = {"user_id": ("user_id",), **STORE_IDS}

    user_id: Id | None = None
    text: Annotated[str, StringConstraints(min_length=1, max_length=MAX_QUERY_CHARS)] | None = None
    messages: list[ChatMessageInput] | None = Field(None, min_length=1, max_length=MAX_MESSAGES)
    vector_store_ids: StoreIds = Field([])
    hybrid_alpha: Alpha = None
    top_k: int | None = Field(None, ge=1, le=50)
    model: str | None = Field(None, description="This server's own when left out.")

    @model_validator(mode="after")
    def _something_is_said(self) -> "RagChatMessage":
        if self.text is None and self.messages is None:
            raise InvalidRequest(
                "Missing required parameter: 'text' (or 'messages').",
                param="text",
                code="missing_required_parameter",
            )
        if self.text is not None and self.messages is not None:
            raise InvalidRequest("Give 'text' or 'messages', not both.", param="text")
        return self

    def to_domain(self, model: str, default_limit: int, default_alpha: float) -> ChatRequest:
        """Raises `InvalidRequest`, as chat over HTTP does."""
        messages = self.messages or [ChatMessageInput(role="user", content=self.text)]
        asked = ChatCompletionRequest(model=model, messages=messages).to_domain(default_limit, default_alpha)
        options = search_options(self.top_k or default_limit, self.hybrid_alpha, default_alpha, rewrite=True)
        search = FileSearch(tuple(self.vector_store_ids), options)
        return ChatRequest(asked.model, asked.messages, search if self.vector_store_ids else None)


class PlainChatMessage(ChatCompletionRequest):
    """A `ChatCompletionRequest` as over HTTP; the answer comes whole, whatever `stream` says."""

    IDS: ClassVar[Mapping[str, tuple[str, ...]]] = {}


# ── results ─────────────────────────────────────────────────────────────────


class Failure(TypedDict):
    """What every result looks like that is an error; the ids of the request stand beside it."""

    request_id: str
    error: str
    error_code: str | None
    error_param: str | None


class IngestResult(TypedDict):
    request_id: str
    file_id: str | None
    vector_store_id: str | None
    status: Literal["completed", "failed"]
    chunk_count: int
    error: str | None
    error_code: NotRequired[str | None]
    error_param: NotRequired[str | None]


class IngestProgressEvent(TypedDict):
    """Each stage as it is entered, and `embed` after every batch; `completed` or `failed` comes last.

    A job that is `postponed` begins again: something was down, or its worker stopped. Events may be lost.
    """

    file_id: str
    vector_store_id: str
    attempt: int
    stage: Literal["fetch", "embed", "publish", "completed", "failed", "postponed"]
    chunks: int


class FoundChunk(TypedDict):
    content: str
    score: float
    file_id: str
    filename: str
    chunk_index: int
    attributes: Attributes


class SearchResult(TypedDict):
    request_id: str
    vector_store_ids: list[str]
    query: str
    results: list[FoundChunk]
    error: None
    sherlock: RetrievalObject


class EmbedResult(TypedDict):
    request_id: str
    model: str
    embeddings: list[list[float]]
    error: None


class ChatResult(ChatCompletion):
    """A ChatCompletion, and what every result has."""

    request_id: str
    user_id: NotRequired[str]
    vector_store_ids: NotRequired[list[str]]
    error: None


def found_chunk(result: Result) -> FoundChunk:
    found = result.candidate
    return {
        "content": found.text,
        "score": result.score,
        "file_id": found.file_id,
        "filename": found.filename,
        "chunk_index": found.chunk_index,
        "attributes": found.attributes or {},
    }


def search_members(query: str, retrieval: Retrieval) -> dict[str, Any]:
    return {
        "query": query,
        "results": [found_chunk(result) for result in retrieval.results],
        "sherlock": retrieval_object(retrieval),
    }


def echoed_ids(model: Any, body: Any) -> dict[str, Any]:
    """The ids a request named, under their names of today; also of one that is otherwise wrong."""
    if not isinstance(body, dict):
        return {}
    named = {
        name: next((body[spelling] for spelling in spellings if body.get(spelling) is not None), None)
        for name, spellings in model.IDS.items()
    }
    found = {name: listed(value) if name == "vector_store_ids" else value for name, value in named.items()}
    return {name: value for name, value in found.items() if is_id(value) or is_ids(value)}


def is_id(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= MAX_ID_CHARS


def is_ids(value: object) -> bool:
    return isinstance(value, list) and len(value) <= MAX_STORES and all(map(is_id, value))


# ── subjects ────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Exchange:
    """What may be asked of Sherlock by a message, and what comes back."""

    name: str
    request_subject: str
    result_subject: str
    request: type[IngestMessage | SearchMessage | EmbedMessage | RagChatMessage | PlainChatMessage]
    result: type[IngestResult | SearchResult | EmbedResult | ChatResult]
    summary: str
    when_failed: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Members of a result that a failure has, too, beside the error."""


INGEST = Exchange(
    "ingest",
    "sherlock.v1.rag.ingest.request",
    "sherlock.v1.rag.ingest.result",
    IngestMessage,
    IngestResult,
    "Ingest a stored file into a vector store.",
    when_failed={"file_id": None, "vector_store_id": None, "status": "failed", "chunk_count": 0},
)
SEARCH = Exchange(
    "search",
    "sherlock.v1.rag.search.request",
    "sherlock.v1.rag.search.result",
    SearchMessage,
    SearchResult,
    "The best chunks of vector stores for a question, best first; scores lie in 0..1.",
)
EMBED = Exchange(
    "embed",
    "sherlock.v1.rag.embed.request",
    "sherlock.v1.rag.embed.result",
    EmbedMessage,
    EmbedResult,
    "Vectors of unit length, in the order of the inputs.",
)
RAG_CHAT = Exchange(
    "ragChat",
    "sherlock.v1.rag.chat.request",
    "sherlock.v1.rag.chat.result",
    RagChatMessage,
    ChatResult,
    "An answer from the files of vector stores, with citations.",
)
PLAIN_CHAT = Exchange(
    "chat",
    "sherlock.v1.chat",
    "sherlock.v1.result",
    PlainChatMessage,
    ChatResult,
    "A chat completion; works without RAG, too.",
)
EXCHANGES = (INGEST, SEARCH, EMBED, RAG_CHAT, PLAIN_CHAT)

INGEST_STREAM = "SHERLOCK_INGEST"
PROGRESS_SUBJECT = "sherlock.v1.rag.ingest.progress"
"""Followed by the file's id."""
PARKED_SUBJECT = "sherlock.v1.rag.ingest.parked"
"""Where the message broker puts ingest requests that can never be done."""
REPLY_TO_HEADER = "Sherlock-Reply-To"
REQUEST_ID_HEADER = "x-request-id"
TRACE_HEADERS = ("traceparent", "tracestate")
