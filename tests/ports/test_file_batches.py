"""What every `FileBatchCatalog` does, in memory and in PostgreSQL."""

import asyncio
import contextlib
import secrets
import time
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, replace

import pytest
from sqlalchemy import text
from tests.fakes import InMemoryCatalog, InMemoryIngestQueue
from tests.fakes_batches import InMemoryFileBatches

from sherlock.rag.adapters.postgres import Database
from sherlock.rag.adapters.postgres_catalog import PostgresCatalog
from sherlock.rag.adapters.postgres_file_batches import PostgresFileBatches
from sherlock.rag.adapters.postgres_queue import PostgresIngestQueue
from sherlock.rag.domain.errors import Conflict, InvalidRequest, LeaseLost, NotFound
from sherlock.rag.domain.models import (
    Attachment,
    ChunkingStrategy,
    Encoder,
    FileBatch,
    FileCounts,
    LastError,
    PageRequest,
    Published,
    StoredFile,
    VectorStore,
    WorkspaceId,
)
from sherlock.rag.domain.ports import Catalog, FileBatchCatalog, IngestQueue

CHUNKING = ChunkingStrategy(512, 50)
OTHER_CHUNKING = ChunkingStrategy(800, 400)
NOW = 1_700_000_000
ERROR = LastError("invalid_file", "There is no text in it.")
UNKNOWN = ["", "vsfb_unknown", "nul\0", "half \ud800 pair", "x" * 5000]


@dataclass
class Parts:
    catalog: Catalog
    batches: FileBatchCatalog
    queue: IngestQueue
    workspace: WorkspaceId
    store: str = "vs_batches"

    async def files(self, count: int) -> list[str]:
        ids = [f"file-{secrets.token_hex(6)}" for _ in range(count)]
        for file_id in ids:
            await self.catalog.add_file(
                StoredFile(file_id, self.workspace, "a.txt", "assistants", 9, "00", NOW)
            )
        return ids

    async def add(self, attachments: Sequence[Attachment], id: str = "") -> FileBatch:
        batch = FileBatch(id or f"vsfb_{secrets.token_hex(6)}", self.workspace, self.store, NOW)
        return await self.batches.add(batch, attachments)

    async def get(self, batch: FileBatch) -> FileBatch:
        return await self.batches.get(self.workspace, self.store, batch.id)

    async def cancel(self, batch: FileBatch) -> FileBatch:
        return await self.batches.cancel(self.workspace, self.store, batch.id)

    async def end_one(self, error: LastError | None = None) -> str:
        """Complete or fail the next job; its file."""
        job = await self.queue.claim("worker", 30)
        assert job is not None
        if error:
            await self.queue.fail(job.lease, error)
        else:
            await self.queue.complete(job.lease, Published(1, 1, 10))
        return job.file_id


@pytest.fixture(params=["memory", "postgres"])
async def parts(request: pytest.FixtureRequest, database: Database, workspace: WorkspaceId) -> Parts:
    if request.param == "memory":
        catalog = InMemoryCatalog()
        made = Parts(catalog, InMemoryFileBatches(catalog), InMemoryIngestQueue(catalog.state), workspace)
    else:
        made = Parts(
            PostgresCatalog(database),
            PostgresFileBatches(database),
            PostgresIngestQueue(database),
            workspace,
        )
    await made.catalog.add_vector_store(a_store(workspace, made.store), [], CHUNKING)
    return made


def a_store(workspace: WorkspaceId, id: str) -> VectorStore:
    return VectorStore(id, workspace, "", None, None, Encoder("hash", 384), NOW, NOW)


def attachments(files: Sequence[str]) -> list[Attachment]:
    return [Attachment(file_id, CHUNKING) for file_id in files]


async def test_all_files_are_attached_and_queued_each_in_its_own_way(parts: Parts) -> None:
    one, two = await parts.files(2)
    batch = await parts.add(
        [Attachment(one, CHUNKING, False, {"n": 1.0}), Attachment(two, OTHER_CHUNKING, True)], "vsfb_1"
    )
    assert batch == FileBatch("vsfb_1", parts.workspace, parts.store, NOW, FileCounts(in_progress=2))
    assert batch.status == "in_progress"
    assert await parts.get(batch) == batch
    members = [await parts.catalog.get_membership(parts.workspace, parts.store, file) for file in (one, two)]
    assert [m.attributes for m in members] == [{"n": 1.0}, None]
    assert [m.chunking for m in members] == [CHUNKING, OTHER_CHUNKING]
    assert await parts.queue.depth() == 2


async def test_it_ends_completed_whatever_became_of_its_files(parts: Parts) -> None:
    batch = await parts.add(attachments(await parts.files(3)))
    await parts.end_one()
    await parts.end_one(ERROR)
    halfway = await parts.get(batch)
    assert (halfway.status, halfway.file_counts) == ("in_progress", FileCounts(1, 1, 1))
    await parts.end_one()
    ended = await parts.get(batch)
    assert (ended.status, ended.file_counts) == ("completed", FileCounts(0, 2, 1))


