"""What the core needs of the outside. A caller may rely on what stands here and on nothing else.

Every method may raise the `Unavailable` of its part (transient). Where a `workspace_id` is asked, nothing of
another workspace is read, changed or revealed: a foreign id is `NotFound`. Each port has one behaviour suite
in `tests/ports`, run against the fake and every real adapter.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

from sherlock.rag.domain.models import (
    Attachment,
    Attributes,
    Candidate,
    ChatRequest,
    Chunk,
    ChunkingStrategy,
    ComponentStatus,
    EmbeddedChunk,
    Encoder,
    FileBatch,
    IndexQuery,
    IngestJob,
    JobRecord,
    JobState,
    LastError,
    Lease,
    ModelEvent,
    Orphans,
    Page,
    PageRequest,
    Published,
    Purpose,
    QueueActivity,
    ReadingNotes,
    ResponseItem,
    Staged,
    Status,
    StoredFile,
    StoredResponse,
    Upload,
    UploadPart,
    Vector,
    VectorStore,
    VectorStoreChanges,
    VectorStoreFile,
    WorkspaceId,
)


class FileStore(Protocol):
    """Bytes by key. Keys are `workspace/file id`; a key is written once and never changed.

    Parts of uploads lie beside the files, `workspace/part id`.
    """

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
    """Files, vector stores and memberships. Each method is one transaction.

    A file whose `expires_at` has passed is as good as deleted, for every method. A vector store expires
    `expires_after_days` after it was last active, and stays expired. The methods that look for what has
    expired are the only ones that read across workspaces.
    """

    async def add_file(self, file: StoredFile, *, reserved: bool = False) -> None:
        """Raises `Conflict` when the id is taken.

        With `reserved` its object was reserved in `LooseObjects` and is so no more; raises `ReservationLost`,
        and adds nothing, when it had been claimed before.
        """

    async def get_file(self, workspace_id: WorkspaceId, file_id: str) -> StoredFile:
        """Raises `NotFound`."""

    async def list_files(
        self, workspace_id: WorkspaceId, page: PageRequest, purpose: Purpose | None = None
    ) -> Page[StoredFile]:
        """By `created_at`, those of one second in the order they came.

        Raises `NotFound` when a cursor is not a file of the workspace.
        """

    async def delete_file(self, workspace_id: WorkspaceId, file_id: str) -> StoredFile:
        """Remove the file, its memberships, jobs and chunks; return what it was. Raises `NotFound`.

        Its object is one of `LooseObjects` now, claimed by the caller and due at once.
        """

    async def recorded(self, workspace_id: WorkspaceId, object_ids: Collection[str]) -> set[str]:
        """Those of the ids that are on record: as a file, expired or not, a part, or in `LooseObjects`."""

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
        """Raises `NotFound`. Counts as activity, unless the store has expired.

        Raises `VectorStoreExpired` when it has and `expires_after_days` is to change.
        """

    async def touch_vector_stores(self, workspace_id: WorkspaceId, vector_store_ids: Sequence[str]) -> None:
        """Note activity: `last_active_at` is now, and expiry counts from it.

        Unknown ids are passed over, as are expired stores, and those that somebody else is changing: it
        never waits.
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

        Counts as activity of the store, as `touch_vector_stores` does.

        A file that is attached already is not ingested again: its row comes back, `failed` and `cancelled`
        ones are queued anew (with `chunking`), given attributes replace the old. Raises `NotFound` for store
        or file, `VectorStoreExpired`, and `Conflict` when `chunking_given` and the sizes differ from those of
        a row not retried.
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

    async def cancel_file(
        self, workspace_id: WorkspaceId, vector_store_id: str, file_id: str
    ) -> VectorStoreFile:
        """End the file's ingest: an `in_progress` one is `cancelled`, any other stays as it is.

        Raises `NotFound`.
        """

    async def expire_vector_stores(self, limit: int) -> int:
        """Note of up to `limit` stores, of any workspace, that their time has passed; returns of how many."""

    async def expired_memberships(self, limit: int) -> list[tuple[WorkspaceId, str, str]]:
        """`(workspace, store, file)` of up to `limit` memberships, of expired files and in noted stores."""

    async def expired_files(self, limit: int) -> list[StoredFile]:
        """Up to `limit` expired files of any workspace that are in no store, the longest expired first."""

    async def remove_expired_file(self, workspace_id: WorkspaceId, file_id: str) -> None:
        """Remove the record of an expired file; one that is not there, or not expired, is no error."""

    async def check(self) -> None:
        """Prove that the database answers."""


