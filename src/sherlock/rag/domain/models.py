"""The nouns of Sherlock, as frozen values over the standard library.

Times are seconds since the epoch (int), sizes are bytes, offsets are Unicode code points.
"""

import hashlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal, NewType, TypeVar

from sherlock.rag.domain.correlation import UNKNOWN, Correlation
from sherlock.rag.domain.errors import IngestErrorCode
from sherlock.rag.domain.operators import NO_OPERATORS, Operators

WorkspaceId = NewType("WorkspaceId", str)
"""The tenant. First argument of every use case and port method that touches stored data."""

DEFAULT_WORKSPACE = WorkspaceId("default")

if TYPE_CHECKING:
    Vector = array[float]
else:  # subscripting it at run time needs Python 3.12
    Vector = array
"""`array('f')`: float32, unit length unless said otherwise."""

AttributeValue = str | float | bool
Attributes = Mapping[str, AttributeValue]
"""A file's attributes in one vector store: at most 16; numbers are floats, booleans stay booleans."""

Metadata = Mapping[str, str]

Purpose = Literal[
    "assistants", "assistants_output", "batch", "batch_output", "evals", "fine-tune", "fine-tune-results",
    "user_data", "vision",
]  # fmt: skip
Status = Literal["in_progress", "completed", "cancelled", "failed"]
StoreStatus = Literal["expired", "in_progress", "completed"]
JobState = Literal["waiting", "running", "done", "failed", "cancelled"]
UploadStatus = Literal["pending", "completed", "cancelled", "expired"]

T = TypeVar("T")


# ── paging ──────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class PageRequest:
    """One page of a list ordered by creation, ties by id; cursors are object ids and exclusive."""

    limit: int = 20
    order: Literal["asc", "desc"] = "desc"
    after: str | None = None
    before: str | None = None


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    items: tuple[T, ...]
    has_more: bool


# ── files and vector stores ─────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class StoredFile:
    id: str
    workspace_id: WorkspaceId
    filename: str
    purpose: Purpose
    bytes: int
    sha256: str
    """Hexadecimal digest of the bytes."""
    created_at: int
    expires_at: int | None = None
    """When nobody finds it any more; it is removed soon afterwards. `None`: never."""

    @property
    def blob_key(self) -> str:
        """Where the bytes lie in the file store; begins with the workspace."""
        return blob_key(self.workspace_id, self.id)


def blob_key(workspace_id: WorkspaceId, file_id: str) -> str:
    return f"{workspace_id}/{file_id}"


@dataclass(frozen=True, slots=True)
class FileCounts:
    in_progress: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0

    @property
    def total(self) -> int:
        return self.in_progress + self.completed + self.failed + self.cancelled


@dataclass(frozen=True, slots=True)
class Encoder:
    """What a vector store is pinned to: vectors of another encoder do not compare."""

    name: str
    dimension: int
    """Floats per vector."""


@dataclass(frozen=True, slots=True)
class VectorStore:
    id: str
    workspace_id: WorkspaceId
    name: str
    description: str | None
    metadata: Metadata | None
    encoder: Encoder
    created_at: int
    last_active_at: int
    file_counts: FileCounts = FileCounts()
    usage_bytes: int = 0
    expires_after_days: int | None = None
    expires_at: int | None = None
    expired: bool = False
    """For good: nothing makes it active again."""

    @property
    def status(self) -> StoreStatus:
        if self.expired:
            return "expired"
        return "in_progress" if self.file_counts.in_progress else "completed"


class Unset:
    """A field that was not given, where `None` means "clear it"."""

    def __repr__(self) -> str:
        return "UNSET"


UNSET = Unset()


@dataclass(frozen=True, slots=True)
class VectorStoreChanges:
    """An update: `UNSET` keeps the stored value, `None` clears it."""

    name: str | Unset | None = UNSET
    metadata: Metadata | Unset | None = UNSET
    expires_after_days: int | Unset | None = UNSET


