"""`Catalog` in PostgreSQL: files, vector stores, and which file stands in which store.

Locks are taken in one order everywhere, so that nobody deadlocks: store, batch, membership (those of one file
by store number, those of one store by file number), file, turns, job, term frequencies. Inserting a row locks
what its foreign keys name. The trigger that counts a store's files makes a lock that the transaction has on
the store already a stronger one.
"""

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NoReturn, TypeVar

from sqlalchemy import Row, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.elements import TextClause

from sherlock.rag import tracing
from sherlock.rag.adapters.postgres import INGEST_CHANNEL, WAKE_WORKERS, Database, check_id, storable
from sherlock.rag.adapters.postgres_files import (
    FILE_COLUMNS,
    FILES,
    GET_FILE,
    UNEXPIRED,
    insert_file,
    stored_file,
)
from sherlock.rag.domain.errors import (
    Conflict,
    DatabaseUnavailable,
    InvalidRequest,
    NotFound,
    VectorStoreExpired,
)
from sherlock.rag.domain.models import (
    Attachment,
    Attributes,
    ChunkingStrategy,
    Encoder,
    FileCounts,
    LastError,
    Page,
    PageRequest,
    Purpose,
    ReadingNotes,
    Status,
    StoredFile,
    Unset,
    VectorStore,
    VectorStoreChanges,
    VectorStoreFile,
    WorkspaceId,
)

_DAY_S = 86_400
_ATTACH_TRIES = 20
_LONGEST_PAUSE_S = 0.05

_COSTS = {
    "job_bytes": 65_536,  # what it takes to begin and end a job, in bytes of a file
    "few_pages_bytes": 65_536,
    "large_bytes": 2_097_152,
}
"""How much of its workspace's share a job uses up, and what makes the size classes 0, 1 and 2."""


@dataclass(frozen=True, slots=True)
class Listing:
    """A list that is read in pages, ordered by a time and, within it, a number."""

    kind: str
    """What a cursor names."""
    rows: str
    """Selects the whole list, in any order."""
    time: str
    number: str
    cursor: TextClause
    """Where the row `:cursor` stands: its `time` and `number`."""


# ── files ──

_LIST_FILES = Listing(
    "File",
    f"{FILES} and purpose = coalesce(CAST(:purpose AS text), purpose)",
    "created_at",
    "file_no",
    cursor=text("""
        select created_at as time, file_no as number from knowledge_files
        where workspace_id = :workspace_id and id = :cursor
    """),
)

# The stores a file is in, in the order their memberships are locked.
_STORES_OF_FILE = text("""
    select vector_store_id from vector_store_files
    where workspace_id = :workspace_id and file_id = :file_id order by store_no
""")

# From here on the file's object belongs to nothing, and goes.
_DELETE_FILE = text(f"""
    with deleted as (
        delete from knowledge_files where workspace_id = :workspace_id and id = :id returning {FILE_COLUMNS}
    ), loose as (
        insert into loose_objects (workspace_id, id, due_at, going)
        select workspace_id, id, now(), true from deleted
        on conflict (workspace_id, id) do update set going = true
    )
    select {FILE_COLUMNS} from deleted
""")

# Whatever the file store may hold of a workspace.
_RECORDED = text("""
    select id from knowledge_files where workspace_id = :workspace_id and id = any(CAST(:ids AS text[]))
    union all
    select id from upload_objects where workspace_id = :workspace_id and id = any(CAST(:ids AS text[]))
    union all
    select id from loose_objects where workspace_id = :workspace_id and id = any(CAST(:ids AS text[]))
""")

_EXPIRED_FILES = text(f"""
    select {FILE_COLUMNS} from knowledge_files f
    where expires_at <= now() and not exists (
        select from vector_store_files m where m.workspace_id = f.workspace_id and m.file_id = f.id)
    order by expires_at limit :limit
""")

_REMOVE_EXPIRED_FILE = text("""
    delete from knowledge_files where workspace_id = :workspace_id and id = :id and expires_at <= now()
""")

# ── vector stores ──

# Null where a store never expires. A day has 24 hours, whatever the clocks of the server's time zone do.
_OVERDUE = "last_active_at <= now() - make_interval(hours => 24 * expires_after_days)"
_EXPIRED = f"coalesce(expired_at is not null or {_OVERDUE}, false)"

_ADD_STORE = text("""
    with workspace as (insert into workspaces (id) values (:workspace_id) on conflict do nothing)
    insert into vector_stores (workspace_id, id, name, description, metadata, encoder, dimension,
                               expires_after_days, created_at, last_active_at)
    values (:workspace_id, :id, :name, :description, CAST(:metadata AS jsonb), :encoder, :dimension,
            :expires_after_days, to_timestamp(:created_at), to_timestamp(:last_active_at))
    on conflict do nothing returning id
""")