async def test_cancelling_ends_what_goes_on_at_once(parts: Parts) -> None:
    files = await parts.files(4)
    batch = await parts.add(attachments(files))
    done = await parts.end_one()
    running = await parts.queue.claim("worker", 30)
    assert running is not None
    cancelled = await parts.cancel(batch)
    assert (cancelled.status, cancelled.file_counts) == ("cancelled", FileCounts(0, 1, 0, 3))
    assert await parts.get(batch) == cancelled
    assert await parts.cancel(batch) == cancelled
    assert await parts.queue.depth() == 0
    for file in files:
        member = await parts.catalog.get_membership(parts.workspace, parts.store, file)
        assert member.status == ("completed" if file == done else "cancelled")


async def test_a_batch_that_has_ended_is_not_cancelled(parts: Parts) -> None:
    batch = await parts.add(attachments(await parts.files(1)))
    await parts.end_one()
    assert (await parts.cancel(batch)).status == "completed"


async def test_one_unknown_file_and_nothing_is_attached(parts: Parts) -> None:
    (file,) = await parts.files(1)
    for unknown in ("file-unknown", "nul\0", "half \ud800 pair"):
        with pytest.raises(NotFound) as raised:
            await parts.add(attachments([file, unknown]), "vsfb_1")
        assert raised.value.param == "file_ids"
    with pytest.raises(NotFound):
        await parts.batches.get(parts.workspace, parts.store, "vsfb_1")
    with pytest.raises(NotFound):
        await parts.catalog.get_membership(parts.workspace, parts.store, file)
    assert await parts.queue.depth() == 0


async def test_files_that_are_attached_already_follow_the_rules_of_a_single_one(parts: Parts) -> None:
    done, failed, going_on, new = await parts.files(4)
    await parts.add(attachments([done]))
    await parts.end_one()
    earlier = await parts.add(attachments([failed]))
    await parts.end_one(ERROR)
    await parts.add(attachments([going_on]))

    batch = await parts.add(
        [
            Attachment(done, OTHER_CHUNKING, False, {"a": "b"}),
            Attachment(failed, OTHER_CHUNKING, True),
            Attachment(going_on, CHUNKING, True),
            Attachment(new, CHUNKING),
        ]
    )

    assert batch.file_counts == FileCounts(in_progress=3, completed=1)
    assert await parts.queue.depth() == 3, "what was done is not done again"
    members = {
        file: await parts.catalog.get_membership(parts.workspace, parts.store, file)
        for file in (done, failed)
    }
    assert (members[done].chunking, members[done].attributes) == (CHUNKING, {"a": "b"})
    assert (members[failed].chunking, members[failed].last_error) == (OTHER_CHUNKING, None)
    ended = await parts.get(earlier)
    assert (ended.status, ended.file_counts) == ("completed", FileCounts(failed=1)), "it does not begin again"


async def test_another_chunking_strategy_is_a_conflict_and_nothing_is_attached(parts: Parts) -> None:
    known, new = await parts.files(2)
    await parts.add(attachments([known]))
    with pytest.raises(Conflict):
        await parts.add([Attachment(new, CHUNKING), Attachment(known, OTHER_CHUNKING, True, {"a": 1.0})])
    with pytest.raises(NotFound):
        await parts.catalog.get_membership(parts.workspace, parts.store, new)
    with pytest.raises(InvalidRequest):
        await parts.add([Attachment(new, CHUNKING, attributes={"nul\0": 1.0})])
    assert await parts.queue.depth() == 1


async def test_a_cancelled_file_that_is_attached_again_stays_cancelled_in_its_batch(parts: Parts) -> None:
    (file,) = await parts.files(1)
    batch = await parts.add(attachments([file]))
    await parts.cancel(batch)
    again = await parts.add(attachments([file]))
    assert again.file_counts == FileCounts(in_progress=1)
    assert await parts.end_one() == file
    assert (await parts.get(again)).file_counts == FileCounts(completed=1)
    assert (await parts.get(batch)).file_counts == FileCounts(cancelled=1)
    assert (await parts.get(batch)).status == "cancelled"


async def test_a_batch_goes_on_without_files_that_go(parts: Parts) -> None:
    gone, deleted, left = await parts.files(3)
    batch = await parts.add(attachments([gone, deleted, left]))
    await parts.catalog.detach_file(parts.workspace, parts.store, gone)
    await parts.catalog.delete_file(parts.workspace, deleted)
    assert (await parts.get(batch)).file_counts == FileCounts(in_progress=1)
    await parts.end_one()
    assert (await parts.get(batch)).status == "completed"
    await parts.catalog.delete_vector_store(parts.workspace, parts.store)
    with pytest.raises(NotFound):
        await parts.get(batch)


