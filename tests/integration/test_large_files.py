"""A large file is published in parts: what is found meanwhile, and what comes of one that is broken off."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import asyncpg
import pytest
from sqlalchemy import text
from tests.chaos.background import background
from tests.chaos.tcp_proxy import tcp_proxy
from tests.ports.test_chunk_index import (
    MANUAL,
    Bench,
    assert_consistent,
    axis,
    embedded,
    postgres_bench,
    texts_of,
)
from tests.ports.test_ingest_queue import at_port, socket_of

from sherlock.rag.adapters import pgvector, postgres
from sherlock.rag.adapters.pgvector import parts
from sherlock.rag.adapters.pgvector import search as search_module
from sherlock.rag.adapters.pgvector.siblings import read_weights
from sherlock.rag.adapters.postgres import Database
from sherlock.rag.domain.errors import DatabaseUnavailable, LeaseLost
from sherlock.rag.domain.models import Comparison, IngestJob, LastError

__all__ = ["postgres_bench"]

BOOK = [f"The feed pump of page {number} stops when its valve{number} closes." for number in range(7)]

CHUNK_ROWS = text("""
    select chunk_index, id from knowledge_chunks
    where vector_store_id = :store and file_id = :file order by chunk_index
""")
FREQUENCIES = text("""
    select d.store_no, d.key, d.df from term_df d join vector_stores s using (store_no)
    where s.workspace_id = :workspace and d.df <> 0 order by 1, 2
""")
WAITING = text("""
    select count(*) from pg_stat_activity
    where datname = current_database() and usename = current_user and wait_event_type = 'Lock'
""")
FAIL_AT = """
    create function sherlock.fail() returns trigger language plpgsql as $$
    begin perform pg_sleep({}); raise exception 'no' using errcode = '57014'; end $$;
    create trigger fail before insert on sherlock.knowledge_chunks
        for each row when (new.chunk_index = {}) execute function sherlock.fail();
"""
FAIL_NO_MORE = """
    drop trigger if exists fail on sherlock.knowledge_chunks;
    drop function if exists sherlock.fail;
"""


@pytest.fixture
def bench(postgres_bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Two chunks are a part, so that anything above is a large file; one part goes after the other."""
    monkeypatch.setattr(pgvector, "CHUNKS_AT_ONCE", 2)
    monkeypatch.setattr(pgvector, "PARTS_AT_ONCE", 1)
    return postgres_bench


@contextlib.asynccontextmanager
async def failing_at(owner_url: str, chunk_index: int, after_s: float = 0) -> AsyncIterator[None]:
    """The database refuses this chunk."""
    owner = await asyncpg.connect(owner_url)
    try:
        await owner.execute(FAIL_AT.format(after_s, chunk_index))
        yield
    finally:
        await owner.execute(FAIL_NO_MORE)
        await owner.close()


async def break_off(bench: Bench, owner_url: str, job: IngestJob, texts: Sequence[str] = BOOK) -> None:
    """Publish all of `texts` but for the end."""
    await bench.index.stage(job.lease, await embedded(texts))
    async with failing_at(owner_url, 5):
        with pytest.raises(DatabaseUnavailable):
            await bench.index.publish(job.lease, len(texts))


async def rows_of(database: Database, store: str, file: str) -> dict[int, int]:
    """Hidden or not: the number of each chunk's row."""
    async with database.transaction() as connection:
        rows = await connection.execute(CHUNK_ROWS, {"store": store, "file": file})
        return {row.chunk_index: row.id for row in rows}


async def frequencies(bench: Bench, database: Database) -> list[tuple[int, int, int]]:
    async with database.transaction() as connection:
        found = await connection.execute(FREQUENCIES, {"workspace": bench.workspace})
        return [tuple(row) for row in found]


async def one_waits(database: Database) -> None:
    """Until somebody waits for a row that another has locked."""
    async with asyncio.timeout(20):
        while True:
            async with database.transaction() as connection:
                if await connection.scalar(WAITING):
                    return
            await asyncio.sleep(0.02)


async def clear_all(bench: Bench) -> int:
    rounds = 0
    while await bench.index.clear_unpublished():
        rounds += 1
    return rounds