_STORES = f"""
    select id, workspace_id, name, description, metadata, encoder, dimension, expires_after_days,
           created_at, last_active_at, {_EXPIRED} as expired
    from vector_stores where workspace_id = :workspace_id
"""
_GET_STORES = text(f"{_STORES} and id = any(CAST(:ids AS text[]))")
_LIST_STORES = Listing(
    "VectorStore",
    _STORES,
    "created_at",
    "store_no",
    cursor=text("""
        select created_at as time, store_no as number from vector_stores
        where workspace_id = :workspace_id and id = :cursor
    """),
)

# How the files of some stores stand, counted where they lie: there is no second number that could drift.
_COUNTS = text(f"""
    select vector_store_id,
           count(*) filter (where status = 'in_progress') as in_progress,
           count(*) filter (where status = 'completed') as completed,
           count(*) filter (where status = 'failed') as failed,
           count(*) filter (where status = 'cancelled') as cancelled,
           CAST(sum(usage_bytes) AS bigint) as usage_bytes
    from vector_store_files m join knowledge_files f on f.file_no = m.file_no
    where m.workspace_id = :workspace_id and vector_store_id = any(CAST(:ids AS text[])) and {UNEXPIRED}
    group by vector_store_id
""")

# What is not given stays; what is given as null is cleared.
_UPDATE_STORE = text(f"""
    update vector_stores set
        name = case when :name_given then coalesce(CAST(:name AS text), '') else name end,
        metadata = case when :metadata_given then CAST(:metadata AS jsonb) else metadata end,
        expires_after_days = case when :expiry_given then CAST(:expiry AS int) else expires_after_days end,
        expired_at = case when {_EXPIRED} then coalesce(expired_at, now()) end,
        last_active_at = case when {_EXPIRED} then last_active_at else now() end
    where workspace_id = :workspace_id and id = :id returning id
""")

# Once a second is often enough: nobody sees finer times, and searches need not write each time. Nor need they
# wait for a store that is locked, by another search or while its files change.
_TOUCH_STORES = text(f"""
    with stale as (
        select id from vector_stores
        where workspace_id = :workspace_id and id = any(CAST(:ids AS text[]))
          and last_active_at < date_trunc('second', now()) and not {_EXPIRED}
        for no key update skip locked
    )
    update vector_stores s set last_active_at = now() from stale
    where s.workspace_id = :workspace_id and s.id = stale.id
""")

# Of two workers each notes its own; a store that is in use right now is looked at again the next time.
_EXPIRE_STORES = text(f"""
    with overdue as (
        select store_no from vector_stores
        where expires_after_days is not null and expired_at is null and {_OVERDUE}
        order by store_no limit :limit
        for no key update skip locked
    )
    update vector_stores s set expired_at = now() from overdue where s.store_no = overdue.store_no
    returning s.store_no
""")

# Memberships, jobs, chunks and term frequencies go along by foreign key.
_DELETE_STORE = text("delete from vector_stores where workspace_id = :workspace_id and id = :id returning id")

# ── memberships ──

# Attaches those of the files that exist and are not attached yet. Of two at the same time, the second waits
# and then adds nothing.
_ATTACH = text(f"""
    insert into vector_store_files (workspace_id, vector_store_id, file_id, store_no, file_no, attributes,
                                    max_chunk_size_tokens, chunk_overlap_tokens)
    select s.workspace_id, s.id, f.id, s.store_no, f.file_no,
           CAST(w.attributes AS jsonb), w.size, w.overlap
    from unnest(CAST(:file_ids AS text[]), CAST(:attributes AS text[]), CAST(:sizes AS int[]),
                CAST(:overlaps AS int[])) as w (file_id, attributes, size, overlap)
    join knowledge_files f on f.workspace_id = :workspace_id and f.id = w.file_id and {UNEXPIRED}
    join vector_stores s on s.workspace_id = :workspace_id and s.id = :vector_store_id
    order by f.file_no
    on conflict do nothing returning file_id
""")

# Those that were attached before, locked in one order.
_LOCK_ATTACHED = text(f"""
    select m.file_id, m.status, m.max_chunk_size_tokens, m.chunk_overlap_tokens
    from vector_store_files m join knowledge_files f on f.file_no = m.file_no
    where m.workspace_id = :workspace_id and m.vector_store_id = :vector_store_id
      and m.file_id = any(CAST(:file_ids AS text[])) and {UNEXPIRED}
    order by m.file_no for update of m
""")

_KNOWN_FILES = text(f"""
    select id from knowledge_files f
    where workspace_id = :workspace_id and id = any(CAST(:file_ids AS text[])) and {UNEXPIRED}
""")

# A failed or cancelled membership starts over; its earlier jobs, and what they had staged, go. A batch it was
# in remembers how it had ended.
_REMEMBER_END = text("""
    update file_batch_files b set ended = m.status
    from unnest(CAST(:file_ids AS text[])) as w (file_id)
    join vector_store_files m on m.workspace_id = :workspace_id and m.vector_store_id = :vector_store_id
        and m.file_id = w.file_id
    where b.workspace_id = :workspace_id and b.vector_store_id = :vector_store_id and b.file_id = w.file_id
      and b.ended is null
""")
_DROP_JOBS = text("""
    delete from ingest_jobs
    where workspace_id = :workspace_id and vector_store_id = :vector_store_id
      and file_id = any(CAST(:file_ids AS text[]))
""")
_START_OVER = text("""
    update vector_store_files m set status = 'in_progress', error_code = null, error_message = null,
        max_chunk_size_tokens = w.size, chunk_overlap_tokens = w.overlap,
        chunk_count = 0, window_count = 0, usage_bytes = 0, unconfirmed = false
    from unnest(CAST(:file_ids AS text[]), CAST(:sizes AS int[]),
                CAST(:overlaps AS int[])) as w (file_id, size, overlap)
    where m.workspace_id = :workspace_id and m.vector_store_id = :vector_store_id and m.file_id = w.file_id
""")