async def test_its_files_are_listed_as_those_of_a_store(parts: Parts) -> None:
    files = await parts.files(5)
    (stranger,) = await parts.files(1)
    batch = await parts.add(attachments(files))
    await parts.add(attachments([stranger]))

    async def listed(page: PageRequest, **status: str) -> tuple[list[str], bool]:
        found = await parts.batches.list_files(parts.workspace, parts.store, batch.id, page, **status)  # type: ignore[arg-type]
        return [member.file_id for member in found.items], found.has_more

    assert await listed(PageRequest(3, "asc")) == (files[:3], True)
    assert await listed(PageRequest(3, "asc", after=files[2])) == (files[3:], False)
    assert await listed(PageRequest(2, "asc", before=files[2])) == (files[:2], False)
    assert await listed(PageRequest()) == (files[::-1], False)
    done = await parts.end_one()
    assert await listed(PageRequest(), status="completed") == ([done], False)
    assert len((await listed(PageRequest(), status="in_progress"))[0]) == 4
    with pytest.raises(NotFound):
        await listed(PageRequest(after=stranger))


@pytest.mark.parametrize("id", UNKNOWN)
async def test_an_id_of_any_shape_is_just_not_found(parts: Parts, id: str) -> None:
    (file,) = await parts.files(1)
    batch = await parts.add(attachments([file]))
    for store, batch_id in ((parts.store, id), (id, batch.id)):
        for call in (
            parts.batches.get(parts.workspace, store, batch_id),
            parts.batches.cancel(parts.workspace, store, batch_id),
            parts.batches.list_files(parts.workspace, store, batch_id, PageRequest()),
        ):
            with pytest.raises(NotFound):
                await call
    with pytest.raises(NotFound):
        await parts.batches.list_files(parts.workspace, parts.store, batch.id, PageRequest(after=id))
    with pytest.raises(NotFound):
        await parts.batches.add(FileBatch("vsfb_x", parts.workspace, id, NOW), attachments([file]))


async def test_another_workspace_sees_and_changes_nothing(parts: Parts, other_workspace: WorkspaceId) -> None:
    (file,) = await parts.files(1)
    batch = await parts.add(attachments([file]))
    await parts.catalog.add_vector_store(a_store(other_workspace, parts.store), [], CHUNKING)
    for call in (
        parts.batches.get(other_workspace, parts.store, batch.id),
        parts.batches.cancel(other_workspace, parts.store, batch.id),
        parts.batches.list_files(other_workspace, parts.store, batch.id, PageRequest()),
        parts.batches.add(replace(batch, id="vsfb_x", workspace_id=other_workspace), attachments([file])),
    ):
        with pytest.raises(NotFound):
            await call
    assert await parts.get(batch) == batch


async def test_batches_cancellations_and_deletions_at_once(parts: Parts) -> None:
    """Nothing deadlocks; at the end every file has ended, and each batch counts what is left of it."""

    async def quietly(call: Awaitable[object]) -> None:
        with contextlib.suppress(NotFound, LeaseLost):
            await call

    for _ in range(5):
        files = await parts.files(8)
        first = await parts.add(attachments(files[:6]))
        await asyncio.gather(
            quietly(parts.add(attachments(files[::-1]), "vsfb_second")),
            quietly(parts.cancel(first)),
            quietly(parts.catalog.detach_file(parts.workspace, parts.store, files[2])),
            quietly(parts.add(attachments(files[3:]))),
            quietly(parts.catalog.delete_file(parts.workspace, files[7])),
            quietly(parts.end_one()),
            quietly(parts.catalog.cancel_file(parts.workspace, parts.store, files[5])),
        )
        assert (await parts.get(first)).file_counts.in_progress == 0
        await parts.catalog.delete_vector_store(parts.workspace, parts.store)
        await parts.catalog.add_vector_store(a_store(parts.workspace, parts.store), [], CHUNKING)
        assert await parts.queue.depth() == 0


# ── PostgreSQL alone ──

MANY_FILES = text("""
    insert into knowledge_files (workspace_id, id, filename, purpose, bytes, sha256)
    select :workspace, 'file-' || n, 'a.txt', 'assistants', n, '00' from generate_series(1, 2000) n
""")


async def test_the_largest_batch_takes_set_based_statements(
    database: Database, workspace: WorkspaceId
) -> None:
    """Half a second and less on two busy cores; the bound is for what compares each file with all others."""
    parts = Parts(
        PostgresCatalog(database), PostgresFileBatches(database), PostgresIngestQueue(database), workspace
    )
    await parts.catalog.add_vector_store(a_store(workspace, parts.store), [], CHUNKING)
    async with database.transaction() as connection:
        await connection.execute(MANY_FILES, {"workspace": workspace})
    files = [f"file-{n}" for n in range(1, 2001)]
    began = time.perf_counter()
    batch = await parts.add([Attachment(file, CHUNKING, False, {"n": 1.0}) for file in files])
    assert batch.file_counts == FileCounts(in_progress=2000)
    assert (await parts.cancel(batch)).file_counts == FileCounts(cancelled=2000)
    assert (await parts.add(attachments(files))).file_counts == FileCounts(in_progress=2000)
    assert time.perf_counter() - began < 10
