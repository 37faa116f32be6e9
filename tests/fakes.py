"""In-memory ports. Each passes the behaviour suite of its port in `tests/ports`, like the real adapters.

`InMemoryCatalog` and `InMemoryIngestQueue` share one `MemoryState`, for attaching a file queues a job.
"""

import asyncio
import itertools
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from sherlock.rag import tracing
from sherlock.rag.domain.correlation import UNKNOWN, Correlation
from sherlock.rag.domain.errors import (
    Conflict,
    InvalidRequest,
    LeaseLost,
    NotFound,
    ReservationLost,
    VectorStoreExpired,
)
from sherlock.rag.domain.models import (
    Attachment,
    Attributes,
    ChunkingStrategy,
    FileCounts,
    IngestJob,
    JobState,
    LastError,
    Lease,
    Page,
    PageRequest,
    Published,
    Purpose,
    QueueActivity,
    Status,
    StoredFile,
    Unset,
    Upload,
    UploadPart,
    VectorStore,
    VectorStoreChanges,
    VectorStoreFile,
    WorkspaceId,
)

T = TypeVar("T")

FileKey = tuple[WorkspaceId, str]
StoreKey = tuple[WorkspaceId, str]
MembershipKey = tuple[WorkspaceId, str, str]
"""Workspace, vector store, file."""

JOB_BYTES = FEW_PAGES_BYTES = 65_536
LARGE_BYTES = 2_097_152
"""What a job costs beside its file's bytes; where the second and third size class begin."""
RECENT_JOBS = 20

# ── catalog and ingest queue ────────────────────────────────────────────────


@dataclass
class MemoryMembership:
    value: VectorStoreFile
    attached_at: float
    read_by: str = ""


@dataclass
class MemoryJob:
    id: int
    membership: MembershipKey
    size_class: int
    turn: int
    run_after: float
    created_at: int
    state: JobState = "waiting"
    attempt: int = 0
    failures: int = 0
    outage_since: float | None = None
    owner: str = ""
    lease_until: float = 0.0
    lost_owners: "list[str]" = field(default_factory=list)
    finished_at: int | None = None
    reason: str | None = None
    correlation: Correlation = UNKNOWN
    stage_ms: Mapping[str, float] = field(default_factory=dict)

    @property
    def running(self) -> bool:
        return self.state == "running"

    def end(self, state: JobState, reason: str | None = None) -> None:
        self.state, self.reason, self.finished_at = state, reason, int(time.time())


@dataclass
class LooseObject:
    due_at: float
    going: bool = False


@dataclass
class MemoryState:
    """What the database would hold."""

    files: dict[FileKey, StoredFile] = field(default_factory=dict)
    stores: dict[StoreKey, VectorStore] = field(default_factory=dict)
    memberships: dict[MembershipKey, MemoryMembership] = field(default_factory=dict)
    all_jobs: dict[int, MemoryJob] = field(default_factory=dict)
    clock: int = 0
    """The furthest turn that was claimed."""
    on_restart: "list[Callable[[MembershipKey, Status], None]]" = field(default_factory=list)
    """Told of a membership that starts over, and how it had ended."""
    uploads: dict[tuple[WorkspaceId, str], Upload] = field(default_factory=dict)
    parts: dict[FileKey, UploadPart] = field(default_factory=dict)
    loose_objects: dict[FileKey, LooseObject] = field(default_factory=dict)
    job_ids: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))
    queued: asyncio.Event = field(default_factory=asyncio.Event)

    def end_reservation(self, key: FileKey) -> None:
        if key not in self.loose_objects or self.loose_objects[key].going:
            raise ReservationLost
        del self.loose_objects[key]

    @property
    def jobs(self) -> dict[int, MemoryJob]:
        """Those that wait or run."""
        return {id: job for id, job in self.all_jobs.items() if job.state in ("waiting", "running")}

    def queue(self, keys: Sequence[MembershipKey]) -> None:
        """Queue files of one workspace together, each with its turn."""
        if not keys:
            return
        waiting = [
            job
            for job in self.all_jobs.values()
            if job.state == "waiting" and job.membership[0] == keys[0][0]
        ]
        came = list(self.files)
        used = 0
        for size_class, _, key in sorted((self._size_class(k), came.index((k[0], k[2])), k) for k in keys):
            used += self.files[key[0], key[2]].bytes + JOB_BYTES
            last = max((job.turn for job in waiting if job.size_class <= size_class), default=0)
            id = next(self.job_ids)
            self.all_jobs[id] = MemoryJob(
                id,
                key,
                size_class,
                turn=max(self.clock, last) + used,
                run_after=time.monotonic(),
                created_at=int(time.time()),
                correlation=tracing.current(),
            )
        self.queued.set()

    def _size_class(self, key: MembershipKey) -> int:
        size = self.files[key[0], key[2]].bytes
        return (size > FEW_PAGES_BYTES) + (size > LARGE_BYTES)

    def drop_jobs(self, key: MembershipKey) -> None:
        self.all_jobs = {id: job for id, job in self.all_jobs.items() if job.membership != key}

    def cancel(self, key: MembershipKey) -> None:
        if self.memberships[key].value.status == "in_progress":
            self.change(key, status="cancelled")
            for job in self.jobs.values():
                if job.membership == key:
                    job.end("cancelled")

    def drop_memberships(self, keys: Iterable[MembershipKey]) -> None:
        for key in list(keys):
            del self.memberships[key]
            self.drop_jobs(key)

    def change(self, key: MembershipKey, **changes: object) -> VectorStoreFile:
        membership = self.memberships[key]
        membership.value = replace(membership.value, **changes)  # type: ignore[arg-type]
        return membership.value