# What was published of them and never completed goes, or it would be found from now on: a search asks only
# files with a `chunk_count` for their status. Mostly the housekeeper was here before. Hidden chunks stay
# hidden until they are cleared. Term frequencies in key order, and last, as everywhere.
_DROP_CHUNKS = text("""
    with gone as (
        delete from knowledge_chunks c
        where c.workspace_id = :workspace_id and c.vector_store_id = :vector_store_id
          and c.file_id = any(CAST(:file_ids AS text[]))
          and (c.store_no, c.file_no) not in (select store_no, file_no from publishing)
        returning c.id
    ), counted as (
        select t.store_no, k as key, count(*) as df
        from gone join chunk_terms t on t.chunk_id = gone.id cross join lateral unnest(t.keys) k
        group by t.store_no, k
    ), locked as (
        select t.store_no, t.key from term_df t join counted using (store_no, key)
        order by t.key for update of t
    )
    update term_df t set df = t.df - c.df
    from locked join counted c using (store_no, key)
    where t.store_no = locked.store_no and t.key = locked.key
""")

_REPLACE_ATTRIBUTES = text("""
    update vector_store_files m set attributes = CAST(w.attributes AS jsonb)
    from unnest(CAST(:file_ids AS text[]), CAST(:attributes AS text[])) as w (file_id, attributes)
    where m.workspace_id = :workspace_id and m.vector_store_id = :vector_store_id and m.file_id = w.file_id
""")

# One at a time in a workspace, or two would get the same turns. Held to the end of the transaction, which
# locks no membership any more.
_LOCK_TURNS = text("""
    select pg_advisory_xact_lock(hashtextextended('sherlock.turns ' || CAST(:workspace_id AS text), 0))
""")

# Queues the files, each with its turn: the finish tag of self-clocked fair queueing (S. J. Golestani, "A
# self-clocked fair queueing scheme for broadband applications", INFOCOM 1994). A job comes its own cost after
# the workspace's last waiting job of its size class or a smaller one, or after the clock, which is the
# furthest turn claimed so far. So workspaces share by bytes, and small files overtake larger ones.
_QUEUE = text("""
    with clock as (
        select coalesce(max(turn), 0) as now from ingest_jobs where attempt > 0
    ), size_classes as (
        select n as size_class, max(j.last_turn) over (order by n) as last_turn
        from generate_series(0, 2) n cross join lateral (
            select max(turn) as last_turn from ingest_jobs
            where state = 'waiting' and workspace_id = :workspace_id and size_class = n
        ) j
    ), new as (
        select id, file_no, bytes + :job_bytes as cost,
               CAST(bytes > :few_pages_bytes AS int) + CAST(bytes > :large_bytes AS int) as size_class
        from knowledge_files
        where workspace_id = :workspace_id and id = any(CAST(:file_ids AS text[]))
    )
    insert into ingest_jobs (workspace_id, vector_store_id, file_id, size_class, turn,
                             request_id, traceparent)
    select :workspace_id, :vector_store_id, id, size_class,
           greatest(clock.now, last_turn) + sum(cost) over (order by size_class, file_no),
           CAST(:request_id AS text), CAST(:traceparent AS text)
    from new join size_classes using (size_class) cross join clock
    order by size_class, file_no
""")

# Asks workers to let go of the jobs that somebody is about to delete or cancel. Publishing a large file holds
# its rows for as long as it takes, so it must not wait for the lock. Null stands for every store, every file.
_LET_GO = text(f"""
    select pg_notify('{INGEST_CHANNEL}', CAST(id AS text)) from ingest_jobs
    where state = 'running' and workspace_id = :workspace_id
      and vector_store_id = coalesce(CAST(:vector_store_id AS text), vector_store_id)
      and (CAST(:file_ids AS text[]) is null or file_id = any(CAST(:file_ids AS text[])))
""")

# Deleting a store locks it before its memberships, and so must whoever locks memberships.
LOCK_STORE = text(f"""
    select {_EXPIRED} as expired from vector_stores
    where workspace_id = :workspace_id and id = :vector_store_id for key share
""")