@dataclass(frozen=True, slots=True)
class ChunkingStrategy:
    """Sizes in cl100k_base tokens; the overlap is at most half of the size."""

    max_chunk_size_tokens: int
    chunk_overlap_tokens: int


@dataclass(frozen=True, slots=True)
class LastError:
    code: IngestErrorCode
    message: str


@dataclass(frozen=True, slots=True)
class VectorStoreFile:
    """A file's membership in one vector store."""

    file_id: str
    vector_store_id: str
    filename: str
    status: Status
    chunking: ChunkingStrategy
    created_at: int
    """When it was attached."""
    attributes: Attributes | None = None
    last_error: LastError | None = None
    usage_bytes: int = 0
    chunk_count: int = 0
    notes: "ReadingNotes | None" = None
    """Of its last finished ingest."""


@dataclass(frozen=True, slots=True)
class Attachment:
    """A file that is to be attached to a vector store, and how."""

    file_id: str
    chunking: ChunkingStrategy
    chunking_given: bool = False
    """Whether the caller asked for these sizes, or they are the server's own."""
    attributes: Attributes | None = None


@dataclass(frozen=True, slots=True)
class FileBatch:
    """Files that were attached together. Its counts are those of their ingest, as they stand now."""

    id: str
    workspace_id: WorkspaceId
    vector_store_id: str
    created_at: int
    file_counts: FileCounts = FileCounts()
    cancelled: bool = False

    @property
    def status(self) -> Status:
        """`failed` files do not fail the batch; it ends `completed`.

        One whose files were all cancelled by another batch that has them, too, is as good as cancelled.
        """
        counts = self.file_counts
        if self.cancelled or counts.cancelled == counts.total > 0:
            return "cancelled"
        return "in_progress" if counts.in_progress else "completed"


# ── uploads in parts ────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Upload:
    """A file that comes in parts."""

    id: str
    workspace_id: WorkspaceId
    filename: str
    purpose: Purpose
    bytes: int
    """As declared; the parts must add up to it."""
    created_at: int
    expires_at: int
    """When the upload, if it is still pending, becomes `expired`."""
    file_expires_after_s: int | None = None
    """Seconds from completion on; `None`: what is usual for the purpose."""
    status: UploadStatus = "pending"
    part_ids: tuple[str, ...] | None = None
    """What it was completed with, in order."""
    file: StoredFile | None = None
    """Once completed, and until it is deleted or expires."""


@dataclass(frozen=True, slots=True)
class UploadPart:
    id: str
    workspace_id: WorkspaceId
    upload_id: str
    bytes: int
    created_at: int


# ── documents and chunks ────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Section:
    """A run of parsed text: a page, or what stands under one heading. A document is its sections in order.

    The document's text is the sections' texts joined with nothing between; parsers put the blank lines in.
    """

    text: str
    page: int | None = None
    """Counted from 1."""
    heading: str | None = None
    """The heading in force, outermost first, joined by " > "."""
    records: bool = False
    """Whether each line is a record, such as a table's row, to be kept in one piece where it fits."""
    whole: bool = False
    """Whether what stands under its heading, such as a function, is to be kept in one piece where it fits."""
    scan: bool = False
    """On a section without text, before those of a page: the page shows something and holds no text."""
    ocr: bool = False
    """On the same: its text follows, and was recognized in a picture of it."""
    encoding: str | None = None
    """What the file was decoded from; on a section without text that a decoded file begins with."""


@dataclass(frozen=True, slots=True)
class ReadingNotes:
    """What a reader has to say about a file beside its text."""

    encoding: str | None = None
    """What text was decoded from, as Python names it; `None` where the format itself says it."""
    page_count: int | None = None
    skipped_pages: str = ""
    """Pages that show something of which no text is known, as ranges: `3, 7-9`."""
    ocr_pages: str = ""
    """Pages whose text was recognized in a picture of them, as ranges."""


