"""What the core needs of the outside. A caller may rely on what stands here and on nothing else.

Every method may raise the `Unavailable` of its part (transient). Where a `workspace_id` is asked, nothing of
another workspace is read, changed or revealed: a foreign id is `NotFound`. Each port has one behaviour suite
in `tests/ports`, run against the fake and every real adapter.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

from sherlock.rag.domain.models import (
    Attributes,
    Candidate,
    ChatRequest,
    Chunk,
    ChunkingStrategy,
    ComponentStatus,
    EmbeddedChunk,
    Encoder,
    IndexQuery,
    IngestJob,
    LastError,
    Lease,
    ModelEvent,
    Page,
    PageRequest,
    Published,
    Purpose,
    Status,
    StoredFile,
    Vector,
    VectorStore,
    VectorStoreChanges,
    VectorStoreFile,
    WorkspaceId,
)


class FileStore(Protocol):
    """Bytes by key. Keys are `workspace/file id`; a key is written once and never changed."""

    async def put(self, key: str, data: AsyncIterator[bytes]) -> None:
        """Store the stream under `key`, in bounded memory; nothing is visible until all of it is.

        An error of the stream itself (the caller's) passes through, and leaves nothing behind.
        """

    async def size(self, key: str) -> int:
        """Bytes stored under `key`. Raises `NotFound`."""

    def read(self, key: str, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        """The bytes `start` up to but not including `end`, in pieces. Raises `NotFound` on the first one."""

    async def delete(self, key: str) -> None:
        """Remove; a key that is not there is no error."""

    def keys(self) -> AsyncIterator[str]:
        """Every stored key, in any order."""

    async def check(self) -> None:
        """Prove that the store can be written to now."""


class Catalog(Protocol):
    """Files, vector stores and memberships. Each method is one transaction."""

    async def add_file(self, file: StoredFile) -> None:
        """Raises `Conflict` when the id is taken."""

    async def get_file(self, workspace_id: WorkspaceId, file_id: str) -> StoredFile:
        """Raises `NotFound`."""

    async def list_files(
        self, workspace_id: WorkspaceId, page: PageRequest, purpose: Purpose | None = None
    ) -> Page[StoredFile]:
        """By `created_at`, those of one second in the order they came.

        Raises `NotFound` when a cursor is not a file of the workspace.
        """

    async def delete_file(self, workspace_id: WorkspaceId, file_id: str) -> StoredFile:
        """Remove the file, its memberships, jobs and chunks; return what it was. Raises `NotFound`."""

    async def add_vector_store(
        self, store: VectorStore, file_ids: Sequence[str], chunking: ChunkingStrategy
    ) -> VectorStore:
        """Create, and attach the files in the same transaction. Raises `NotFound` for an unknown file."""

    async def get_vector_store(self, workspace_id: WorkspaceId, vector_store_id: str) -> VectorStore:
        """With live counts. Raises `NotFound`."""

    async def find_vector_stores(
        self, workspace_id: WorkspaceId, vector_store_ids: Sequence[str]
    ) -> list[VectorStore]:
        """Those of the ids that exist, each once, in the order asked; their counts are left at zero."""

    async def list_vector_stores(self, workspace_id: WorkspaceId, page: PageRequest) -> Page[VectorStore]:
        """By `created_at`, those of one second in the order they came.

        Raises `NotFound` when a cursor is not a store of the workspace.
        """

    async def update_vector_store(
        self, workspace_id: WorkspaceId, vector_store_id: str, changes: VectorStoreChanges
    ) -> VectorStore:
        """Raises `NotFound`. Counts as activity."""

    async def touch_vector_stores(self, workspace_id: WorkspaceId, vector_store_ids: Sequence[str]) -> None:
        """Note activity: `last_active_at` is now, and expiry counts from it.

        Unknown ids are passed over, as are stores that somebody else is changing: it never waits.
        """

    async def delete_vector_store(self, workspace_id: WorkspaceId, vector_store_id: str) -> None:
        """Remove the store, its memberships, jobs and chunks; the files stay. Raises `NotFound`."""

    async def attach_file(
        self,
        workspace_id: WorkspaceId,
        vector_store_id: str,
        file_id: str,
        *,
        attributes: Attributes | None,
        chunking: ChunkingStrategy,
        chunking_given: bool,
    ) -> VectorStoreFile:
        """Write the membership (`in_progress`) and its job, and wake a worker, in one transaction.

        A file that is attached already is not ingested again: its row comes back, `failed` and `cancelled`
        ones are queued anew (with `chunking`), given attributes replace the old. Raises `NotFound` for store
        or file, `Conflict` when `chunking_given` and the sizes differ from those of a row not retried.
        """

    async def get_membership(
        self, workspace_id: WorkspaceId, vector_store_id: str, file_id: str
    ) -> VectorStoreFile:
        """Raises `NotFound`."""

    async def list_memberships(
        self, workspace_id: WorkspaceId, vector_store_id: str, page: PageRequest, status: Status | None = None
    ) -> Page[VectorStoreFile]:
        """By when they were attached; those attached together in the order the files came.

        Raises `NotFound` for the store or a cursor.
        """

    async def update_attributes(
        self, workspace_id: WorkspaceId, vector_store_id: str, file_id: str, attributes: Attributes | None
    ) -> VectorStoreFile:
        """Replace the whole map; the next search sees it. Raises `NotFound`."""

    async def detach_file(self, workspace_id: WorkspaceId, vector_store_id: str, file_id: str) -> None:
        """Remove the membership with its jobs and chunks; the file stays. Raises `NotFound`."""

    async def check(self) -> None:
        """Prove that the database answers."""


class IngestQueue(Protocol):
    """Durable jobs. A worker that dies loses its lease when it runs out, and the job is taken up again.

    Claiming is the one read across workspaces.
    """

    async def claim(self, owner: str, lease_s: float) -> IngestJob | None:
        """The oldest job that is due, leased to `owner`; `None` when there is none.

        A job whose lease ran out is due. One that has used up its attempts is failed here, not claimed.
        """

    async def renew(self, lease: Lease, lease_s: float) -> None:
        """Hold on for `lease_s` more seconds.

        Raises `LeaseLost`; also when the membership is no longer `in_progress` (cancelled).
        """

    async def complete(self, lease: Lease, published: Published) -> None:
        """Set the membership `completed`. Raises `LeaseLost` as `renew` does, and then changes nothing."""

    async def fail(self, lease: Lease, error: LastError) -> None:
        """Set the membership `failed`, for good. Raises `LeaseLost`, and then changes nothing."""

    async def retry(self, lease: Lease, delay_s: float, error: LastError, *, counted: bool) -> None:
        """Give the job back, due after `delay_s`; failed with `error` when it has had its last chance.

        A `counted` attempt may have failed by the file's fault, and there are only so many. One that is not
        (something Sherlock needs was down) uses none up, and may be repeated until the outage has lasted too
        long. Raises `LeaseLost`, and then changes nothing.
        """

    async def release(self, lease: Lease) -> None:
        """Give the job back unharmed, due at once, not counted as an attempt: the worker is stopping."""

    async def depth(self) -> int:
        """Jobs that wait or run."""

    async def wait_for_work(self, timeout_s: float) -> None:
        """Return when a job was queued, or after `timeout_s`; spurious returns are allowed."""


class ChunkIndex(Protocol):
    """Chunks, vectors and keyword terms of the files in vector stores."""

    async def staged(self, lease: Lease) -> Mapping[int, bytes]:
        """Chunks kept by this or an earlier attempt of the job: chunk index -> SHA-256 of its UTF-8 text.

        Empty for a lease that is lost: `stage` and `publish` are the ones to say so.
        """

    async def stage(self, lease: Lease, chunks: Sequence[EmbeddedChunk]) -> None:
        """Keep finished chunks beside the index, invisible to search; the same index again replaces.

        Raises `LeaseLost`, and `InvalidFile` for text that cannot be stored.
        """

    async def publish(self, lease: Lease, chunk_count: int) -> Published:
        """In one transaction, make the staged chunks 0..chunk_count-1 the file's chunks in the store.

        Replaces whatever was there, and may be repeated. Raises `LeaseLost`; also when the file has gone.
        """

    async def search(self, workspace_id: WorkspaceId, query: IndexQuery) -> list[Candidate]:
        """The best chunks by either leg, each once, with both scores; at most twice `query.candidates`.

        In no order that means anything. Unknown stores yield nothing. Never fewer than the filter allows:
        `min(candidates, qualifying chunks)` of the dense leg when `alpha` > 0.
        """

    async def chunks(
        self, workspace_id: WorkspaceId, vector_store_id: str, file_id: str
    ) -> list[tuple[int, int, str]]:
        """`(start, end, text)` of every chunk of the file in the store, by chunk index."""


class DocumentReader(Protocol):
    """Files to chunks. A file can be made to do harm: whatever it does, it fails alone."""

    def chunks(
        self, path: Path, filename: str, chunking: ChunkingStrategy
    ) -> AsyncGenerator[list[Chunk], None]:
        """The chunks of the file in `path`, uploaded as `filename`, in order; no batch is empty.

        Batches are the same each time, and a constant number of them is read ahead. Closing ends the reading,
        wherever it stands; then nobody uses the file any more. Raises `UnsupportedFile` or `InvalidFile`,
        where the file is at fault: batches may have come before.
        """


class Embedder(Protocol):
    """Texts to unit vectors; blocking work runs in the adapter's own threads."""

    @property
    def encoder(self) -> Encoder: ...

    async def embed_documents(self, texts: Sequence[str]) -> list[list[Vector]]:
        """For each text, in order, one vector per window of the encoder, so that no word goes unread.

        Raises `EmbedderUnavailable`.
        """

    async def embed_query(self, text: str) -> Vector:
        """One vector of unit length, not queued behind documents. Raises `EmbedderUnavailable`.

        Of a text over one window it is the mean of its windows, brought to unit length.
        """

    async def embed_texts(self, texts: Sequence[str]) -> list[Vector]:
        """For `/v1/embeddings`: for each text, in order, the mean of its windows, brought to unit length.

        Raises `EmbedderUnavailable`.
        """

    async def status(self) -> ComponentStatus: ...


class Reranker(Protocol):
    async def rerank(self, query: str, texts: Sequence[str], budget_s: float) -> list[float]:
        """Relevance of the first n texts, 0..1, in their order; n is as many as the budget pays for.

        At least 4 (or all, when fewer came) or none at all: `[]` says the budget was too small. Fewer than
        usual, or none, is normal under load: a busy model reads less in the same time, and texts wait for
        each other. Raises `RerankerUnavailable`.
        """

    async def status(self) -> ComponentStatus: ...


class ChatModel(Protocol):
    @property
    def name(self) -> str:
        """The model's full name, as `/v1/models` lists it; empty when the upstream decides."""

    @property
    def context_tokens(self) -> int:
        """Bound on prompt tokens spent on passages and history together."""

    def stream(self, request: ChatRequest) -> AbstractAsyncContextManager[AsyncIterator[ModelEvent]]:
        """Events of the answer to `request.messages` (`file_search` is not the model's affair).

        Leaving the context stops the model at once. A `Finished` for every choice, then `Usage` if known.
        Raises `ChatModelUnavailable` (on entry or between events), `UpstreamRejected`, `ModelNotFound`.
        """

    async def models(self) -> list[str]:
        """Names a request may give."""

    async def status(self) -> ComponentStatus: ...


class TokenCounter(Protocol):
    def count(self, text: str) -> int:
        """cl100k_base tokens; special-token spellings in the text count as plain text."""

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of cl100k_base token ids. Raises `ValueError` for an unknown id."""