# Cancels those of the files that are being ingested; their jobs end, and what they had staged goes.
_LOCK_IN_PROGRESS = text("""
    select file_id from vector_store_files
    where workspace_id = :workspace_id and vector_store_id = :vector_store_id
      and file_id = any(CAST(:file_ids AS text[])) and status = 'in_progress'
    order by file_no for no key update
""")
_CANCEL_MEMBERSHIPS = text("""
    update vector_store_files set status = 'cancelled'
    where workspace_id = :workspace_id and vector_store_id = :vector_store_id
      and file_id = any(CAST(:file_ids AS text[]))
""")
_CANCEL_JOBS = text("""
    with cancelled as (
        update ingest_jobs
        set state = 'cancelled', lease_owner = null, lease_until = null, finished_at = now()
        where workspace_id = :workspace_id and vector_store_id = :vector_store_id
          and file_id = any(CAST(:file_ids AS text[])) and state in ('waiting', 'running')
        returning id
    )
    delete from ingest_chunks c using cancelled where c.job_id = cancelled.id
""")

MEMBERSHIPS = f"""
    select m.file_id, m.vector_store_id, f.filename, m.status, m.error_code, m.error_message, m.attributes,
           m.max_chunk_size_tokens, m.chunk_overlap_tokens, m.chunk_count, m.usage_bytes, m.created_at,
           m.reading_notes
    from vector_store_files m join knowledge_files f on f.workspace_id = m.workspace_id and f.id = m.file_id
    where m.workspace_id = :workspace_id and m.vector_store_id = :vector_store_id
      and {UNEXPIRED}
"""
_GET_MEMBERSHIP = text(f"{MEMBERSHIPS} and m.file_id = :file_id")
_LIST_MEMBERSHIPS = Listing(
    "VectorStoreFile",
    f"{MEMBERSHIPS} and m.status = coalesce(CAST(:status AS text), m.status)",
    "m.created_at",
    "m.file_no",
    cursor=text("""
        select created_at as time, file_no as number from vector_store_files
        where workspace_id = :workspace_id and vector_store_id = :vector_store_id and file_id = :cursor
    """),
)

_SET_ATTRIBUTES = text("""
    update vector_store_files set attributes = CAST(:attributes AS jsonb)
    where workspace_id = :workspace_id and vector_store_id = :vector_store_id and file_id = :file_id
""")

# Deleting a store locks it before its memberships, and so must we: counting will lock it in the end.
_DETACH = text("""
    with store as materialized (
        select store_no from vector_stores
        where workspace_id = :workspace_id and id = :vector_store_id
        for key share
    )
    delete from vector_store_files m using store
    where m.store_no = store.store_no and m.workspace_id = :workspace_id
      and m.vector_store_id = :vector_store_id and m.file_id = :file_id
    returning m.file_id
""")

_EXPIRED_MEMBERSHIPS = text("""
    select * from (
        (select m.workspace_id, m.vector_store_id, m.file_id
         from knowledge_files f join vector_store_files m on m.file_no = f.file_no
         where f.expires_at <= now() limit :limit)
        union
        (select m.workspace_id, m.vector_store_id, m.file_id
         from vector_stores s join vector_store_files m on m.store_no = s.store_no
         where s.expired_at is not null limit :limit)
    ) as expired
    limit :limit
""")

Parameters = Mapping[str, Any]
T = TypeVar("T")


