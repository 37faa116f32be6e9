"""The OpenAI shapes of files, vector stores, search, embeddings and models: requests in, objects out.

Requests are closed: an unknown member is an error. `null` means "not given", but in updates, where it clears.
Objects are written by the `*_object` and `*_page` functions, one for each shape of the API.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Generic, Literal, NotRequired, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    model_validator,
)
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict

from sherlock.rag.domain.models import (
    UNSET,
    Attributes,
    AttributeValue,
    ChunkingStrategy,
    Comparison,
    ComponentStatus,
    Compound,
    Filter,
    Metadata,
    Page,
    Purpose,
    Result,
    Retrieval,
    SearchQuery,
    Status,
    StoredFile,
    StoreStatus,
    VectorStore,
    VectorStoreChanges,
    VectorStoreFile,
)

FilePurpose = Literal["assistants", "batch", "fine-tune", "vision", "user_data", "evals"]
"""What a caller may upload for."""

MAX_FILTER_DEPTH = 16
MAX_QUERIES = 20
DEFAULT_RESULTS = 10


def without_nul(text: str) -> str:
    """The database stores no NUL character."""
    if "\x00" in text:
        raise PydanticCustomError("nul_character", "the character U+0000 is not allowed")
    return text


Text = Annotated[str, AfterValidator(without_nul)]
Key = Annotated[str, StringConstraints(min_length=1, max_length=64), AfterValidator(without_nul)]
Value = Annotated[str, StringConstraints(max_length=512), AfterValidator(without_nul)]
Number = Annotated[float, Field(allow_inf_nan=False)]


class Body(BaseModel):
    """A closed request object."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    null_clears: ClassVar[bool] = False
    """In updates `null` clears a value; everywhere else it means that nothing was given."""

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, body: Any) -> Any:
        if cls.null_clears or not isinstance(body, dict):
            return body
        return {name: value for name, value in body.items() if value is not None}


# ── shared inputs ───────────────────────────────────────────────────────────

MetadataInput = Annotated[dict[Key, Value], Field(max_length=16)]
AttributesInput = Annotated[dict[Key, Value | bool | Number], Field(max_length=16)]


class StaticChunking(Body):
    max_chunk_size_tokens: int = Field(ge=100, le=4096)
    chunk_overlap_tokens: int = Field(ge=0)

    @model_validator(mode="after")
    def _overlap_is_at_most_half(self) -> Self:
        if self.chunk_overlap_tokens > self.max_chunk_size_tokens // 2:
            raise PydanticCustomError(
                "overlap_too_large", "chunk_overlap_tokens may be at most half of max_chunk_size_tokens"
            )
        return self


class AutoChunkingStrategy(Body):
    type: Literal["auto"]


class StaticChunkingStrategy(Body):
    type: Literal["static"]
    static: StaticChunking


ChunkingStrategyInput = Annotated[AutoChunkingStrategy | StaticChunkingStrategy, Discriminator("type")]


def chunking_strategy(given: AutoChunkingStrategy | StaticChunkingStrategy | None) -> ChunkingStrategy | None:
    """`None`: the server's own sizes."""
    if not isinstance(given, StaticChunkingStrategy):
        return None
    return ChunkingStrategy(given.static.max_chunk_size_tokens, given.static.chunk_overlap_tokens)


class StoreExpiration(Body):
    anchor: Literal["last_active_at"]
    days: int = Field(ge=1, le=365)


# ── filters ─────────────────────────────────────────────────────────────────


class ComparisonFilter(Body):
    type: Literal["eq", "ne", "gt", "gte", "lt", "lte"]
    key: Key
    value: Value | bool | Number

    def to_domain(self) -> Filter:
        return Comparison(self.type, self.key, self.value)


class MembershipFilter(Body):
    type: Literal["in", "nin"]
    key: Key
    value: list[Value | bool | Number] = Field(max_length=1000)

    def to_domain(self) -> Filter:
        return Comparison(self.type, self.key, tuple(self.value))


class CompoundFilter(Body):
    type: Literal["and", "or"]
    filters: list["FilterInput"] = Field(min_length=1, max_length=100)

    def to_domain(self) -> Filter:
        return Compound(self.type, tuple(part.to_domain() for part in self.filters))


