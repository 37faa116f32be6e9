"""The OpenAI shapes of search, which the `file_search` tool of a chat shares."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NotRequired, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    model_validator,
)
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict

from sherlock.rag.domain import models
from sherlock.rag.domain.models import (
    MAX_FILTER_DEPTH,
    Attributes,
    Citation,
    Comparison,
    Compound,
    Filter,
    Result,
    Retrieval,
    SearchQuery,
)
from sherlock.schemas import ClosedModel, Key, Number, TextObject, Value, without_nul

MAX_FILTERS = 512
MAX_FILTER_VALUES = 10_000
"""Of one request in all, since every one of them is compared with every chunk that is looked at."""
MAX_QUERIES = 20
MAX_QUERY_CHARS = 32_768
"""Ten pages: more is a document, not a question, and every term of it would be looked up."""
DEFAULT_RESULTS = 10


# ── filters ─────────────────────────────────────────────────────────────────


class ComparisonFilter(ClosedModel):
    type: Literal["eq", "ne", "gt", "gte", "lt", "lte"]
    key: Key
    value: Value | bool | Number

    def to_domain(self) -> Filter:
        return Comparison(self.type, self.key, self.value)


class MembershipFilter(ClosedModel):
    type: Literal["in", "nin"]
    key: Key
    value: list[Value | bool | Number] = Field(max_length=1000)

    def to_domain(self) -> Filter:
        return Comparison(self.type, self.key, tuple(self.value))


class CompoundFilter(ClosedModel):
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


def within_bounds(given: object) -> object:
    """Judged before anything is made of it: a body has room for millions of comparisons."""
    level: list[Any] = [given]
    nodes = values = 0
    for _ in range(MAX_FILTER_DEPTH):
        nodes += len(level)
        lists = [node["value"] for node in level if isinstance(node, dict) and "value" in node]
        values += sum(len(value) for value in lists if isinstance(value, list))
        inner = [node["filters"] for node in level if isinstance(node, dict) and "filters" in node]
        level = [part for parts in inner if isinstance(parts, list) for part in parts]
        if nodes + len(level) > MAX_FILTERS or values > MAX_FILTER_VALUES:
            raise PydanticCustomError(
                "filter_too_large",
                "at most {filters} filters with {values} listed values can be combined",
                {"filters": MAX_FILTERS, "values": MAX_FILTER_VALUES},
            )
        if not level:
            return given
    raise PydanticCustomError(
        "filter_too_deep", "filters may be nested at most {depth} deep", {"depth": MAX_FILTER_DEPTH}
    )


Filters = Annotated[FilterInput, BeforeValidator(within_bounds)]


# ── request ─────────────────────────────────────────────────────────────────


class HybridSearch(ClosedModel):
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


class RankingOptions(ClosedModel):
    ranker: Literal["none", "auto", "default-2024-11-15"] = "auto"
    score_threshold: float = Field(0.0, ge=0, le=1)
    hybrid_search: HybridSearch | None = None


class SearchOptions(ClosedModel):
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

    def to_options(self, default_limit: int, default_alpha: float, *, rewrite: bool) -> models.SearchOptions:
        return models.SearchOptions(
            limit=self.limit(default_limit),
            alpha=self.alpha(default_alpha),
            score_threshold=self.ranking_options.score_threshold,
            filter=self.filters.to_domain() if self.filters else None,
            rerank=self.ranking_options.ranker != "none",
            rewrite=rewrite,
        )


QueryText = Annotated[
    str, StringConstraints(min_length=1, max_length=MAX_QUERY_CHARS), AfterValidator(without_nul)
]


class SearchRequest(SearchOptions):
    query: QueryText | Annotated[list[QueryText], Field(min_length=1, max_length=MAX_QUERIES)]
    rewrite_query: bool = False
    include: list[Literal["sherlock"]] = Field([])

    def to_query(self, vector_store_id: str, default_alpha: float) -> SearchQuery:
        return SearchQuery(
            texts=(self.query,) if isinstance(self.query, str) else tuple(self.query),
            vector_store_ids=(vector_store_id,),
            options=self.to_options(DEFAULT_RESULTS, default_alpha, rewrite=self.rewrite_query),
        )


# ── results ─────────────────────────────────────────────────────────────────


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


class GroundingObject(RetrievalObject):
    """The same of an answer, and whether anything in it rests on what was found."""

    grounded: NotRequired[bool]
    """Absent in responses that were stored before it was known."""


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


def grounding_object(retrieval: Retrieval, *, grounded: bool) -> GroundingObject:
    """`grounded`: whether the answer has a citation."""
    return {**retrieval_object(retrieval), "grounded": grounded}


def stages_headers(retrieval: Retrieval | None) -> dict[str, str]:
    """The headers of an answer, which may have been given without a search."""
    return {} if retrieval is None else {"sherlock-stages": stages_header(retrieval)}


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


# ── citations ───────────────────────────────────────────────────────────────


class CitedPassage(TypedDict):
    """What Sherlock knows of a citation; `start_index` to `end_index` is the text that rests on `quote`."""

    start_index: int
    end_index: int
    file_id: str
    filename: str
    vector_store_id: str
    chunk_index: int
    quote: str
    quote_start: int
    page: int | None
    score: float


def cited_passage(citation: Citation) -> CitedPassage:
    return {
        "start_index": citation.start,
        "end_index": citation.end,
        "file_id": citation.file_id,
        "filename": citation.filename,
        "vector_store_id": citation.vector_store_id,
        "chunk_index": citation.chunk_index,
        "quote": citation.quote,
        "quote_start": citation.quote_start,
        "page": citation.page,
        "score": citation.score,
    }