class PostgresCatalog:
    def __init__(self, database: Database) -> None:
        self._database = database

    # ── files ──

    async def add_file(self, file: StoredFile, *, reserved: bool = False) -> None:
        _storable(file.filename, "filename")
        try:
            async with self._database.transaction() as connection:
                await insert_file(connection, file, reserved=reserved)
        except IntegrityError as error:
            raise Conflict("A file with this id exists already.") from error

    async def get_file(self, workspace_id: WorkspaceId, file_id: str) -> StoredFile:
        check_id("File", file_id)
        async with self._database.transaction() as connection:
            found = await connection.execute(GET_FILE, {"workspace_id": workspace_id, "id": file_id})
            if (row := found.one_or_none()) is None:
                raise NotFound("File", file_id)
            return stored_file(row)

    async def list_files(
        self, workspace_id: WorkspaceId, page: PageRequest, purpose: Purpose | None = None
    ) -> Page[StoredFile]:
        parameters = {"workspace_id": workspace_id, "purpose": purpose}
        async with self._database.transaction() as connection:
            rows, has_more = await page_of(connection, _LIST_FILES, page, parameters)
        return Page(tuple(map(stored_file, rows)), has_more)

    async def delete_file(self, workspace_id: WorkspaceId, file_id: str) -> StoredFile:
        check_id("File", file_id)
        file = {"workspace_id": workspace_id, "file_id": file_id}
        await let_go(self._database, workspace_id, file_ids=[file_id])
        key = {"workspace_id": workspace_id, "id": file_id}
        async with self._database.transaction() as connection:
            if (await connection.execute(GET_FILE, key)).one_or_none() is None:
                raise NotFound("File", file_id)
            # One store after the other: the trigger on each row takes that store's term frequencies.
            for store_id in (await connection.scalars(_STORES_OF_FILE, file)).all():
                await connection.execute(_DETACH, {**file, "vector_store_id": store_id})
            deleted = await connection.execute(_DELETE_FILE, key)
            if (row := deleted.one_or_none()) is None:
                raise NotFound("File", file_id)
            return stored_file(row)

    async def recorded(self, workspace_id: WorkspaceId, object_ids: Collection[str]) -> set[str]:
        ids = list(filter(storable, object_ids))
        async with self._database.transaction() as connection:
            found = await connection.scalars(_RECORDED, {"workspace_id": workspace_id, "ids": ids})
            return set(found)

    # ── vector stores ──

    async def add_vector_store(
        self, store: VectorStore, file_ids: Sequence[str], chunking: ChunkingStrategy
    ) -> VectorStore:
        for file_id in file_ids:
            check_id("File", file_id, "file_ids")
        parameters = {
            "workspace_id": store.workspace_id,
            "id": store.id,
            "name": _storable(store.name, "name"),
            "description": _storable(store.description, "description"),
            "metadata": _json(store.metadata, "metadata"),
            "encoder": store.encoder.name,
            "dimension": store.encoder.dimension,
            "expires_after_days": store.expires_after_days,
            "created_at": store.created_at,
            "last_active_at": store.last_active_at,
        }
        wanted = [Attachment(file_id, chunking) for file_id in dict.fromkeys(file_ids)]

        async def add(connection: AsyncConnection) -> VectorStore:
            if await connection.scalar(_ADD_STORE, parameters) is None:
                raise Conflict("The vector store exists already.")
            await _attach(connection, store.workspace_id, store.id, wanted, "file_ids")
            return await _store(connection, store.workspace_id, store.id)

        # A file may be deleted while it is attached here, too.
        return await attaching(self._database, add)

    async def get_vector_store(self, workspace_id: WorkspaceId, vector_store_id: str) -> VectorStore:
        check_id("VectorStore", vector_store_id)
        async with self._database.transaction() as connection:
            return await _store(connection, workspace_id, vector_store_id)

    async def find_vector_stores(
        self, workspace_id: WorkspaceId, vector_store_ids: Sequence[str]
    ) -> list[VectorStore]:
        ids = list(filter(storable, dict.fromkeys(vector_store_ids)))
        async with self._database.transaction() as connection:
            rows = await connection.execute(_GET_STORES, {"workspace_id": workspace_id, "ids": ids})
        found = {row.id: _vector_store(row) for row in rows}
        return [found[store_id] for store_id in ids if store_id in found]

    async def list_vector_stores(self, workspace_id: WorkspaceId, page: PageRequest) -> Page[VectorStore]:
        async with self._database.transaction() as connection:
            rows, has_more = await page_of(connection, _LIST_STORES, page, {"workspace_id": workspace_id})
            return Page(tuple(await _with_counts(connection, workspace_id, rows)), has_more)

    async def update_vector_store(
        self, workspace_id: WorkspaceId, vector_store_id: str, changes: VectorStoreChanges
    ) -> VectorStore:
        check_id("VectorStore", vector_store_id)
        name, metadata, expiry = changes.name, changes.metadata, changes.expires_after_days
        parameters = {
            "workspace_id": workspace_id,
            "id": vector_store_id,
            "name_given": not isinstance(name, Unset),
            "name": None if isinstance(name, Unset) else _storable(name, "name"),
            "metadata_given": not isinstance(metadata, Unset),
            "metadata": None if isinstance(metadata, Unset) else _json(metadata, "metadata"),
            "expiry_given": not isinstance(expiry, Unset),
            "expiry": None if isinstance(expiry, Unset) else expiry,
        }
        async with self._database.transaction() as connection:
            await connection.execute(_UPDATE_STORE, parameters)
            store = await _store(connection, workspace_id, vector_store_id)
            if store.expired and parameters["expiry_given"]:
                raise VectorStoreExpired(vector_store_id, param="expires_after")
            return store

    async def touch_vector_stores(self, workspace_id: WorkspaceId, vector_store_ids: Sequence[str]) -> None:
        ids = list(filter(storable, vector_store_ids))
        async with self._database.transaction() as connection:
            await connection.execute(_TOUCH_STORES, {"workspace_id": workspace_id, "ids": ids})

    async def delete_vector_store(self, workspace_id: WorkspaceId, vector_store_id: str) -> None:
        check_id("VectorStore", vector_store_id)
        await let_go(self._database, workspace_id, vector_store_id)
        async with self._database.transaction() as connection:
            store = {"workspace_id": workspace_id, "id": vector_store_id}
            if await connection.scalar(_DELETE_STORE, store) is None:
                raise NotFound("VectorStore", vector_store_id)

    # ── memberships ──

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
        check_id("VectorStore", vector_store_id)
        check_id("File", file_id, "file_id")
        key = {"workspace_id": workspace_id, "vector_store_id": vector_store_id, "file_id": file_id}
        wanted = [Attachment(file_id, chunking, chunking_given, attributes)]

        async def attach_one(connection: AsyncConnection) -> VectorStoreFile:
            await attach(connection, workspace_id, vector_store_id, wanted, param="file_id")
            return membership((await connection.execute(_GET_MEMBERSHIP, key)).one())

        return await attaching(self._database, attach_one)

    async def get_membership(
        self, workspace_id: WorkspaceId, vector_store_id: str, file_id: str
    ) -> VectorStoreFile:
        check_id("VectorStore", vector_store_id)
        check_id("VectorStoreFile", file_id)
        key = {"workspace_id": workspace_id, "vector_store_id": vector_store_id, "file_id": file_id}
        async with self._database.transaction() as connection:
            if (row := (await connection.execute(_GET_MEMBERSHIP, key)).one_or_none()) is None:
                raise NotFound("VectorStoreFile", file_id)
            return membership(row)

    async def list_memberships(
        self, workspace_id: WorkspaceId, vector_store_id: str, page: PageRequest, status: Status | None = None
    ) -> Page[VectorStoreFile]:
        check_id("VectorStore", vector_store_id)
        parameters = {"workspace_id": workspace_id, "vector_store_id": vector_store_id, "status": status}
        async with self._database.transaction() as connection:
            store = {"workspace_id": workspace_id, "ids": [vector_store_id]}
            if (await connection.execute(_GET_STORES, store)).one_or_none() is None:
                raise NotFound("VectorStore", vector_store_id)
            rows, has_more = await page_of(connection, _LIST_MEMBERSHIPS, page, parameters)
        return Page(tuple(map(membership, rows)), has_more)

    async def update_attributes(
        self, workspace_id: WorkspaceId, vector_store_id: str, file_id: str, attributes: Attributes | None
    ) -> VectorStoreFile:
        check_id("VectorStore", vector_store_id)
        check_id("VectorStoreFile", file_id)
        key = {"workspace_id": workspace_id, "vector_store_id": vector_store_id, "file_id": file_id}
        async with self._database.transaction() as connection:
            await connection.execute(_SET_ATTRIBUTES, {**key, "attributes": _json(attributes, "attributes")})
            if (row := (await connection.execute(_GET_MEMBERSHIP, key)).one_or_none()) is None:
                raise NotFound("VectorStoreFile", file_id)
            return membership(row)

    async def detach_file(self, workspace_id: WorkspaceId, vector_store_id: str, file_id: str) -> None:
        check_id("VectorStore", vector_store_id)
        check_id("VectorStoreFile", file_id)
        key = {"workspace_id": workspace_id, "vector_store_id": vector_store_id, "file_id": file_id}
        await let_go(self._database, workspace_id, vector_store_id, [file_id])
        async with self._database.transaction() as connection:
            if await connection.scalar(_DETACH, key) is None:
                raise NotFound("VectorStoreFile", file_id)

    async def cancel_file(
        self, workspace_id: WorkspaceId, vector_store_id: str, file_id: str
    ) -> VectorStoreFile:
        check_id("VectorStore", vector_store_id)
        check_id("VectorStoreFile", file_id)
        key = {"workspace_id": workspace_id, "vector_store_id": vector_store_id, "file_id": file_id}
        await let_go(self._database, workspace_id, vector_store_id, [file_id])
        async with self._database.transaction() as connection:
            await connection.execute(LOCK_STORE, key)
            await cancel(connection, workspace_id, vector_store_id, [file_id])
            if (row := (await connection.execute(_GET_MEMBERSHIP, key)).one_or_none()) is None:
                raise NotFound("VectorStoreFile", file_id)
            return membership(row)

    # ── expiry ──

    async def expire_vector_stores(self, limit: int) -> int:
        async with self._database.transaction() as connection:
            return len((await connection.scalars(_EXPIRE_STORES, {"limit": limit})).all())

    async def expired_memberships(self, limit: int) -> list[tuple[WorkspaceId, str, str]]:
        async with self._database.transaction() as connection:
            rows = await connection.execute(_EXPIRED_MEMBERSHIPS, {"limit": limit})
            return [(row.workspace_id, row.vector_store_id, row.file_id) for row in rows]

    async def expired_files(self, limit: int) -> list[StoredFile]:
        async with self._database.transaction() as connection:
            return list(map(stored_file, await connection.execute(_EXPIRED_FILES, {"limit": limit})))

    async def remove_expired_file(self, workspace_id: WorkspaceId, file_id: str) -> None:
        async with self._database.transaction() as connection:
            await connection.execute(_REMOVE_EXPIRED_FILE, {"workspace_id": workspace_id, "id": file_id})

    async def check(self) -> None:
        await self._database.check()