def filter_kind(value: Any) -> str | None:
    """Which of the three shapes a filter has, by its `type`."""
    kind = value.get("type") if isinstance(value, Mapping) else getattr(value, "type", None)
    if not isinstance(kind, str):
        return None
    return {"and": "compound", "or": "compound", "in": "membership", "nin": "membership"}.get(
        kind, "comparison"
    )


FilterInput = Annotated[
    Annotated[ComparisonFilter, Tag("comparison")]
    | Annotated[MembershipFilter, Tag("membership")]
    | Annotated[CompoundFilter, Tag("compound")],
    Discriminator(filter_kind, custom_error_type="filter_type", custom_error_message="a filter needs a type"),
]


def not_too_deep(given: FilterInput) -> FilterInput:
    level: list[Any] = [given]
    for _ in range(MAX_FILTER_DEPTH):
        level = [part for node in level if isinstance(node, CompoundFilter) for part in node.filters]
        if not level:
            return given
    raise PydanticCustomError(
        "filter_too_deep", "filters may be nested at most {depth} deep", {"depth": MAX_FILTER_DEPTH}
    )


Filters = Annotated[FilterInput, AfterValidator(not_too_deep)]


# ── search ──────────────────────────────────────────────────────────────────


class HybridSearch(Body):
    embedding_weight: float = Field(ge=0, allow_inf_nan=False)
    text_weight: float = Field(ge=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _some_weight(self) -> Self:
        if self.embedding_weight + self.text_weight == 0:
            raise PydanticCustomError("no_weight", "embedding_weight and text_weight may not both be 0")
        return self

    @property
    def alpha(self) -> float:
        return self.embedding_weight / (self.embedding_weight + self.text_weight)


class RankingOptions(Body):
    ranker: Literal["none", "auto", "default-2024-11-15"] = "auto"
    score_threshold: float = Field(0.0, ge=0, le=1)
    hybrid_search: HybridSearch | None = None


class SearchOptions(Body):
    """What `/search` and the `file_search` tool have in common."""

    max_num_results: int | None = Field(None, ge=1, le=50)
    top_k: int | None = Field(None, ge=1, le=50, description="Another name of max_num_results, which wins.")
    filters: Filters | None = None
    ranking_options: RankingOptions = RankingOptions()
    hybrid_alpha: float | None = Field(
        None, ge=0, le=1, description="0 is keyword only, 1 is dense only; wins over hybrid_search."
    )

    def limit(self, default: int) -> int:
        return self.max_num_results or self.top_k or default

    def alpha(self, default: float) -> float:
        if self.hybrid_alpha is not None:
            return self.hybrid_alpha
        weights = self.ranking_options.hybrid_search
        return weights.alpha if weights else default

    def domain_filter(self) -> Filter | None:
        return self.filters.to_domain() if self.filters else None


QueryText = Annotated[str, StringConstraints(min_length=1), AfterValidator(without_nul)]


class SearchRequest(SearchOptions):
    query: QueryText | Annotated[list[QueryText], Field(min_length=1, max_length=MAX_QUERIES)]
    rewrite_query: bool = False
    include: list[Literal["sherlock"]] = []

    def to_query(self, vector_store_id: str, default_alpha: float) -> SearchQuery:
        return SearchQuery(
            texts=(self.query,) if isinstance(self.query, str) else tuple(self.query),
            vector_store_ids=(vector_store_id,),
            limit=self.limit(DEFAULT_RESULTS),
            alpha=self.alpha(default_alpha),
            score_threshold=self.ranking_options.score_threshold,
            filter=self.domain_filter(),
            rerank=self.ranking_options.ranker != "none",
        )


# ── vector stores: requests ─────────────────────────────────────────────────


class CreateVectorStoreRequest(Body):
    name: Value = ""
    description: Value | None = None
    file_ids: list[Text] = Field([], max_length=500)
    expires_after: StoreExpiration | None = None
    chunking_strategy: ChunkingStrategyInput | None = None
    metadata: MetadataInput | None = None


class UpdateVectorStoreRequest(Body):
    null_clears: ClassVar[bool] = True

    name: Value | None = None
    expires_after: StoreExpiration | None = None
    metadata: MetadataInput | None = None

    def to_changes(self) -> VectorStoreChanges:
        given = self.model_fields_set
        days = self.expires_after.days if self.expires_after else None
        return VectorStoreChanges(
            name=self.name if "name" in given else UNSET,
            metadata=self.metadata if "metadata" in given else UNSET,
            expires_after_days=days if "expires_after" in given else UNSET,
        )


class AttachFileRequest(Body):
    file_id: Text
    attributes: AttributesInput | None = None
    chunking_strategy: ChunkingStrategyInput | None = None


class UpdateAttributesRequest(Body):
    null_clears: ClassVar[bool] = True

    attributes: AttributesInput | None


# ── embeddings: request ─────────────────────────────────────────────────────

MAX_INPUTS = 2048


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
InputTokens = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1, max_length=MAX_INPUTS)]