PageBreaks = tuple[tuple[int, int | None], ...]
"""Where in a chunk further pages begin: offsets into the document's text, ascending, each with its page."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """`document_text[start:end] == text`, and `text` is never blank."""

    index: int
    text: str
    start: int
    end: int
    page: int | None = None
    """Where the chunk begins."""
    heading: str | None = None
    gap: str = ""
    """The blanks between the former chunk, or the beginning, and this one; of very many only the first."""
    page_breaks: PageBreaks = ()

    @property
    def digest(self) -> bytes:
        """SHA-256 of what is encoded: where it is the same, the vectors are."""
        return hashlib.sha256(self.text_in_context.encode()).digest()

    @property
    def text_in_context(self) -> str:
        """What is encoded: the text below its heading, which is no part of the text that is cited."""
        return f"{self.heading}\n{self.text}" if self.heading else self.text


@dataclass(frozen=True, slots=True)
class EmbeddedChunk:
    chunk: Chunk
    windows: Sequence[Vector]
    """One unit vector for each window of the encoder over the chunk; at least one."""


@dataclass(frozen=True, slots=True)
class Staged:
    """All of a file's chunks are staged: how many, and what reading it told."""

    chunk_count: int
    notes: ReadingNotes


@dataclass(frozen=True, slots=True)
class Published:
    """What a finished ingest left in the index."""

    chunk_count: int
    window_count: int
    usage_bytes: int
    notes: ReadingNotes = ReadingNotes()
    read_by: str = ""
    """`DocumentReader.version` of who made the chunks, here or in the store they were copied from."""
    stage_ms: Mapping[str, float] = field(default_factory=dict, compare=False)
    """What the attempt spent in each stage: `copy`, or `fetch`, `parse`, `embed` and `stage`, which overlap;
    and `publish`."""


# ── reconciliation ──────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Orphans:
    """How far the file store and the records are apart; none of either is how it should be."""

    bytes_without_record: int
    records_without_bytes: int


# ── ingest jobs ─────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to work on a job. `attempt` fences: an older attempt can no longer write."""

    job_id: int
    attempt: int
    """Counted from 1."""
    owner: str


@dataclass(frozen=True, slots=True)
class IngestJob:
    lease: Lease
    workspace_id: WorkspaceId
    vector_store_id: str
    file_id: str
    filename: str
    bytes: int
    chunking: ChunkingStrategy
    encoder: Encoder
    correlation: Correlation = UNKNOWN
    """Of the request that attached the file."""


@dataclass(frozen=True, slots=True)
class QueueActivity:
    """How the ingest queue stands, over all workspaces."""

    waiting: int
    running: int
    oldest_age_s: float
    """How long ago the oldest waiting job was queued; 0 where none waits."""
    recent_jobs: int = 0
    """How many of the jobs that were completed last `stage_ms` is about."""
    stage_ms: Mapping[str, float] = field(default_factory=dict)
    """The mean time that these spent in each stage."""


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job as an operator sees it. Jobs go with their membership: detached files have none."""

    id: int
    workspace_id: WorkspaceId
    vector_store_id: str
    file_id: str
    filename: str
    state: JobState
    attempt: int
    """Of the current or last claim, counted from 1; 0 before the first."""
    failures: int
    """Attempts that ended badly."""
    created_at: int
    run_after: int
    """When it is due, or was."""
    finished_at: int | None = None
    reason: str | None = None
    """Why it failed, or was given back last."""
    notes: ReadingNotes | None = None
    """Of the last finished ingest of its file in its store."""


# ── search ──────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Comparison:
    """A missing key fails all but `ne` and `nin`; values of different kinds are never equal nor ordered."""

    type: Literal["eq", "ne", "gt", "gte", "lt", "lte", "in", "nin"]
    key: str
    value: AttributeValue | tuple[AttributeValue, ...]


@dataclass(frozen=True, slots=True)
class Compound:
    type: Literal["and", "or"]
    filters: tuple["Filter", ...]


Filter = Comparison | Compound

MAX_FILTER_DEPTH = 16
"""Filters nested deeper are refused, before they exhaust anybody's stack."""


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """How to search, whatever is asked and wherever."""

    limit: int
    alpha: float
    """0 is keyword only, 1 is dense only."""
    score_threshold: float = 0.0
    """0..1, of the fused score, which every search has."""
    filter: Filter | None = None
    rerank: bool = True
    rewrite: bool = False
    """Whether the question may be rewritten before it is searched for."""


