"""A worker with a real queue and index lets go of a job within 2 s, whatever it is doing."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import asyncpg
import pytest
from tests.fakes_files import InMemoryFileStore
from tests.fakes_reader import InThreadReader

from sherlock.rag.adapters import pgvector
from sherlock.rag.adapters.hash_embedder import HashEmbedder
from sherlock.rag.adapters.pgvector import PgvectorIndex
from sherlock.rag.adapters.postgres import Database
from sherlock.rag.adapters.postgres_catalog import PostgresCatalog
from sherlock.rag.adapters.postgres_file_batches import PostgresFileBatches
from sherlock.rag.adapters.postgres_queue import PostgresIngestQueue
from sherlock.rag.application.ingest import Ingestor
from sherlock.rag.domain.errors import NotFound
from sherlock.rag.domain.models import (
    Attachment,
    ChunkingStrategy,
    FileBatch,
    StoredFile,
    VectorStore,
    WorkspaceId,
)
from sherlock.worker import Worker

CHUNKING = ChunkingStrategy(512, 50)
LONG_LEASE_S = 600
"""So that nothing is heard with its renewal."""


@dataclass
class Bench:
    workspace: WorkspaceId
    catalog: PostgresCatalog
    batches: PostgresFileBatches
    files: InMemoryFileStore
    store: str = "vs_cancel"
    batch: str = "vsfb_cancel"

    async def attach(self, content: bytes = b"It opens.") -> str:
        """Queue a file in a batch of its own; its id."""
        file = StoredFile(
            f"file-{secrets.token_hex(6)}", self.workspace, "a.txt", "assistants", len(content), "00", 0
        )
        await self.catalog.add_file(file)
        self.files.blobs[file.blob_key] = content
        self.batch = f"vsfb_{secrets.token_hex(6)}"
        await self.batches.add(
            FileBatch(self.batch, self.workspace, self.store, 0), [Attachment(file.id, CHUNKING)]
        )
        return file.id

    async def status(self, file_id: str) -> str:
        return (await self.catalog.get_membership(self.workspace, self.store, file_id)).status

    async def end(self, how: str, file_id: str) -> None:
        ways: dict[str, Callable[[], Awaitable[object]]] = {
            "batch cancelled": lambda: self.batches.cancel(self.workspace, self.store, self.batch),
            "file cancelled": lambda: self.catalog.cancel_file(self.workspace, self.store, file_id),
            "detached": lambda: self.catalog.detach_file(self.workspace, self.store, file_id),
            "file deleted": lambda: self.catalog.delete_file(self.workspace, file_id),
            "store deleted": lambda: self.catalog.delete_vector_store(self.workspace, self.store),
        }
        await ways[how]()


@pytest.fixture
async def bench(database: Database, workspace: WorkspaceId) -> AsyncIterator[Bench]:
    """A store, and a worker with one slot that runs until the test ends."""
    files, embedder, queue = InMemoryFileStore(), HashEmbedder(384), PostgresIngestQueue(database)
    made = Bench(workspace, PostgresCatalog(database), PostgresFileBatches(database), files)
    await made.catalog.add_vector_store(
        VectorStore(made.store, workspace, "", None, None, embedder.encoder, 0, 0), [], CHUNKING
    )
    ingestor = Ingestor(files, PgvectorIndex(database), embedder, InThreadReader())
    stop = asyncio.Event()
    working = asyncio.create_task(Worker(queue, ingestor, slots=1, lease_s=LONG_LEASE_S).run(stop))
    yield made
    stop.set()
    await working
    await queue.close()
    await embedder.close()


async def until(condition: Callable[[], Awaitable[object]], timeout_s: float = 20) -> None:
    async with asyncio.timeout(timeout_s):
        while not await condition():  # noqa: ASYNC110 - the database tells nobody
            await asyncio.sleep(0.01)


SLOW_PUBLISHING = """
    create function sherlock.take_long() returns trigger language plpgsql as $$
    begin perform pg_sleep(60); return new; end $$;
    create trigger take_long before insert on sherlock.knowledge_chunks
        for each row execute function sherlock.take_long();
"""
FAST_PUBLISHING = """
    drop trigger if exists take_long on sherlock.knowledge_chunks;
    drop function if exists sherlock.take_long;
"""
PUBLISHING = """
    select 1 from pg_stat_activity
    where wait_event = 'PgSleep' and query like '%with published as%' and datname = current_database()
"""


@pytest.fixture
async def owner(owner_url: str) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
    """Publishing takes a minute while it is open, as for a very large file."""
    owner = await asyncpg.connect(owner_url)
    await owner.execute(SLOW_PUBLISHING)
    yield owner
    await owner.execute(FAST_PUBLISHING)
    await owner.close()


@pytest.mark.parametrize(
    "how", ["batch cancelled", "file cancelled", "detached", "file deleted", "store deleted"]
)
async def test_publishing_is_broken_off(
    bench: Bench, owner: "asyncpg.Connection[asyncpg.Record]", how: str
) -> None:
    """Its transaction holds the membership, for which whoever ends the file would have to wait."""
    file_id = await bench.attach()
    await until(lambda: owner.fetchval(PUBLISHING))
    began = time.monotonic()
    await bench.end(how, file_id)
    await until(lambda: _idle(owner))
    assert time.monotonic() - began < 2
    if how.endswith("cancelled"):
        assert await bench.status(file_id) == "cancelled"
    else:
        with pytest.raises(NotFound):
            await bench.status(file_id)
    if how != "store deleted":
        await owner.execute(FAST_PUBLISHING)
        other = await bench.attach()
        await until(lambda: _completed(bench, other))


async def test_publishing_in_parts_is_broken_off(
    bench: Bench,
    owner: "asyncpg.Connection[asyncpg.Record]",
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its first part is in the index, its second is on the way."""
    monkeypatch.setattr(pgvector, "CHUNKS_AT_ONCE", 1)
    await owner.execute(FAST_PUBLISHING)
    await owner.execute(SLOW_PUBLISHING.replace("for each row", "for each row when (new.chunk_index > 0)"))
    file_id = await bench.attach(b"It opens. " * 400)
    await until(lambda: owner.fetchval(PUBLISHING))
    began = time.monotonic()
    await bench.end("file cancelled", file_id)
    await until(lambda: _idle(owner))
    assert time.monotonic() - began < 2
    assert await bench.status(file_id) == "cancelled"
    left = "select count(*) from sherlock.knowledge_chunks where file_id = $1"
    assert await owner.fetchval(left, file_id) == 1
    while await pgvector.PgvectorIndex(database).clear_unpublished():
        pass
    assert await owner.fetchval(left, file_id) == 0


async def _idle(owner: "asyncpg.Connection[asyncpg.Record]") -> bool:
    """No worker holds a job, and no statement of one is left on the server."""
    running = await owner.fetchval("select count(*) from sherlock.ingest_jobs where state = 'running'")
    return not running and not await owner.fetchval(PUBLISHING)


async def _completed(bench: Bench, file_id: str) -> bool:
    return await bench.status(file_id) == "completed"