# ── steps within a transaction ──────────────────────────────────────────────


class _Raced(Exception):
    """Somebody attached a file between two of our statements."""


async def attaching(database: Database, step: Callable[[AsyncConnection], Awaitable[T]]) -> T:
    """The result of `step`, a transaction that attaches files; repeated where somebody was in its way.

    Raises `DatabaseUnavailable` when that goes on.
    """
    for _ in range(_ATTACH_TRIES):
        try:
            async with database.transaction() as connection:
                return await step(connection)
        except (IntegrityError, _Raced):
            # Store or file went, or somebody attached it meanwhile; the next try finds out which. Of those
            # who met one got through, so there are fewer each time; chance keeps them from meeting again.
            await asyncio.sleep(random.uniform(0, _LONGEST_PAUSE_S))  # noqa: S311
    raise DatabaseUnavailable("The same files are being attached and detached right now.")


async def attach(
    connection: AsyncConnection,
    workspace_id: WorkspaceId,
    vector_store_id: str,
    attachments: Sequence[Attachment],
    *,
    param: str,
) -> None:
    """Attach and queue the files, all or none; no file may come twice. `param` is what an error names.

    Counts as activity of the store. Raises `NotFound`, `VectorStoreExpired` and `Conflict` as the port says.
    """
    await _lock_active(connection, workspace_id, vector_store_id)
    await _attach(connection, workspace_id, vector_store_id, attachments, param)
    # Last, and without waiting: a store is not locked after a membership.
    await connection.execute(_TOUCH_STORES, {"workspace_id": workspace_id, "ids": [vector_store_id]})