@dataclass(frozen=True, slots=True)
class SearchQuery:
    texts: tuple[str, ...]
    """One or more phrasings of the question; a chunk's score is its best over them."""
    vector_store_ids: tuple[str, ...]
    options: SearchOptions
    chat: "ChatRequest | None" = None
    """The conversation that asks; its last user turn is the question."""


@dataclass(frozen=True, slots=True)
class IndexQuery:
    """What the index is asked: candidates of one text, not yet fused."""

    text: str
    vector: Vector | None
    """Unit length; `None` when `alpha` is 0."""
    vector_store_ids: tuple[str, ...]
    alpha: float
    candidates: int
    """How many chunks each leg brings."""
    filter: Filter | None = None
    operators: Operators = NO_OPERATORS


@dataclass(frozen=True, slots=True)
class Candidate:
    """A chunk found by a leg, with the scores of both legs."""

    chunk_id: int
    vector_store_id: str
    file_id: str
    filename: str
    attributes: Attributes | None
    chunk_index: int
    text: str
    start: int
    end: int
    page: int | None
    heading: str | None
    cosine: float
    """Best window against the query, -1..1; 0 when the query has no vector."""
    keyword: float
    """BM25 over the largest value the query could reach, 0..1."""
    gap: str = ""
    """As in `Chunk`."""
    page_breaks: PageBreaks = ()

    def page_at(self, offset: int) -> int | None:
        """The page of the character at an offset into the document's text that lies in this chunk."""
        return next((page for start, page in reversed(self.page_breaks) if start <= offset), self.page)


@dataclass(frozen=True, slots=True)
class Result:
    candidate: Candidate
    score: float
    """0..1, best first; means the same in every store and query."""
    fused: float
    rerank: float | None = None
    """Sigmoid of the cross-encoder's logit, where it was asked."""


@dataclass(frozen=True, slots=True)
class Retrieval:
    """Results, and how they came about: nothing is degraded silently."""

    queries: tuple[str, ...]
    """As they were searched for."""
    results: tuple[Result, ...]
    stages: tuple[str, ...] = ()
    """Stages that ran, in order: rewrite, embed, dense, keyword, fuse, rerank."""
    degraded: tuple[str, ...] = ()
    """Stages that were wanted and failed or ran out of time, each with a plain reason: `rerank: late`."""
    timings_ms: Mapping[str, float] = field(default_factory=dict)


# ── chat ────────────────────────────────────────────────────────────────────

ChatMessage = Mapping[str, Any]
"""A message as OpenAI's API writes it: `role`, `content` (string or parts), `tool_calls`, ..."""


@dataclass(frozen=True, slots=True)
class FileSearch:
    """The `file_search` tool of a chat."""

    vector_store_ids: tuple[str, ...]
    options: SearchOptions


