"""Vector stores over in-memory ports."""

import asyncio
from dataclasses import replace

import pytest
from tests.fakes import InMemoryCatalog, InMemoryIngestQueue
from tests.fakes_index import InMemoryChunkIndex

from sherlock.rag.adapters.hash_embedder import HashEmbedder
from sherlock.rag.application.vector_stores import VectorStores
from sherlock.rag.domain.errors import Conflict, NotFound
from sherlock.rag.domain.models import (
    ChunkingStrategy,
    FileCounts,
    PageRequest,
    Published,
    StoredFile,
    VectorStore,
    VectorStoreChanges,
    WorkspaceId,
)

HERE, ELSEWHERE = WorkspaceId("here"), WorkspaceId("elsewhere")
DEFAULT = ChunkingStrategy(512, 50)


@pytest.fixture
def catalog() -> InMemoryCatalog:
    return InMemoryCatalog()


@pytest.fixture
def stores(catalog: InMemoryCatalog) -> VectorStores:
    return VectorStores(catalog, InMemoryChunkIndex(catalog.state), HashEmbedder(8), DEFAULT)


@pytest.fixture
async def file(catalog: InMemoryCatalog) -> StoredFile:
    file = StoredFile("file-1", HERE, "a.txt", "assistants", 1, "0" * 64, 1_700_000_000)
    await catalog.add_file(file)
    return file


async def test_a_store_is_pinned_to_the_encoder(stores: VectorStores):
    store = await stores.create(HERE, name="docs", metadata={"k": "v"}, expires_after_days=7)
    assert store.id.startswith("vs_")
    assert len(store.id) == len("vs_") + 24
    assert store.encoder == HashEmbedder(8).encoder
    assert store.expires_at == store.last_active_at + 7 * 86_400
    assert await stores.get(HERE, store.id) == store
    assert (await stores.list(HERE, PageRequest())).items == (store,)
    assert (await stores.create(HERE)).name == ""


async def test_a_store_can_be_changed_and_deleted(stores: VectorStores):
    store = await stores.create(HERE, name="docs")
    assert (await stores.update(HERE, store.id, VectorStoreChanges(name="new"))).name == "new"
    await stores.delete(HERE, store.id)
    with pytest.raises(NotFound):
        await stores.get(HERE, store.id)


async def test_a_required_store_comes_without_its_counts(stores: VectorStores, file: StoredFile):
    store = await stores.create(HERE, name="docs", file_ids=[file.id])
    assert await stores.require(HERE, store.id) == replace(store, file_counts=FileCounts())
    for workspace, store_id in ((HERE, "vs_unknown"), (ELSEWHERE, store.id)):
        with pytest.raises(NotFound, match=store_id):
            await stores.require(workspace, store_id)


async def test_attaching_does_not_count_the_files_of_a_store(
    stores: VectorStores, catalog: InMemoryCatalog, file: StoredFile
):
    class Uncounted(InMemoryCatalog):
        async def get_vector_store(self, workspace_id: WorkspaceId, vector_store_id: str) -> VectorStore:
            raise AssertionError("every membership would be read")

    store = await stores.create(HERE)
    uncounted = replace(stores, catalog=Uncounted(catalog.state))
    assert (await uncounted.attach(HERE, store.id, file.id)).status == "in_progress"


async def test_files_named_at_creation_are_queued(stores: VectorStores, file: StoredFile):
    chunking = ChunkingStrategy(100, 10)
    store = await stores.create(HERE, file_ids=[file.id], chunking=chunking)
    assert store.file_counts.in_progress == 1
    assert (await stores.get_file(HERE, store.id, file.id)).chunking == chunking
    with pytest.raises(NotFound):
        await stores.create(HERE, file_ids=["file-none"])


async def test_attaching_takes_the_default_chunking(stores: VectorStores, file: StoredFile):
    store = await stores.create(HERE)
    attached = await stores.attach(HERE, store.id, file.id, attributes={"year": 2031.0})
    assert (attached.status, attached.chunking) == ("in_progress", DEFAULT)
    assert attached.attributes == {"year": 2031.0}
    assert await stores.attach(HERE, store.id, file.id) == attached
    assert await stores.attach(HERE, store.id, file.id, chunking=DEFAULT) == attached
    with pytest.raises(Conflict):
        await stores.attach(HERE, store.id, file.id, chunking=ChunkingStrategy(100, 0))