class FileBatchCatalog(Protocol):
    """Files that are attached to a vector store together. Each method is one transaction."""

    async def add(self, batch: FileBatch, attachments: Sequence[Attachment]) -> FileBatch:
        """Attach every file as `Catalog.attach_file` does, all or none. No file may come twice.

        Raises `NotFound` for the store or a file, and `Conflict` as `Catalog.attach_file` does.
        """

    async def get(self, workspace_id: WorkspaceId, vector_store_id: str, batch_id: str) -> FileBatch:
        """With live counts, of one moment. A file that was detached is not counted any more.

        A file that is attached anew after it failed or was cancelled is counted as it ended here.
        Raises `NotFound`.
        """

    async def cancel(self, workspace_id: WorkspaceId, vector_store_id: str, batch_id: str) -> FileBatch:
        """Cancel every file that is `in_progress`, and the batch; one that has ended stays as it is.

        Raises `NotFound`.
        """

    async def list_files(
        self,
        workspace_id: WorkspaceId,
        vector_store_id: str,
        batch_id: str,
        page: PageRequest,
        status: Status | None = None,
    ) -> Page[VectorStoreFile]:
        """In the order of `Catalog.list_memberships`. Raises `NotFound` for the batch or a cursor."""


class JobLog(Protocol):
    """The jobs of all workspaces, for whoever runs the service: never for a tenant."""

    async def list(
        self, state: JobState | None, workspace_id: WorkspaceId | None, limit: int, before: int | None = None
    ) -> Sequence[JobRecord]:
        """The newest first; with `before` those that came before the job of that number."""

    async def get(self, job_id: int) -> JobRecord:
        """Raises `NotFound`."""


class LooseObjects(Protocol):
    """Objects of the file store that belong to no file and no upload: not yet, or not any more.

    An object is reserved before its bytes are stored. Then either its file or part is recorded, which ends
    the reservation, or it is claimed, by one who removes the bytes and forgets it: never both. So bytes that
    nothing tells of do not come about, whoever is killed. Each method is one transaction.
    """

    async def reserve(self, workspace_id: WorkspaceId, object_id: str, for_s: float) -> None:
        """The object, whose id is new, is about to be stored; it is due in `for_s`."""

    async def renew(self, workspace_id: WorkspaceId, object_id: str, for_s: float) -> None:
        """It is due in `for_s` from now, unless it was claimed; one that is not here is no error."""

    async def claim(self, workspace_id: WorkspaceId, object_id: str) -> bool:
        """From now on the object can become nothing, reserved or not, and the caller is to remove it.

        False when it is a file's: then it is to stay. Waits for whoever is recording that.
        """

    async def claim_due(self, limit: int, again_after_s: float) -> list[tuple[WorkspaceId, str]]:
        """Claim up to `limit` objects of any workspace that are due; the longest due ones first.

        Those that are still here after `again_after_s` are due again. Passes over what is being recorded.
        """

    async def forget(self, workspace_id: WorkspaceId, object_id: str) -> None:
        """The bytes of a claimed object were removed; one that is not here is no error."""


class UploadRecords(Protocol):
    """Uploads in parts, and their parts in the file store. Each method is one transaction.

    A part is reserved in `LooseObjects` before its bytes are stored, and forgotten after they are removed. A
    pending upload whose `expires_at` has passed is `expired`, here and for every method.
    """

    async def add(self, upload: Upload) -> None:
        """Raises `Conflict` when the id is taken."""

    async def get(self, workspace_id: WorkspaceId, upload_id: str) -> Upload:
        """Raises `NotFound`."""

    async def reserve(self, workspace_id: WorkspaceId, upload_id: str, part_id: str, for_s: float) -> int:
        """As `LooseObjects.reserve`; returns how many bytes the upload is to have in all.

        Raises `NotFound`, `UploadNotPending`, and `InvalidRequest` when the upload has too many parts.
        """

    async def add_part(
        self, workspace_id: WorkspaceId, upload_id: str, part_id: str, size: int
    ) -> UploadPart:
        """The reserved object, all of whose `size` bytes are stored, becomes a part; its reservation ends.

        Raises `NotFound` for the upload, `UploadNotPending`, and `ReservationLost`.
        """

    async def parts(
        self, workspace_id: WorkspaceId, upload_id: str, part_ids: Collection[str]
    ) -> dict[str, UploadPart]:
        """Those of the ids that are parts of the upload."""

    async def complete(
        self, workspace_id: WorkspaceId, upload_id: str, part_ids: Sequence[str], file: StoredFile
    ) -> Upload:
        """End the upload with the file, which is added as `Catalog.add_file` adds a reserved one.

        Of several at the same time one succeeds. Raises `NotFound`, `UploadNotPending`, `ReservationLost`,
        and `Conflict` when the file's id is taken.
        """

    async def cancel(self, workspace_id: WorkspaceId, upload_id: str) -> Upload:
        """Cancelling twice is no error. Raises `NotFound`, `UploadNotPending` when completed or expired."""

    async def objects(self, workspace_id: WorkspaceId, upload_id: str, limit: int) -> list[str]:
        """Ids of up to `limit` of the upload's parts, the oldest first."""

    async def left_over(self, limit: int) -> list[tuple[WorkspaceId, str]]:
        """`(workspace, part)` of up to `limit` parts of ended uploads, of any workspace, the oldest first."""

    async def forget(self, workspace_id: WorkspaceId, part_ids: Collection[str]) -> None:
        """The parts' bytes have been removed; unknown ids are no error."""

    async def forget_uploads(self, limit: int, older_than_s: float) -> int:
        """Remove up to `limit` ended uploads without parts; returns how many. Their files stay.

        Those whose `expires_at` is at least `older_than_s` ago.
        """