@dataclass(frozen=True, slots=True)
class ChatRequest:
    model: str
    messages: tuple[ChatMessage, ...]
    file_search: FileSearch | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further members of the request that go to the model as they came: temperature, tools, stop, ..."""


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int
    details: Mapping[str, Any] = field(default_factory=dict)
    """The upstream's `prompt_tokens_details` and `completion_tokens_details`, where it sends them."""

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of a file's text as it is shown to the model, under its number."""

    number: int
    """Counted from 1; the marker in the answer is `[number]`."""
    results: tuple[Result, ...]
    """What it is made of: one chunk, or neighbouring ones in the order of the text."""
    start: int
    """Code points into the document's text."""
    text: str

    @property
    def end(self) -> int:
        return self.start + len(self.text)

    def part_at(self, start: int, end: int | None = None) -> Result:
        """The first of the results that holds the text from `start` to `end`, or else its beginning."""
        begun = [result for result in self.results if result.candidate.start <= start]
        whole = (result for result in begun if result.candidate.end >= (start + 1 if end is None else end))
        return next(whole, begun[-1])

    def page_at(self, offset: int) -> int | None:
        return self.part_at(offset).candidate.page_at(offset)


@dataclass(frozen=True, slots=True)
class Citation:
    """`content[start:end]` of the answer rests on `quote`, an exact substring of the file's parsed text."""

    start: int
    end: int
    file_id: str
    filename: str
    vector_store_id: str
    chunk_index: int
    quote: str
    quote_start: int
    """Code points into the document's text."""
    page: int | None
    score: float


@dataclass(frozen=True, slots=True)
class TextDelta:
    text: str
    choice: int = 0
    logprobs: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class RefusalDelta:
    text: str
    choice: int = 0


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A piece of a call to the client's own function, as the upstream streamed it."""

    index: int
    id: str | None
    name: str | None
    arguments: str
    choice: int = 0


FinishReason = Literal["stop", "length", "tool_calls", "content_filter", "function_call"]


@dataclass(frozen=True, slots=True)
class Finished:
    reason: FinishReason
    choice: int = 0


@dataclass(frozen=True, slots=True)
class Retrieved:
    """Comes first when the chat has a `file_search` tool."""

    retrieval: Retrieval


@dataclass(frozen=True, slots=True)
class Citations:
    """All citations of one choice, once, after its text."""

    citations: tuple[Citation, ...]
    choice: int = 0


@dataclass(frozen=True, slots=True)
class Done:
    """Always the last event of an answer that did not fail."""

    usage: Usage


ModelEvent = TextDelta | RefusalDelta | ToolCallDelta | Finished | Usage
"""What a chat model streams; `Usage` at most once, last, when it knows its own figures."""

AnswerEvent = Retrieved | TextDelta | RefusalDelta | ToolCallDelta | Finished | Citations | Done


# ── responses ───────────────────────────────────────────────────────────────

ResponseItem = Mapping[str, Any]
"""An item of the Responses API as OpenAI writes it, with its `id` and `type`; plain JSON."""

RESPONSE_LIFE_S = 30 * 86_400
"""How long a response is kept, counted from the latest one of its conversation."""

MAX_CONTEXT_BYTES = 64 * 1024 * 1024
"""Of items that one answer may build upon, as JSON: as much as one request could bring."""


@dataclass(frozen=True, slots=True)
class ResponseTurn:
    """One turn of the Responses API: what is asked, and what it builds upon."""

    model: str
    input: tuple[ResponseItem, ...]
    """Each with an id, or an `item_reference`, which is no more than one."""
    instructions: str | None = None
    """Of this turn alone."""
    previous_response_id: str | None = None
    store: bool = True
    file_search: FileSearch | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    """As in `ChatRequest`."""


@dataclass(frozen=True, slots=True)
class StoredResponse:
    id: str
    workspace_id: WorkspaceId
    created_at: int
    previous_id: str | None
    """The response whose conversation this one goes on with; it may have been deleted since."""
    body: Mapping[str, Any]
    """The response as the API shows it, without its output."""
    input: tuple[ResponseItem, ...]
    """Its own, without what came before."""
    output: tuple[ResponseItem, ...]


# ── readiness ───────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class ComponentStatus:
    state: Literal["ready", "starting", "idle", "off", "unavailable"]
    """`idle`: works on first use (a model that is loaded lazily); counts as ready."""
    since: int
    reason: str | None = None
    model: str | None = None
    """What really runs, for models."""