async def test_nothing_of_an_unfinished_file_is_found(
    bench: Bench, database: Database, owner_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other = await bench.add_store(), await bench.add_store()
    await bench.ingest(store, MANUAL)
    file = await bench.add_file()
    await bench.ingest(other, BOOK, file=file)  # the same file, but there it is complete
    before = await frequencies(bench, database)
    await break_off(bench, owner_url, await bench.attach(store, file))

    assert list(await rows_of(database, store, file)) == [0, 1, 2, 3]
    assert await frequencies(bench, database) == before
    assert await bench.index.chunks(bench.workspace, store, file) == []
    for ratio in (search_module.SCAN_COST_RATIO, 0.0):  # a scan, and the graph
        monkeypatch.setattr(search_module, "SCAN_COST_RATIO", ratio)
        for alpha in (0.0, 0.5, 1.0):
            found = texts_of(await bench.search("valve1 of the pump", store, alpha=alpha))
            assert found <= set(MANUAL)
            assert len(found) == (1 if alpha == 0.0 else len(MANUAL))  # all there are
        assert texts_of(await bench.search("valve1", store, where=Comparison("ne", "a", "b"))) <= set(MANUAL)
        assert len(await bench.search("valve1 of the pump", store, other)) == len(MANUAL) + len(BOOK)


async def test_publishing_goes_on_where_it_was_broken_off(
    bench: Bench, database: Database, owner_url: str
) -> None:
    store, file = await bench.add_store(), await bench.add_file()
    job = await bench.attach(store, file)
    await break_off(bench, owner_url, job)
    kept = await rows_of(database, store, file)
    assert list(kept) == [0, 1, 2, 3]
    await bench.queue.release(job.lease)
    with pytest.raises(LeaseLost):
        await bench.index.publish(job.lease, len(BOOK))
    again = await bench.claim()
    assert not await bench.index.clear_unpublished()  # a job is at it
    assert len(await bench.index.staged(again.lease)) == len(BOOK)
    published = await bench.index.publish(again.lease, len(BOOK))
    assert published == await bench.index.publish(again.lease, len(BOOK))
    await bench.queue.complete(again.lease, published)
    assert kept.items() <= (await rows_of(database, store, file)).items()
    assert texts_of(await bench.search("pump", store)) == set(BOOK)
    assert [one.text for one in await bench.index.chunks(bench.workspace, store, file)] == BOOK
    await assert_consistent(database, bench.workspace)


async def test_a_part_that_is_missing_before_others_is_put_in(
    bench: Bench, database: Database, owner_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pgvector, "PARTS_AT_ONCE", 2)
    store, file = await bench.add_store(), await bench.add_file()
    job = await bench.attach(store, file)
    await bench.index.stage(job.lease, await embedded(BOOK))
    async with failing_at(owner_url, 1, after_s=2):  # the other parts are there by then
        with pytest.raises(DatabaseUnavailable):
            await bench.index.publish(job.lease, len(BOOK))
    kept = await rows_of(database, store, file)
    assert sorted(kept) == list(range(2, len(BOOK)))
    await bench.queue.complete(job.lease, await bench.index.publish(job.lease, len(BOOK)))
    assert kept.items() <= (await rows_of(database, store, file)).items()
    assert [one.text for one in await bench.index.chunks(bench.workspace, store, file)] == BOOK
    await assert_consistent(database, bench.workspace)


@pytest.mark.parametrize("at_once", [2, 5])
async def test_parts_side_by_side_leave_the_same(
    bench: Bench, database: Database, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(pgvector, "PARTS_AT_ONCE", at_once)
    store = await bench.add_store()
    texts = [f"pump number {number} of the same words" for number in range(41)]
    file = await bench.ingest(store, texts)
    assert [one.text for one in await bench.index.chunks(bench.workspace, store, file)] == texts
    await assert_consistent(database, bench.workspace)


async def test_a_sibling_that_goes_while_it_is_copied_is_made_again(
    bench: Bench, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pgvector, "COPIED_AT_ONCE", 2)
    one, another = await bench.add_store(), await bench.add_store()
    file = await bench.add_file()
    first = await bench.attach(one, file)
    await bench.index.stage(first.lease, await embedded(BOOK))
    published = await bench.index.publish(first.lease, len(BOOK))
    await bench.queue.complete(first.lease, replace(published, read_by="reader"))
    job = await bench.attach(another, file)

    async def after_the_first_two(*args: Any) -> list[tuple[int, Any]]:
        weights = await read_weights(*args)
        if args[2]:  # the weights are read; the chunks go before they are copied
            await bench.catalog.detach_file(bench.workspace, one, file)
        return weights

    monkeypatch.setattr(pgvector, "read_weights", after_the_first_two)
    assert await bench.index.stage_copy(job.lease, "reader") is None
    assert await bench.index.stage_copy(job.lease, "reader") is None
    await bench.index.stage(job.lease, await embedded(BOOK))
    await bench.queue.complete(job.lease, await bench.index.publish(job.lease, len(BOOK)))
    assert [made.text for made in await bench.index.chunks(bench.workspace, another, file)] == BOOK
    await assert_consistent(database, bench.workspace)


@pytest.mark.parametrize("count", [3, len(BOOK)])
async def test_a_text_that_is_cut_anew_starts_anew(
    bench: Bench, database: Database, owner_url: str, count: int
) -> None:
    store, file = await bench.add_store(), await bench.add_file()
    job = await bench.attach(store, file)
    await break_off(bench, owner_url, job)
    texts = ["Another first chunk, of a zeppelin.", *BOOK[1:count]]
    await bench.index.stage(job.lease, (await embedded(texts))[:1])
    await bench.queue.complete(job.lease, await bench.index.publish(job.lease, count))
    assert texts_of(await bench.search("zeppelin", store)) == set(texts)
    await assert_consistent(database, bench.workspace)


async def test_a_large_file_replaces_what_was_there(bench: Bench, database: Database) -> None:
    store, file = await bench.add_store(), await bench.add_file()
    job = await bench.attach(store, file)
    for texts in (MANUAL, BOOK, BOOK[:2]):
        await bench.index.stage(job.lease, await embedded(texts))
        await bench.index.publish(job.lease, len(texts))
        assert texts_of(await bench.search("pump", store)) == set(texts)
        await assert_consistent(database, bench.workspace)


@pytest.mark.parametrize("how", ["cancelled", "attached again", "file deleted", "store deleted"])
async def test_what_is_given_up_half_way_leaves_nothing(
    bench: Bench, database: Database, owner_url: str, how: str
) -> None:
    store, file = await bench.add_store(), await bench.add_file()
    await bench.ingest(store, MANUAL)
    await break_off(bench, owner_url, await bench.attach(store, file))
    if how == "file deleted":
        await bench.catalog.delete_file(bench.workspace, file)
    elif how == "store deleted":
        await bench.catalog.delete_vector_store(bench.workspace, store)
    else:
        await bench.catalog.cancel_file(bench.workspace, store, file)
    if how == "attached again":
        job = await bench.attach(store, file)
        await bench.index.stage(job.lease, await embedded(BOOK))
        await bench.queue.complete(job.lease, await bench.index.publish(job.lease, len(BOOK)))
        assert texts_of(await bench.search("pump", store)) == {*MANUAL, *BOOK}
    else:
        # Two parts, and a look whether any is left.
        assert await clear_all(bench) == (3 if how == "cancelled" else 0)
        assert await rows_of(database, store, file) == {}
    await assert_consistent(database, bench.workspace)


@pytest.mark.parametrize("texts", [BOOK[:1], BOOK], ids=["small", "large"])
async def test_who_clears_beside_the_housekeeper_shows_nothing_that_is_left(
    bench: Bench, database: Database, owner_url: str, texts: Sequence[str]
) -> None:
    store, file = await bench.add_store(), await bench.add_file()
    await bench.ingest(store, MANUAL)
    await break_off(bench, owner_url, await bench.attach(store, file))
    await bench.catalog.cancel_file(bench.workspace, store, file)
    job = await bench.attach(store, file)
    await bench.index.stage(job.lease, await embedded(texts))
    async with database.transaction() as housekeeper:
        assert await parts.clear_left_behind(housekeeper, 2)  # of four
        publishing = asyncio.create_task(bench.index.publish(job.lease, len(texts)))
        await one_waits(database)
    await bench.queue.complete(job.lease, await publishing)
    assert texts_of(await bench.search("pump", store)) == {*MANUAL, *texts}
    await assert_consistent(database, bench.workspace)


async def test_the_graph_finds_enough_beyond_hidden_chunks(
    bench: Bench, owner_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The nearest vectors are all of a file that nobody may find yet."""
    monkeypatch.setattr(search_module, "SCAN_COST_RATIO", 0.0)
    store = await bench.add_store()
    await bench.ingest(store, MANUAL)
    job = await bench.attach(store, await bench.add_file())
    await break_off(bench, owner_url, job, ["pump"] * 6)
    found = await bench.search("", store, alpha=1, vector=(await embedded(["pump"]))[0].windows[0])
    assert texts_of(found) == set(MANUAL)
    assert texts_of(await bench.search("", store, alpha=1, vector=axis(0), candidates=2)) < set(MANUAL)


@pytest.mark.parametrize("texts", [MANUAL[:2], BOOK], ids=["small", "large"])
@pytest.mark.parametrize("end", ["cancelled", "failed", "out of attempts"])
async def test_a_file_that_ends_between_publishing_and_completion_leaves_nothing(
    bench: Bench, database: Database, texts: Sequence[str], end: str
) -> None:
    store, other = await bench.add_store(), await bench.add_store()
    await bench.ingest(store, ["Another pump."])
    file = await bench.add_file()
    await bench.ingest(other, texts, file=file)
    before = await frequencies(bench, database)
    job = await bench.attach(store, file)
    await bench.index.stage(job.lease, await embedded(texts))
    await bench.index.publish(job.lease, len(texts))
    assert not await bench.index.clear_unpublished()  # it may be completed yet
    error = LastError("server_error", "It came to nothing.")
    if end == "cancelled":
        await bench.catalog.cancel_file(bench.workspace, store, file)
    elif end == "failed":
        await bench.queue.fail(job.lease, error)
    else:
        while await bench.queue.retry(job.lease, 0, error, counted=True):
            job = await bench.claim()

    assert await clear_all(bench) >= 1
    assert await rows_of(database, store, file) == {}
    assert await frequencies(bench, database) == before
    member = await bench.catalog.get_membership(bench.workspace, store, file)
    assert (member.chunk_count, member.usage_bytes) == (0, 0)
    assert texts_of(await bench.search("pump", other)) == set(texts)
    assert not await bench.index.clear_unpublished()
    await assert_consistent(database, bench.workspace)


@pytest.mark.parametrize("texts", [MANUAL[:2], BOOK], ids=["small", "large"])
@pytest.mark.parametrize("then", ["in progress", "cancelled", "completed"])
async def test_what_a_file_left_is_not_found_when_it_starts_over(
    bench: Bench, database: Database, texts: Sequence[str], then: str
) -> None:
    store, file = await bench.add_store(), await bench.add_file()
    await bench.ingest(store, ["Another pump."])
    before = await frequencies(bench, database)
    job = await bench.attach(store, file)
    await bench.index.stage(job.lease, await embedded(texts))
    await bench.index.publish(job.lease, len(texts))
    await bench.catalog.cancel_file(bench.workspace, store, file)
    job = await bench.attach(store, file)  # before any housekeeper came by
    if then == "cancelled":
        await bench.catalog.cancel_file(bench.workspace, store, file)
    if then == "completed":
        await bench.finish(job, await embedded(["A new pump."]))
        assert texts_of(await bench.search("pump", store)) == {"Another pump.", "A new pump."}
    else:
        assert texts_of(await bench.search("pump", store)) == {"Another pump."}
        assert await rows_of(database, store, file) == {}
        assert await frequencies(bench, database) == before
    assert not await bench.index.clear_unpublished()
    await assert_consistent(database, bench.workspace)


async def test_who_is_frozen_while_it_stages_does_not_keep_the_job(
    bench: Bench, database: Database, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows are on their way, and its silence is noticed by the server, not by itself."""
    monkeypatch.setitem(postgres._SESSION_SETTINGS, "idle_in_transaction_session_timeout", "500ms")
    job = await bench.attach(await bench.add_store(), await bench.add_file())
    rows = [replace(one, windows=one.windows * 2000) for one in await embedded(BOOK)]
    free = text("select 1 from ingest_jobs where id = :job for update skip locked")

    async def is_free() -> bool:
        async with database.transaction() as connection:
            return await connection.scalar(free, {"job": job.lease.job_id}) is not None

    with background() as loop, tcp_proxy(socket_of(database_url), loop) as network:
        cut_off = await Database.open(at_port(database_url, network.port), pool_size=1)
        network.stalls_after = 1_000_000  # of ten
        staging = asyncio.create_task(pgvector.PgvectorIndex(cut_off).stage(job.lease, rows))
        while network.stalls_after >= 0:
            assert not staging.done(), "it was staged before it could be frozen"
            await asyncio.sleep(0.001)
        async with asyncio.timeout(20):
            while not await is_free():  # noqa: ASYNC110 - the database tells nobody
                await asyncio.sleep(0.05)
        network.restore()
        with pytest.raises(DatabaseUnavailable):
            await staging
        await cut_off.close()