class InMemoryCatalog:
    """`Catalog` over a `MemoryState`."""

    def __init__(self, state: MemoryState | None = None) -> None:
        self.state = state or MemoryState()

    async def add_file(self, file: StoredFile, *, reserved: bool = False) -> None:
        check_text(file.filename, "filename")
        if (file.workspace_id, file.id) in self.state.files:
            raise Conflict("A file with this id exists already.")
        if reserved:
            self.state.end_reservation((file.workspace_id, file.id))
        self.state.files[file.workspace_id, file.id] = file

    async def get_file(self, workspace_id: WorkspaceId, file_id: str) -> StoredFile:
        return self._file(workspace_id, file_id)

    async def list_files(
        self, workspace_id: WorkspaceId, page: PageRequest, purpose: Purpose | None = None
    ) -> Page[StoredFile]:
        files = [file for (workspace, _), file in self.state.files.items() if workspace == workspace_id]
        keys = {file.id: (file.created_at, number) for number, file in enumerate(files)}
        shown = [file for file in files if purpose in (None, file.purpose) and not has_expired(file)]
        return page_of(shown, lambda file: keys[file.id], keys, page, "File")

    async def delete_file(self, workspace_id: WorkspaceId, file_id: str) -> StoredFile:
        file = self._file(workspace_id, file_id)
        self.state.drop_memberships(
            k for k in self.state.memberships if (k[0], k[2]) == (workspace_id, file_id)
        )
        del self.state.files[workspace_id, file_id]
        self.state.loose_objects[workspace_id, file_id] = LooseObject(time.monotonic(), going=True)
        return file

    async def recorded(self, workspace_id: WorkspaceId, object_ids: Collection[str]) -> set[str]:
        known = self.state.files.keys() | self.state.parts.keys() | self.state.loose_objects.keys()
        return {id for id in object_ids if (workspace_id, id) in known}

    async def add_vector_store(
        self, store: VectorStore, file_ids: Sequence[str], chunking: ChunkingStrategy
    ) -> VectorStore:
        check_text(store.name, "name")
        check_text(store.description or "", "description")
        check_map(store.metadata, "metadata")
        for file_id in file_ids:
            self._file(store.workspace_id, file_id)
        if (store.workspace_id, store.id) in self.state.stores:
            raise Conflict("The vector store exists already.")
        self.state.stores[store.workspace_id, store.id] = store
        wanted = [Attachment(file_id, chunking) for file_id in dict.fromkeys(file_ids)]
        self._attach(store.workspace_id, store.id, wanted, "file_ids")
        return self._store(store.workspace_id, store.id)

    async def get_vector_store(self, workspace_id: WorkspaceId, vector_store_id: str) -> VectorStore:
        return self._store(workspace_id, vector_store_id)

    async def find_vector_stores(
        self, workspace_id: WorkspaceId, vector_store_ids: Sequence[str]
    ) -> list[VectorStore]:
        ids = [i for i in dict.fromkeys(vector_store_ids) if (workspace_id, i) in self.state.stores]
        return [replace(self._store(workspace_id, i), file_counts=FileCounts(), usage_bytes=0) for i in ids]

    async def list_vector_stores(self, workspace_id: WorkspaceId, page: PageRequest) -> Page[VectorStore]:
        stores = [self._store(*key) for key in self.state.stores if key[0] == workspace_id]
        keys = {store.id: (store.created_at, number) for number, store in enumerate(stores)}
        return page_of(stores, lambda store: keys[store.id], keys, page, "VectorStore")

    async def update_vector_store(
        self, workspace_id: WorkspaceId, vector_store_id: str, changes: VectorStoreChanges
    ) -> VectorStore:
        store = self._store(workspace_id, vector_store_id)
        if not isinstance(changes.name, Unset):
            check_text(changes.name or "", "name")
            store = replace(store, name=changes.name or "")
        if not isinstance(changes.metadata, Unset):
            check_map(changes.metadata, "metadata")
            store = replace(store, metadata=changes.metadata)
        if not isinstance(changes.expires_after_days, Unset):
            if store.expired:
                raise VectorStoreExpired(vector_store_id, param="expires_after")
            store = replace(store, expires_after_days=changes.expires_after_days)
        if not store.expired:
            store = replace(store, last_active_at=int(time.time()))
        self.state.stores[workspace_id, vector_store_id] = store
        return self._store(workspace_id, vector_store_id)

    async def touch_vector_stores(self, workspace_id: WorkspaceId, vector_store_ids: Sequence[str]) -> None:
        self.touch(workspace_id, vector_store_ids)

    def touch(self, workspace_id: WorkspaceId, vector_store_ids: Sequence[str]) -> None:
        for key in {(workspace_id, i) for i in vector_store_ids} & self.state.stores.keys():
            if not self._store(*key).expired:
                self.state.stores[key] = replace(self.state.stores[key], last_active_at=int(time.time()))

    async def delete_vector_store(self, workspace_id: WorkspaceId, vector_store_id: str) -> None:
        self._store(workspace_id, vector_store_id)
        self.state.drop_memberships(
            k for k in self.state.memberships if k[:2] == (workspace_id, vector_store_id)
        )
        del self.state.stores[workspace_id, vector_store_id]

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
        wanted = [Attachment(file_id, chunking, chunking_given, attributes)]
        self.attach(workspace_id, vector_store_id, wanted, "file_id")
        return self._membership(workspace_id, vector_store_id, file_id)

    def attach(
        self,
        workspace_id: WorkspaceId,
        vector_store_id: str,
        attachments: Sequence[Attachment],
        param: str = "file_ids",
    ) -> None:
        """All or none, as every method that attaches does."""
        if self._store(workspace_id, vector_store_id).expired:
            raise VectorStoreExpired(vector_store_id)
        self._attach(workspace_id, vector_store_id, attachments, param)
        self.touch(workspace_id, [vector_store_id])

    def _attach(
        self, workspace_id: WorkspaceId, vector_store_id: str, attachments: Sequence[Attachment], param: str
    ) -> None:
        for one in attachments:
            check_map(one.attributes, "attributes")
            self._file(workspace_id, one.file_id, param)
            known = self.state.memberships.get((workspace_id, vector_store_id, one.file_id))
            stands = known and known.value.status not in ("failed", "cancelled")
            if known and stands and one.chunking_given and one.chunking != known.value.chunking:
                raise Conflict("The file is already attached with another chunking strategy.")
        now, queued = time.time(), []
        for one in attachments:
            key = (workspace_id, vector_store_id, one.file_id)
            if key not in self.state.memberships:
                self._add_membership(key, one, now)
                queued.append(key)
                continue
            status = self.state.memberships[key].value.status
            if status in ("failed", "cancelled"):
                for told in self.state.on_restart:
                    told(key, status)
                self.state.drop_jobs(key)
                self.state.change(key, status="in_progress", last_error=None, chunking=one.chunking)
                queued.append(key)
            if one.attributes is not None:
                self.state.change(key, attributes=floats(one.attributes))
        self.state.queue(queued)

    async def get_membership(
        self, workspace_id: WorkspaceId, vector_store_id: str, file_id: str
    ) -> VectorStoreFile:
        return self._membership(workspace_id, vector_store_id, file_id)

    async def list_memberships(
        self, workspace_id: WorkspaceId, vector_store_id: str, page: PageRequest, status: Status | None = None
    ) -> Page[VectorStoreFile]:
        self._store(workspace_id, vector_store_id)
        members = [m for k, m in self.state.memberships.items() if k[:2] == (workspace_id, vector_store_id)]
        came = list(self.state.files)
        keys = {
            m.value.file_id: (m.attached_at, came.index((workspace_id, m.value.file_id))) for m in members
        }
        shown = [
            m.value
            for m in members
            if status in (None, m.value.status)
            and not has_expired(self.state.files[workspace_id, m.value.file_id])
        ]
        return page_of(shown, lambda value: keys[value.file_id], keys, page, "VectorStoreFile")

    async def update_attributes(
        self, workspace_id: WorkspaceId, vector_store_id: str, file_id: str, attributes: Attributes | None
    ) -> VectorStoreFile:
        self._membership(workspace_id, vector_store_id, file_id)
        check_map(attributes, "attributes")
        return self.state.change((workspace_id, vector_store_id, file_id), attributes=floats(attributes))

    async def detach_file(self, workspace_id: WorkspaceId, vector_store_id: str, file_id: str) -> None:
        key = (workspace_id, vector_store_id, file_id)
        if key not in self.state.memberships:
            raise NotFound("VectorStoreFile", file_id)
        self.state.drop_memberships([key])

    async def expire_vector_stores(self, limit: int) -> int:
        overdue = [
            key for key, store in self.state.stores.items() if self._store(*key).expired and not store.expired
        ]
        for key in overdue[:limit]:
            self.state.stores[key] = replace(self.state.stores[key], expired=True)
        return len(overdue[:limit])

    async def expired_memberships(self, limit: int) -> list[tuple[WorkspaceId, str, str]]:
        return [
            (workspace_id, store_id, file_id)
            for workspace_id, store_id, file_id in self.state.memberships
            if self.state.stores[workspace_id, store_id].expired
            or has_expired(self.state.files[workspace_id, file_id])
        ][:limit]

    async def expired_files(self, limit: int) -> list[StoredFile]:
        attached = {(workspace_id, file_id) for workspace_id, _, file_id in self.state.memberships}
        expired = [
            file for key, file in self.state.files.items() if has_expired(file) and key not in attached
        ]
        return sorted(expired, key=lambda file: file.expires_at or 0)[:limit]

    async def remove_expired_file(self, workspace_id: WorkspaceId, file_id: str) -> None:
        file = self.state.files.get((workspace_id, file_id))
        if file is not None and has_expired(file):
            del self.state.files[workspace_id, file_id]

    async def cancel_file(
        self, workspace_id: WorkspaceId, vector_store_id: str, file_id: str
    ) -> VectorStoreFile:
        self._membership(workspace_id, vector_store_id, file_id)
        self.state.cancel((workspace_id, vector_store_id, file_id))
        return self._membership(workspace_id, vector_store_id, file_id)

    async def check(self) -> None:
        return None

    def _file(self, workspace_id: WorkspaceId, file_id: str, param: str = "id") -> StoredFile:
        file = self.state.files.get((workspace_id, file_id))
        if file is None or has_expired(file):
            raise NotFound("File", file_id, param=param)
        return file

    def _store(self, workspace_id: WorkspaceId, vector_store_id: str) -> VectorStore:
        key = (workspace_id, vector_store_id)
        if key not in self.state.stores:
            raise NotFound("VectorStore", vector_store_id)
        store = self.state.stores[key]
        files = [
            m.value
            for k, m in self.state.memberships.items()
            if k[:2] == key and not has_expired(self.state.files[k[0], k[2]])
        ]
        statuses = [file.status for file in files]
        days = store.expires_after_days
        expires_at = None if days is None else store.last_active_at + days * 86_400
        return replace(
            store,
            file_counts=FileCounts(
                in_progress=statuses.count("in_progress"),
                completed=statuses.count("completed"),
                failed=statuses.count("failed"),
                cancelled=statuses.count("cancelled"),
            ),
            usage_bytes=sum(file.usage_bytes for file in files),
            expires_at=expires_at,
            expired=store.expired or (expires_at is not None and expires_at <= time.time()),
        )

    def _membership(self, workspace_id: WorkspaceId, vector_store_id: str, file_id: str) -> VectorStoreFile:
        key = (workspace_id, vector_store_id, file_id)
        if key not in self.state.memberships or has_expired(self.state.files[workspace_id, file_id]):
            raise NotFound("VectorStoreFile", file_id)
        return self.state.memberships[key].value

    def _add_membership(self, key: MembershipKey, attachment: Attachment, now: float) -> None:
        workspace_id, vector_store_id, file_id = key
        value = VectorStoreFile(
            file_id=file_id,
            vector_store_id=vector_store_id,
            filename=self.state.files[workspace_id, file_id].filename,
            status="in_progress",
            chunking=attachment.chunking,
            created_at=int(now),
            attributes=floats(attachment.attributes),
        )
        self.state.memberships[key] = MemoryMembership(value, now)


