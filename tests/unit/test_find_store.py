"""Which vector store the command line means by a name."""

from dataclasses import dataclass, replace
from typing import cast

import pytest
from tests.fakes import InMemoryCatalog, MemoryState
from tests.fakes_index import InMemoryChunkIndex

from sherlock.cli import find_store
from sherlock.rag.adapters.hash_embedder import HashEmbedder
from sherlock.rag.application.vector_stores import VectorStores
from sherlock.rag.domain.models import DEFAULT_WORKSPACE, ChunkingStrategy
from sherlock.wiring import Rag


@dataclass
class StoresOnly:
    vector_stores: VectorStores


@pytest.fixture
def state() -> MemoryState:
    return MemoryState()


@pytest.fixture
def rag(state: MemoryState) -> Rag:
    stores = VectorStores(
        InMemoryCatalog(state), InMemoryChunkIndex(state), HashEmbedder(), ChunkingStrategy(512, 50)
    )
    return cast(Rag, StoresOnly(stores))


async def test_an_id_or_the_newest_of_a_name(rag: Rag) -> None:
    older, newer = [await rag.vector_stores.create(DEFAULT_WORKSPACE, name="plant") for _ in range(2)]
    assert await find_store(rag, "plant") == newer
    assert await find_store(rag, older.id) == older
    assert await find_store(rag, "plan") is None


async def test_an_expired_store_is_as_none(rag: Rag, state: MemoryState) -> None:
    older, newer = [await rag.vector_stores.create(DEFAULT_WORKSPACE, name="plant") for _ in range(2)]
    state.stores[DEFAULT_WORKSPACE, newer.id] = replace(newer, expired=True)
    assert await find_store(rag, "plant") == older
    assert await find_store(rag, newer.id) is None