class EmbeddingsRequest(Body):
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


# ── objects: lists and deletions ────────────────────────────────────────────

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


class DeletedFile(TypedDict):
    id: str
    object: Literal["file"]
    deleted: Literal[True]


class DeletedVectorStore(TypedDict):
    id: str
    object: Literal["vector_store.deleted"]
    deleted: Literal[True]


class DeletedVectorStoreFile(TypedDict):
    id: str
    object: Literal["vector_store.file.deleted"]
    deleted: Literal[True]


# ── objects: files ──────────────────────────────────────────────────────────


class FileObject(TypedDict):
    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    filename: str
    purpose: Purpose
    status: Literal["processed"]
    expires_at: NotRequired[int]


def file_object(file: StoredFile) -> FileObject:
    """`status` says that the file is stored; ingest has a status of its own, on the vector-store file."""
    shown: FileObject = {
        "id": file.id,
        "object": "file",
        "bytes": file.bytes,
        "created_at": file.created_at,
        "filename": file.filename,
        "purpose": file.purpose,
        "status": "processed",
    }
    if file.expires_at is not None:
        shown["expires_at"] = file.expires_at
    return shown


# ── objects: vector stores ──────────────────────────────────────────────────


class FileCountsObject(TypedDict):
    in_progress: int
    completed: int
    failed: int
    cancelled: int
    total: int


class StoreExpirationObject(TypedDict):
    anchor: Literal["last_active_at"]
    days: int


class VectorStoreObject(TypedDict):
    id: str
    object: Literal["vector_store"]
    created_at: int
    name: str
    description: str | None
    usage_bytes: int
    file_counts: FileCountsObject
    status: StoreStatus
    expires_after: NotRequired[StoreExpirationObject]
    expires_at: int | None
    last_active_at: int
    metadata: Metadata


def vector_store_object(store: VectorStore) -> VectorStoreObject:
    counts = store.file_counts
    shown: VectorStoreObject = {
        "id": store.id,
        "object": "vector_store",
        "created_at": store.created_at,
        "name": store.name,
        "description": store.description,
        "usage_bytes": store.usage_bytes,
        "file_counts": {
            "in_progress": counts.in_progress,
            "completed": counts.completed,
            "failed": counts.failed,
            "cancelled": counts.cancelled,
            "total": counts.total,
        },
        "status": store.status,
        "expires_at": store.expires_at,
        "last_active_at": store.last_active_at,
        "metadata": store.metadata or {},
    }
    if store.expires_after_days is not None:
        shown["expires_after"] = {"anchor": "last_active_at", "days": store.expires_after_days}
    return shown


class LastErrorObject(TypedDict):
    code: Literal["server_error", "unsupported_file", "invalid_file"]
    message: str


class StaticChunkingObject(TypedDict):
    max_chunk_size_tokens: int
    chunk_overlap_tokens: int


class ChunkingStrategyObject(TypedDict):
    type: Literal["static"]
    static: StaticChunkingObject


class VectorStoreFileObject(TypedDict):
    id: str
    object: Literal["vector_store.file"]
    usage_bytes: int
    created_at: int
    vector_store_id: str
    status: Status
    last_error: LastErrorObject | None
    chunking_strategy: ChunkingStrategyObject
    attributes: Mapping[str, AttributeValue]


def vector_store_file_object(file: VectorStoreFile) -> VectorStoreFileObject:
    error = file.last_error
    return {
        "id": file.file_id,
        "object": "vector_store.file",
        "usage_bytes": file.usage_bytes,
        "created_at": file.created_at,
        "vector_store_id": file.vector_store_id,
        "status": file.status,
        "last_error": {"code": error.code, "message": error.message} if error else None,
        "chunking_strategy": {
            "type": "static",
            "static": {
                "max_chunk_size_tokens": file.chunking.max_chunk_size_tokens,
                "chunk_overlap_tokens": file.chunking.chunk_overlap_tokens,
            },
        },
        "attributes": file.attributes or {},
    }