async def _attach(
    connection: AsyncConnection,
    workspace_id: WorkspaceId,
    vector_store_id: str,
    attachments: Sequence[Attachment],
    param: str,
) -> None:
    store = {"workspace_id": workspace_id, "vector_store_id": vector_store_id}
    wanted = {one.file_id: one for one in attachments}
    # Those that are attached first: inserting counts the store's files, which detaching does last.
    attached = (await connection.execute(_LOCK_ATTACHED, store | {"file_ids": list(wanted)})).all()
    over = await _attach_again(connection, store, wanted, attached)
    queued = set(over)
    known = {row.file_id for row in attached}
    if new := [one for one in attachments if one.file_id not in known]:
        added = set((await connection.scalars(_ATTACH, store | _columns(new))).all())
        if missing := [one.file_id for one in new if one.file_id not in added]:
            await _say_what_is_missing(connection, store, missing, param)
        queued |= added
    if queued:
        await connection.execute(_LOCK_TURNS, {"workspace_id": workspace_id})
        asked = tracing.current()
        came_from = {"request_id": asked.request_id, "traceparent": asked.traceparent}
        await connection.execute(_QUEUE, store | {"file_ids": list(queued)} | _COSTS | came_from)
        await connection.execute(WAKE_WORKERS)
    if over:
        await connection.execute(_DROP_CHUNKS, store | {"file_ids": list(over)})


async def _attach_again(
    connection: AsyncConnection,
    store: Parameters,
    wanted: Mapping[str, Attachment],
    rows: Sequence[Row[Any]],
) -> set[str]:
    """Attach files whose memberships, `rows`, stand and are locked; returns those that start over."""
    over = [row.file_id for row in rows if row.status in ("failed", "cancelled")]
    for row in rows:
        again = wanted[row.file_id]
        if row.file_id not in over and again.chunking_given and again.chunking != _chunking(row):
            raise Conflict(
                "The file is already attached with another chunking strategy; detach it first.",
                param="chunking_strategy",
            )
    if over:
        started_over = {**store, **_columns([wanted[file_id] for file_id in over])}
        for statement in (_REMEMBER_END, _DROP_JOBS, _START_OVER):
            await connection.execute(statement, started_over)
    given = [wanted[row.file_id] for row in rows if wanted[row.file_id].attributes is not None]
    if given:
        await connection.execute(_REPLACE_ATTRIBUTES, {**store, **_columns(given)})
    return set(over)


async def _say_what_is_missing(
    connection: AsyncConnection, store: Parameters, file_ids: Sequence[str], param: str
) -> NoReturn:
    """These files were neither attached anew nor before: say why."""
    known = set((await connection.scalars(_KNOWN_FILES, {**store, "file_ids": file_ids})).all())
    for file_id in file_ids:
        if file_id not in known:
            raise NotFound("File", file_id, param=param)
    raise _Raced


async def let_go(
    database: Database,
    workspace_id: WorkspaceId,
    vector_store_id: str | None = None,
    file_ids: Sequence[str] | None = None,
) -> None:
    """Ask the workers to let go of running jobs, in a transaction of its own: heard before ours waits."""
    jobs = {"workspace_id": workspace_id, "vector_store_id": vector_store_id, "file_ids": file_ids}
    async with database.transaction() as connection:
        await connection.execute(_LET_GO, jobs)


async def cancel(
    connection: AsyncConnection, workspace_id: WorkspaceId, vector_store_id: str, file_ids: Sequence[str]
) -> None:
    """Cancel those of the files whose ingest goes on; the store is locked already."""
    store = {"workspace_id": workspace_id, "vector_store_id": vector_store_id}
    locked = await connection.scalars(_LOCK_IN_PROGRESS, store | {"file_ids": list(file_ids)})
    ended = store | {"file_ids": list(locked.all())}
    await connection.execute(_CANCEL_MEMBERSHIPS, ended)
    await connection.execute(_CANCEL_JOBS, ended)


async def _lock_active(connection: AsyncConnection, workspace_id: WorkspaceId, vector_store_id: str) -> None:
    """Before any membership: deleting the store goes this way, too.

    Raises `NotFound`, `VectorStoreExpired`.
    """
    store = {"workspace_id": workspace_id, "vector_store_id": vector_store_id}
    if (row := (await connection.execute(LOCK_STORE, store)).one_or_none()) is None:
        raise NotFound("VectorStore", vector_store_id)
    if row.expired:
        raise VectorStoreExpired(vector_store_id)


