"""The use cases of file batches, and the bound on the queue, over in-memory ports."""

import pytest
from tests.fakes import InMemoryCatalog, InMemoryIngestQueue
from tests.fakes_batches import InMemoryFileBatches
from tests.fakes_index import InMemoryChunkIndex

from sherlock.rag.adapters.hash_embedder import HashEmbedder
from sherlock.rag.application.file_batches import BatchFile, FileBatches
from sherlock.rag.application.queue_limit import QueueLimit
from sherlock.rag.application.vector_stores import VectorStores
from sherlock.rag.domain.errors import Conflict, NotFound, QueueFull
from sherlock.rag.domain.models import ChunkingStrategy, PageRequest, StoredFile, WorkspaceId

HERE = WorkspaceId("here")
DEFAULT = ChunkingStrategy(512, 50)
OWN, OTHER = ChunkingStrategy(200, 20), ChunkingStrategy(300, 30)


@pytest.fixture
def catalog() -> InMemoryCatalog:
    return InMemoryCatalog()


@pytest.fixture
def stores(catalog: InMemoryCatalog) -> VectorStores:
    limit = QueueLimit(InMemoryIngestQueue(catalog.state), max_jobs=3)
    return VectorStores(catalog, InMemoryChunkIndex(catalog.state), HashEmbedder(8), DEFAULT, limit)


@pytest.fixture
def batches(catalog: InMemoryCatalog, stores: VectorStores) -> FileBatches:
    return FileBatches(InMemoryFileBatches(catalog), stores)


async def add_files(catalog: InMemoryCatalog, *ids: str) -> None:
    for id in ids:
        await catalog.add_file(StoredFile(id, HERE, "a.txt", "assistants", 9, "00", 0))


async def test_files_get_the_sizes_they_name_or_the_servers_own(
    catalog: InMemoryCatalog, stores: VectorStores, batches: FileBatches
) -> None:
    await add_files(catalog, "file-a", "file-b")
    store = await stores.create(HERE)
    batch = await batches.create(HERE, store.id, [BatchFile("file-a"), BatchFile("file-b", chunking=OWN)])
    assert batch.id.startswith("vsfb_")
    members = (await batches.list_files(HERE, store.id, batch.id, PageRequest())).items
    assert {member.file_id: member.chunking for member in members} == {"file-a": DEFAULT, "file-b": OWN}


async def test_a_file_named_twice_is_attached_once(
    catalog: InMemoryCatalog, stores: VectorStores, batches: FileBatches
) -> None:
    await add_files(catalog, "file-a")
    store = await stores.create(HERE)
    named = [
        BatchFile("file-a", {"n": 1.0}),
        BatchFile("file-a", chunking=OWN),
        BatchFile("file-a", {"n": 2.0}, OWN),
        BatchFile("file-a"),
    ]
    batch = await batches.create(HERE, store.id, named)
    assert batch.file_counts.total == 1
    member = await stores.get_file(HERE, store.id, "file-a")
    assert (member.attributes, member.chunking) == ({"n": 2.0}, OWN)


async def test_a_file_named_twice_in_different_ways_is_a_conflict(
    catalog: InMemoryCatalog, stores: VectorStores, batches: FileBatches
) -> None:
    await add_files(catalog, "file-a")
    store = await stores.create(HERE)
    with pytest.raises(Conflict):
        await batches.create(
            HERE, store.id, [BatchFile("file-a", chunking=OWN), BatchFile("file-a", chunking=OTHER)]
        )
    with pytest.raises(NotFound):
        await stores.get_file(HERE, store.id, "file-a")


async def test_a_store_of_another_encoder_takes_no_batch(
    catalog: InMemoryCatalog, stores: VectorStores
) -> None:
    await add_files(catalog, "file-a")
    store = await stores.create(HERE)
    other = VectorStores(catalog, stores.index, HashEmbedder(16), DEFAULT)
    with pytest.raises(Conflict, match="encoder"):
        await FileBatches(InMemoryFileBatches(catalog), other).create(HERE, store.id, [BatchFile("file-a")])


async def test_a_full_queue_takes_no_more_files(
    catalog: InMemoryCatalog, stores: VectorStores, batches: FileBatches
) -> None:
    await add_files(catalog, *(f"file-{n}" for n in range(5)))
    store = await stores.create(HERE, file_ids=["file-0", "file-1", "file-2"])
    for refused in (
        stores.create(HERE, file_ids=["file-3"]),
        stores.attach(HERE, store.id, "file-3"),
        batches.create(HERE, store.id, [BatchFile("file-3")]),
    ):
        with pytest.raises(QueueFull) as raised:
            await refused
        assert raised.value.retry_after_s > 0
    await stores.create(HERE)  # without files it needs no room
    assert await InMemoryIngestQueue(catalog.state).claim("worker", 30)
    await stores.attach(HERE, store.id, "file-3")