class TextObject(TypedDict):
    type: Literal["text"]
    text: str


class FileContentPage(TypedDict):
    object: Literal["vector_store.file_content.page"]
    data: list[TextObject]
    has_more: Literal[False]
    next_page: None


def file_content_page(text: str) -> FileContentPage:
    """All of it in one page: clients never ask for a second."""
    return {
        "object": "vector_store.file_content.page",
        "data": [{"type": "text", "text": text}] if text else [],
        "has_more": False,
        "next_page": None,
    }


class SearchResultObject(TypedDict):
    file_id: str
    filename: str
    score: float
    attributes: Attributes | None
    content: list[TextObject]


class RetrievalObject(TypedDict):
    """What Sherlock says about a retrieval, under the member `sherlock`."""

    stages: list[str]
    degraded: list[str]
    timings_ms: NotRequired[dict[str, float]]


class SearchResultsPage(TypedDict):
    object: Literal["vector_store.search_results.page"]
    search_query: list[str]
    data: list[SearchResultObject]
    has_more: Literal[False]
    next_page: None
    sherlock: NotRequired[RetrievalObject]


def search_result_object(result: Result) -> SearchResultObject:
    found = result.candidate
    return {
        "file_id": found.file_id,
        "filename": found.filename,
        "score": result.score,
        "attributes": found.attributes or {},
        "content": [{"type": "text", "text": found.text}],
    }


def search_results_page(retrieval: Retrieval, *, with_retrieval: bool) -> SearchResultsPage:
    """OpenAI's schema closes the page against other members, so `sherlock` is there only when asked for."""
    page: SearchResultsPage = {
        "object": "vector_store.search_results.page",
        "search_query": list(retrieval.queries),
        "data": [search_result_object(result) for result in retrieval.results],
        "has_more": False,
        "next_page": None,
    }
    if with_retrieval:
        page["sherlock"] = retrieval_object(retrieval)
    return page


def retrieval_object(retrieval: Retrieval) -> RetrievalObject:
    shown: RetrievalObject = {"stages": list(retrieval.stages), "degraded": list(retrieval.degraded)}
    if retrieval.timings_ms:
        shown["timings_ms"] = {name: round(ms, 1) for name, ms in retrieval.timings_ms.items()}
    return shown


def stages_header(retrieval: Retrieval) -> str:
    """The value of `sherlock-stages`: `embed;dur=12.3, dense, fuse, rerank;degraded="late"`.

    Written like `Server-Timing` (W3C), so that the same parsers read it.
    """
    reasons = dict(entry.partition(": ")[::2] for entry in retrieval.degraded)
    entries = []
    for name in dict.fromkeys([*retrieval.stages, *reasons]):
        entry = name
        if name in retrieval.timings_ms:
            entry += f";dur={retrieval.timings_ms[name]:.1f}"
        if name in reasons:
            entry += f';degraded="{reasons[name]}"'
        entries.append(entry)
    return "".join(c if " " <= c <= "~" else "?" for c in ", ".join(entries))


# ── objects: embeddings and models ──────────────────────────────────────────


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


def embedding_list(vectors: Sequence[list[float] | str], model: str, tokens: int) -> EmbeddingList:
    return {
        "object": "list",
        "data": [
            {"object": "embedding", "index": index, "embedding": vector}
            for index, vector in enumerate(vectors)
        ],
        "model": model,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }


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


# ── objects: health ─────────────────────────────────────────────────────────


class HealthObject(TypedDict):
    status: Literal["ok"]
    version: str


class ComponentObject(TypedDict):
    state: Literal["ready", "starting", "idle", "off", "unavailable"]
    since: int
    reason: str | None
    model: str | None


class ReadinessObject(TypedDict):
    status: Literal["ready", "not_ready"]
    version: str
    components: dict[str, ComponentObject]


def readiness_object(
    components: Mapping[str, ComponentStatus], *, ready: bool, version: str
) -> ReadinessObject:
    return {
        "status": "ready" if ready else "not_ready",
        "version": version,
        "components": {
            name: {"state": part.state, "since": part.since, "reason": part.reason, "model": part.model}
            for name, part in components.items()
        },
    }