class ReconciliationRecords(Protocol):
    """What comparing the file store with the records needs: of all workspaces, and never for a tenant.

    Each method is one transaction.
    """

    async def begin(self, every_s: float) -> bool:
        """Whether the caller is to compare them now; it is the only one then, and for `every_s`."""

    async def files(self, after: int, limit: int) -> list[tuple[int, WorkspaceId, str]]:
        """`(number, workspace, file)` of up to `limit` files numbered above `after`, in order of the number.

        Expired files are left out: their bytes go first.
        """

    async def end(self, found: Orphans) -> None:
        """Keep what was found, instead of what was before."""

    async def latest(self) -> Orphans | None:
        """What was found last; `None` before the first time."""


class ResponseStore(Protocol):
    """Responses and their items, whatever characters their texts hold. Each method is one transaction.

    A response and those it builds upon, by `previous_id`, are a conversation; it may branch.
    """

    async def add(self, response: StoredResponse) -> None:
        """Raises `Conflict` when the id is taken."""

    async def get(self, workspace_id: WorkspaceId, response_id: str) -> StoredResponse:
        """Raises `NotFound`."""

    async def context(self, workspace_id: WorkspaceId, response_id: str) -> tuple[ResponseItem, ...]:
        """Input and output of the response and of all that it builds upon, in the order they came.

        Without `file_search_call`s, which are done anew. Raises `NotFound` (param `previous_response_id`) for
        the response or one before it that was deleted, and `InvalidRequest` for items of more than
        `MAX_CONTEXT_BYTES`, before any is read.
        """

    async def find_items(
        self, workspace_id: WorkspaceId, item_ids: Sequence[str]
    ) -> Mapping[str, ResponseItem]:
        """Those of the ids that stand in some response, the newest of each."""

    async def list_input_items(
        self, workspace_id: WorkspaceId, response_id: str, page: PageRequest
    ) -> Page[ResponseItem]:
        """What the response was made from: all items before it that are still stored, and its own input.

        In the order they came. Raises `NotFound` for the response or a cursor.
        """

    async def delete(self, workspace_id: WorkspaceId, response_id: str) -> None:
        """Remove the response and its items, not those of its conversation. Raises `NotFound`."""

    async def delete_expired(self, limit: int) -> int:
        """Remove, in all workspaces, at most `limit` responses that have outlived `RESPONSE_LIFE_S`.

        None of a conversation that has gone on since. Returns how many went; fewer than `limit`: no more are
        left.
        """