async def test_a_store_of_another_encoder_takes_no_files(stores: VectorStores, file: StoredFile):
    store = await stores.create(HERE)
    other = replace(stores, embedder=HashEmbedder(16))
    with pytest.raises(Conflict, match="encoder"):
        await other.attach(HERE, store.id, file.id)
    assert (await stores.get(HERE, store.id)).file_counts.total == 0


async def test_members_can_be_listed_changed_and_detached(stores: VectorStores, file: StoredFile):
    store = await stores.create(HERE, file_ids=[file.id])
    assert [member.file_id for member in (await stores.list_files(HERE, store.id, PageRequest())).items] == [
        file.id
    ]
    assert (await stores.list_files(HERE, store.id, PageRequest(), "failed")).items == ()
    assert (await stores.update_attributes(HERE, store.id, file.id, {"a": True})).attributes == {"a": True}
    await stores.detach(HERE, store.id, file.id)
    with pytest.raises(NotFound):
        await stores.get_file(HERE, store.id, file.id)


async def test_workspaces_do_not_meet(stores: VectorStores, file: StoredFile):
    store = await stores.create(HERE, file_ids=[file.id])
    for call in (stores.get, stores.delete):
        with pytest.raises(NotFound):
            await call(ELSEWHERE, store.id)
    for call_for_file in (stores.attach, stores.get_file, stores.detach, stores.file_text):
        with pytest.raises(NotFound):
            await call_for_file(ELSEWHERE, store.id, file.id)


async def test_waiting_ends_with_the_job(stores: VectorStores, catalog: InMemoryCatalog, file: StoredFile):
    store = await stores.create(HERE, file_ids=[file.id])
    waiting = asyncio.ensure_future(stores.wait(HERE, store.id, file.id, 10))
    await asyncio.sleep(0.03)
    assert not waiting.done()
    queue = InMemoryIngestQueue(catalog.state)
    job = await queue.claim("me", 30)
    assert job is not None
    await queue.complete(job.lease, Published(3, 3, 100))
    assert (await waiting).status == "completed"


async def test_waiting_ends_in_time(stores: VectorStores, file: StoredFile):
    store = await stores.create(HERE, file_ids=[file.id])
    begun = asyncio.get_running_loop().time()
    assert (await stores.wait(HERE, store.id, file.id, 0.05)).status == "in_progress"
    assert asyncio.get_running_loop().time() - begun < 1


async def test_waiting_for_a_file_that_is_deleted(
    stores: VectorStores, catalog: InMemoryCatalog, file: StoredFile
):
    store = await stores.create(HERE, file_ids=[file.id])
    waiting = asyncio.ensure_future(stores.wait(HERE, store.id, file.id, 10))
    await asyncio.sleep(0.03)
    await catalog.delete_file(HERE, file.id)
    ended = await waiting
    assert (ended.file_id, ended.status) == (file.id, "failed")
    assert ended.last_error is not None
    assert ended.last_error.message == "file deleted during ingestion"
    assert (await stores.wait(HERE, store.id, file.id, 10)).status == "failed"


@pytest.mark.parametrize(
    ("deleted", "message"),
    [(False, "file detached during ingestion"), (True, "vector store deleted during ingestion")],
)
async def test_waiting_for_a_file_that_leaves_the_store(
    stores: VectorStores, file: StoredFile, deleted: bool, message: str
):
    store = await stores.create(HERE, file_ids=[file.id])
    await (stores.delete(HERE, store.id) if deleted else stores.detach(HERE, store.id, file.id))
    ended = await stores.wait(HERE, store.id, file.id, 10)
    assert ended.last_error is not None
    assert (ended.status, ended.last_error.message) == ("failed", message)


async def test_a_file_has_no_text_before_it_is_completed(stores: VectorStores, file: StoredFile):
    store = await stores.create(HERE, file_ids=[file.id])
    assert await stores.file_text(HERE, store.id, file.id) == ""