class InMemoryIngestQueue:
    """`IngestQueue` over a `MemoryState`."""

    def __init__(self, state: MemoryState, *, max_attempts: int = 5, outage_limit_s: float = 86_400) -> None:
        self.state = state
        self.max_attempts = max_attempts
        self.outage_limit_s = outage_limit_s

    async def claim(self, owner: str, lease_s: float) -> IngestJob | None:
        now = time.monotonic()
        for job in [j for j in self.state.jobs.values() if j.running and j.lease_until < now]:
            spent = job.failures + 1 >= self.max_attempts or self._outage_s(job) >= self.outage_limit_s
            if spent and job.lease_until >= now - lease_s:
                continue
            job.state = "waiting"
            job.failures += 1
            job.lost_owners.append(job.owner)
            if spent:
                self._fail(job, LastError("server_error", "The worker stopped at every attempt."))
        due = [j for j in self.state.jobs.values() if not j.running and j.run_after <= now]
        if not due:
            return None
        job = min(due, key=lambda j: (j.turn, j.id))
        job.state, job.owner, job.lease_until = "running", owner, now + lease_s
        job.attempt += 1
        self.state.clock = max(self.state.clock, job.turn)
        workspace_id, vector_store_id, file_id = job.membership
        file = self.state.files[workspace_id, file_id]
        return IngestJob(
            lease=Lease(job.id, job.attempt, owner),
            workspace_id=workspace_id,
            vector_store_id=vector_store_id,
            file_id=file_id,
            filename=file.filename,
            bytes=file.bytes,
            chunking=self.state.memberships[job.membership].value.chunking,
            encoder=self.state.stores[workspace_id, vector_store_id].encoder,
            correlation=job.correlation,
        )

    async def vouch(self, owner: str) -> None:
        for job in list(self.state.jobs.values()):
            held, lost = job.running and job.owner == owner, job.lost_owners.count(owner)
            if held and self._outage_s(job) >= self.outage_limit_s:
                self._fail(job, LastError("server_error", "Something was down for too long."))
            elif held or lost:
                job.outage_since = job.outage_since or time.monotonic()
                job.state = "waiting" if held else job.state
                job.failures -= lost
                job.lost_owners = [other for other in job.lost_owners if other != owner]

    async def watch(self, lease: Lease) -> None:
        while self._is_held(lease):  # noqa: ASYNC110 - whatever ends a job tells nobody
            await asyncio.sleep(0.02)

    async def renew(self, lease: Lease, lease_s: float) -> None:
        self._held(lease).lease_until = time.monotonic() + lease_s

    async def complete(self, lease: Lease, published: Published) -> None:
        job = self._held(lease)
        self.state.change(
            job.membership,
            status="completed",
            chunk_count=published.chunk_count,
            usage_bytes=published.usage_bytes,
            notes=published.notes,
        )
        self.state.memberships[job.membership].read_by = published.read_by
        job.end("done")
        job.stage_ms = published.stage_ms

    async def fail(self, lease: Lease, error: LastError) -> None:
        job = self._held(lease)
        job.failures += 1
        self._fail(job, error)

    async def retry(self, lease: Lease, delay_s: float, error: LastError, *, counted: bool) -> bool:
        job, now = self._held(lease), time.monotonic()
        job.state, job.run_after, job.reason = "waiting", now + delay_s, error.message
        if counted:
            job.failures += 1
            job.outage_since = None
        elif job.outage_since is None:
            job.outage_since = now
        spent = job.failures >= self.max_attempts or self._outage_s(job) >= self.outage_limit_s
        if spent:
            self._fail(job, error)
        return not spent

    async def release(self, lease: Lease) -> None:
        job = self._held(lease)
        job.state, job.run_after = "waiting", time.monotonic()
        self.state.queued.set()

    async def depth(self) -> int:
        return len(self.state.jobs)

    async def activity(self) -> QueueActivity:
        waiting = [job for job in self.state.jobs.values() if not job.running]
        done = [job for job in self.state.all_jobs.values() if job.state == "done"]
        recent = [job.stage_ms for job in done[-RECENT_JOBS:] if job.stage_ms]
        stages = {name: [ms[name] for ms in recent if name in ms] for ms in recent for name in ms}
        return QueueActivity(
            waiting=len(waiting),
            running=len(self.state.jobs) - len(waiting),
            oldest_age_s=max((time.time() - job.created_at for job in waiting), default=0.0),
            recent_jobs=max(map(len, stages.values()), default=0),
            stage_ms={name: round(sum(times) / len(times), 1) for name, times in stages.items()},
        )

    async def waiting(self, limit: int) -> int:
        return min(limit, sum(not job.running for job in self.state.jobs.values()))

    async def wait_for_work(self, timeout_s: float) -> None:
        try:
            await asyncio.wait_for(self.state.queued.wait(), timeout_s)
        except TimeoutError:
            return
        self.state.queued.clear()

    def _outage_s(self, job: MemoryJob) -> float:
        return 0 if job.outage_since is None else time.monotonic() - job.outage_since

    def _held(self, lease: Lease) -> MemoryJob:
        job = self.state.jobs.get(lease.job_id)
        if job is None or not job.running or (job.attempt, job.owner) != (lease.attempt, lease.owner):
            raise LeaseLost()
        return job

    def _is_held(self, lease: Lease) -> bool:
        try:
            self._held(lease)
        except LeaseLost:
            return False
        return True

    def _fail(self, job: MemoryJob, error: LastError) -> None:
        self.state.change(job.membership, status="failed", last_error=error)
        job.end("failed", error.message)