async def _store(connection: AsyncConnection, workspace_id: WorkspaceId, vector_store_id: str) -> VectorStore:
    found = await connection.execute(_GET_STORES, {"workspace_id": workspace_id, "ids": [vector_store_id]})
    if (row := found.one_or_none()) is None:
        raise NotFound("VectorStore", vector_store_id)
    return (await _with_counts(connection, workspace_id, [row]))[0]


async def _with_counts(
    connection: AsyncConnection, workspace_id: WorkspaceId, rows: Sequence[Row[Any]]
) -> list[VectorStore]:
    parameters = {"workspace_id": workspace_id, "ids": [row.id for row in rows]}
    counts = {row.vector_store_id: row for row in await connection.execute(_COUNTS, parameters)}
    return [_vector_store(row, counts.get(row.id)) for row in rows]


async def page_of(
    connection: AsyncConnection, listing: Listing, page: PageRequest, parameters: Parameters
) -> tuple[list[Row[Any]], bool]:
    """One page of the list, and whether more follow in the way it was read.

    With `before` alone the page is read backwards from the cursor, so that it ends just before it.
    """
    statement, bound = listing.rows, dict(parameters)
    onwards, back = (">", "<") if page.order == "asc" else ("<", ">")
    for name, cursor, comparison in (("after", page.after, onwards), ("before", page.before, back)):
        if cursor is None:
            continue
        check_id(listing.kind, cursor, name)
        place = (await connection.execute(listing.cursor, {**parameters, "cursor": cursor})).one_or_none()
        if place is None:
            raise NotFound(listing.kind, cursor, param=name)
        statement += f" and ({listing.time}, {listing.number}) {comparison} (:{name}_time, :{name}_number)"
        bound |= {f"{name}_time": place.time, f"{name}_number": place.number}
    backwards = page.before is not None and page.after is None
    direction = "asc" if (page.order == "asc") != backwards else "desc"
    statement += f" order by {listing.time} {direction}, {listing.number} {direction} limit :limit"
    rows = list((await connection.execute(text(statement), {**bound, "limit": page.limit + 1})).all())
    has_more = len(rows) > page.limit
    rows = rows[: page.limit]
    return (rows[::-1] if backwards else rows), has_more


# ── values in and out ───────────────────────────────────────────────────────


def _storable(value: str | None, param: str) -> str | None:
    if value is not None and not storable(value):
        raise InvalidRequest(f"'{param}' holds a character that cannot be stored.", param=param)
    return value


def _json(value: Mapping[str, object] | None, param: str) -> str | None:
    if value is None:
        return None
    for name, member in value.items():
        _storable(name, param)
        if isinstance(member, str):
            _storable(member, param)
    try:
        return json.dumps(dict(value), allow_nan=False)
    except ValueError as error:
        raise InvalidRequest(f"'{param}' holds a number that cannot be stored.", param=param) from error


def _columns(attachments: Sequence[Attachment]) -> dict[str, list[Any]]:
    """Bound values of the statements that take files as parallel arrays."""
    return {
        "file_ids": [one.file_id for one in attachments],
        "attributes": [_json(one.attributes, "attributes") for one in attachments],
        "sizes": [one.chunking.max_chunk_size_tokens for one in attachments],
        "overlaps": [one.chunking.chunk_overlap_tokens for one in attachments],
    }


def _chunking(row: Row[Any]) -> ChunkingStrategy:
    return ChunkingStrategy(row.max_chunk_size_tokens, row.chunk_overlap_tokens)


def _seconds(time: datetime) -> int:
    return int(time.timestamp())


def _vector_store(row: Row[Any], counts: Row[Any] | None = None) -> VectorStore:
    last_active_at = _seconds(row.last_active_at)
    days = row.expires_after_days
    return VectorStore(
        id=row.id,
        workspace_id=row.workspace_id,
        name=row.name,
        description=row.description,
        metadata=row.metadata,
        encoder=Encoder(row.encoder, row.dimension),
        created_at=_seconds(row.created_at),
        last_active_at=last_active_at,
        file_counts=FileCounts(counts.in_progress, counts.completed, counts.failed, counts.cancelled)
        if counts
        else FileCounts(),
        usage_bytes=counts.usage_bytes if counts else 0,
        expires_after_days=days,
        expires_at=None if days is None else last_active_at + days * _DAY_S,
        expired=row.expired,
    )


def membership(row: Row[Any]) -> VectorStoreFile:
    return VectorStoreFile(
        file_id=row.file_id,
        vector_store_id=row.vector_store_id,
        filename=row.filename,
        status=row.status,
        chunking=_chunking(row),
        created_at=_seconds(row.created_at),
        attributes=row.attributes,
        last_error=LastError(row.error_code, row.error_message) if row.error_code else None,
        usage_bytes=row.usage_bytes,
        chunk_count=row.chunk_count,
        notes=ReadingNotes(**row.reading_notes) if row.reading_notes else None,
    )
