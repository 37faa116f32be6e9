"""How long a file of 1,000 chunks takes that another store holds already, as a user sees it.

Run with `pytest -m benchmark -s tests/benchmarks/test_second_store.py`. API and worker are processes, the
encoder is the real one, the database writes through. The first store takes some minutes: it is encoded.
"""

import json
import statistics
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from openai import OpenAI
from openai.types import StaticFileChunkingStrategyObjectParam
from tests.benchmarks.test_ingest_speed import prose
from tests.integration.processes import Deployment, deployment, rows

pytestmark = [pytest.mark.benchmark, pytest.mark.torch, pytest.mark.timeout(3600)]

AGAIN = 5
"""Further stores."""
POLL_MS = 50

# All that search reads of a file. Keys carry the store's number, so terms are compared by their weights.
INDEXED = """
    select c.chunk_index, c.content, c.char_start, c.char_end, c.page, c.heading, c.gap, c.page_breaks,
           c.digest, cast(t.weights as text),
           array(select cast(embedding as text) from chunk_windows where chunk_id = c.id order by part)
    from knowledge_chunks c join chunk_terms t on t.chunk_id = c.id
    where c.vector_store_id = $1 order by c.chunk_index
"""
# How many terms have each document frequency.
FREQUENCIES = """
    select d.df, count(*) from term_df d join vector_stores s using (store_no)
    where s.id = $1 and d.df > 0 group by d.df order by d.df
"""
STAGES = "select stage_ms from ingest_jobs where vector_store_id = $1"
WINDOWS = "select chunk_count, window_count from vector_store_files where vector_store_id = $1"


@pytest.mark.parametrize(
    ("chunk_tokens", "overlap_tokens", "characters"),
    [pytest.param(512, 50, 2_200_000, id="default"), pytest.param(160, 16, 545_000, id="one-window")],
)
async def test_a_thousand_chunks_in_a_second_store(
    folder: Path, chunk_tokens: int, overlap_tokens: int, characters: int
) -> None:
    running = deployment(folder, reranker_model="none", ready_path="/health")
    chunking: StaticFileChunkingStrategyObjectParam = {
        "type": "static",
        "static": {"max_chunk_size_tokens": chunk_tokens, "chunk_overlap_tokens": overlap_tokens},
    }
    with running.running("serve", "worker"):
        client = running.client()
        file = client.files.create(
            file=("text.txt", "".join(prose(characters)).encode()), purpose="assistants"
        )
        first, first_s = attached(client, file.id, chunking)
        [(chunks, windows)] = await rows(running, WINDOWS, first)
        expected = [await rows(running, sql, first) for sql in (INDEXED, FREQUENCIES)]
        print(f"\n{chunks} chunks, {windows} windows: first store {first_s:.1f} s")
        took: list[float] = []
        for _ in range(AGAIN):
            store, seconds = attached(client, file.id, chunking)
            took.append(seconds)
            stages = await stages_of(running, store)
            told = ", ".join(f"{name} {ms / 1e3:.2f}" for name, ms in stages.items())
            print(f"another store {seconds:.2f} s: {told}, rest {seconds - sum(stages.values()) / 1e3:.2f}")
            assert [await rows(running, sql, store) for sql in (INDEXED, FREQUENCIES)] == expected
    print(f"median {statistics.median(took):.2f} s, at most {max(took):.2f} s")


def attached(
    client: OpenAI, file_id: str, chunking: StaticFileChunkingStrategyObjectParam
) -> tuple[str, float]:
    """A new store that has the file, and the seconds from the call that attaches it until it is completed."""
    store = client.vector_stores.create()
    began = time.perf_counter()
    member = client.vector_stores.files.create_and_poll(
        file_id, vector_store_id=store.id, chunking_strategy=chunking, poll_interval_ms=POLL_MS
    )
    seconds = time.perf_counter() - began
    assert member.status == "completed", member.last_error
    return store.id, seconds


async def stages_of(running: Deployment, store: str) -> Mapping[str, float]:
    """Milliseconds of the worker by stage."""
    [(stages,)] = await rows(running, STAGES, store)
    assert isinstance(stages, str)
    found: dict[str, float] = json.loads(stages)
    return found