def has_expired(file: StoredFile) -> bool:
    return file.expires_at is not None and file.expires_at <= time.time()


def page_of(
    items: Sequence[T],
    key: Callable[[T], tuple[float, int]],
    cursors: Mapping[str, tuple[float, int]],
    page: PageRequest,
    kind: str,
) -> Page[T]:
    """One page of `items` by `key`; `cursors` are the keys of everything a cursor may name."""
    descending = page.order == "desc"
    for param, cursor in (("after", page.after), ("before", page.before)):
        if cursor is None:
            continue
        if cursor not in cursors:
            raise NotFound(kind, cursor, param=param)
        later = (param == "after") != descending
        edge = cursors[cursor]
        items = [item for item in items if (key(item) > edge if later else key(item) < edge)]
    ordered = sorted(items, key=key, reverse=descending)
    has_more = len(ordered) > page.limit
    from_the_end = page.before is not None and page.after is None
    shown = ordered[-page.limit :] if from_the_end else ordered[: page.limit]
    return Page(tuple(shown), has_more)


def check_text(text: str, param: str) -> None:
    """PostgreSQL holds neither NUL nor lone surrogates, so no catalog does."""
    if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
        raise InvalidRequest(f"'{param}' holds a character that cannot be stored.", param=param)


def check_map(values: Mapping[str, object] | None, param: str) -> None:
    for name, value in (values or {}).items():
        check_text(name, param)
        if isinstance(value, str):
            check_text(value, param)
        if isinstance(value, float) and value - value != 0:  # infinite, or not a number
            raise InvalidRequest(f"'{param}' holds a number that cannot be stored.", param=param)


def floats(attributes: Attributes | None) -> Attributes | None:
    if attributes is None:
        return None
    return {n: v if isinstance(v, str | bool) else float(v) for n, v in attributes.items()}