class IngestQueue(Protocol):
    """Durable jobs. A worker that dies loses its lease when it runs out, and the job is taken up again.

    Claiming and `activity` are the reads across workspaces. A job remembers the `Correlation` that was
    current where it was queued.
    """

    async def claim(self, owner: str, lease_s: float) -> IngestJob | None:
        """The job that is due and whose turn it is, leased to `owner`; `None` when none is due.

        Workspaces whose files wait are served alike, measured in bytes. Within a workspace no file waits for
        larger ones (of another size class); of one size class the oldest comes first.
        A job whose lease ran out is due: an attempt that counts, unless its owner lives to `vouch`. One that
        has used up its attempts is failed here, not claimed, when its owner had one lease more to do so.
        """

    async def vouch(self, owner: str) -> None:
        """`owner` lives and runs no job: none of its leases that ran out, or are lost, was a file's fault.

        What it still holds is given back, due at once, not counted, and what was counted is taken back where
        the job has not ended. As with `retry`, attempts that are not counted may not go on for too long.
        """

    async def watch(self, lease: Lease) -> None:
        """Return when work on the job is of no use any more: the lease was lost, or the file cancelled.

        Also when somebody waits to delete or cancel the file and the job is in the way. Within 2 s.
        """

    async def renew(self, lease: Lease, lease_s: float) -> None:
        """Hold on for `lease_s` more seconds.

        Raises `LeaseLost`; also when the membership is no longer `in_progress` (cancelled).
        """

    async def complete(self, lease: Lease, published: Published) -> None:
        """Set the membership `completed`. Raises `LeaseLost` as `renew` does, and then changes nothing."""

    async def fail(self, lease: Lease, error: LastError) -> None:
        """Set the membership `failed`, for good. Raises `LeaseLost`, and then changes nothing."""

    async def retry(self, lease: Lease, delay_s: float, error: LastError, *, counted: bool) -> bool:
        """Give the job back, due after `delay_s`; failed with `error` when it has had its last chance.

        Returns whether there will be another attempt.
        A `counted` attempt may have failed by the file's fault, and there are only so many. One that is not
        (something Sherlock needs was down) uses none up, and may be repeated until the outage has lasted too
        long. Raises `LeaseLost`, and then changes nothing.
        """

    async def release(self, lease: Lease) -> None:
        """Give the job back unharmed, due at once, not counted as an attempt: the worker is stopping."""

    async def depth(self) -> int:
        """Jobs that wait or run."""

    async def activity(self) -> QueueActivity:
        """How the queue stands, and how long the jobs completed last took. Costs no more than a count."""

    async def waiting(self, limit: int) -> int:
        """Jobs that wait, counted no further than `limit`."""

    async def wait_for_work(self, timeout_s: float) -> None:
        """Return when a job was queued, or after `timeout_s`; spurious returns are allowed."""


class ChunkIndex(Protocol):
    """Chunks, vectors and keyword terms of the files in vector stores."""

    async def staged(self, lease: Lease) -> Mapping[int, bytes]:
        """Chunks kept by this or an earlier attempt of the job: chunk index -> its `digest`.

        Empty for a lease that is lost: `stage` and `publish` are the ones to say so.
        """

    async def encoded(
        self, workspace_id: WorkspaceId, encoder: Encoder, digests: Collection[bytes]
    ) -> Mapping[bytes, Sequence[Vector]]:
        """Windows that `encoder` made of texts with these digests (`Chunk.digest`), in whichever store.

        Of published chunks of the workspace alone; digests of which it has none are left out.
        """

    async def stage(self, lease: Lease, chunks: Sequence[EmbeddedChunk]) -> None:
        """Keep finished chunks beside the index, invisible to search; the same index again replaces.

        Raises `LeaseLost`, and `InvalidFile` for text that cannot be stored.
        """

    async def stage_copy(self, lease: Lease, read_by: str) -> Staged | None:
        """Stage what another store of the workspace holds of the job's file, if it is what would be made.

        That is: completed, `read_by` the same reader, cut to the same sizes, by the same encoder. `None`:
        there is nothing such, or it went meanwhile; what is staged then may be staged again. Raises
        `LeaseLost`.
        """

    async def publish(self, lease: Lease, chunk_count: int) -> Published:
        """Make the staged chunks 0..chunk_count-1 the file's chunks in the store; searches find all or none.

        Replaces whatever was there, and may be repeated; broken off, it goes on where it was, here or in the
        job's next attempt. Raises `LeaseLost`; also when the file has gone.
        """

    async def clear_unpublished(self) -> bool:
        """Remove some of what publishing left behind when its job ended; whether there may be more."""

    async def search(self, workspace_id: WorkspaceId, query: IndexQuery) -> list[Candidate]:
        """The best chunks by either leg, each once, with both scores; at most twice `query.candidates`.

        In no order that means anything. Unknown stores and expired files yield nothing. Never fewer than
        filter and operators allow: `min(candidates, qualifying chunks)` of the dense leg when `alpha` > 0.
        """

    async def chunks(self, workspace_id: WorkspaceId, vector_store_id: str, file_id: str) -> list[Chunk]:
        """Every chunk of the file in the store, by chunk index."""


class DocumentReader(Protocol):
    """Files to chunks. A file can be made to do harm: whatever it does, it fails alone."""

    async def version(self) -> str:
        """The same as long as the same file is read and cut into the same chunks."""

    def chunks(
        self,
        path: Path,
        filename: str,
        chunking: ChunkingStrategy,
        noted: Callable[[ReadingNotes], None] | None = None,
    ) -> AsyncGenerator[list[Chunk], None]:
        """The chunks of the file in `path`, uploaded as `filename`, in order; no batch is empty.

        `noted` is called once, when all of the file is read. Batches are the same each time, and a constant
        number of them is read ahead. Closing ends the reading, wherever it stands; then nobody uses the file
        any more. Raises `UnsupportedFile` or `InvalidFile`, where the file is at fault: batches may have come
        before.
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
