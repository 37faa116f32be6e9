"""Bytes without a record and records without bytes: counted, told, and removed when a person asks."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from tests.fakes import InMemoryCatalog, MemoryState
from tests.fakes_files import InMemoryFileStore
from tests.fakes_objects import InMemoryLooseObjects
from tests.fakes_reconciling import InMemoryReconciliation

from sherlock.rag import instruments
from sherlock.rag.application import reconcile
from sherlock.rag.application.files import Files, UploadDetails, new_file_id
from sherlock.rag.application.objects import Objects
from sherlock.rag.application.reconcile import Reconciler
from sherlock.rag.domain.errors import FileStoreUnavailable
from sherlock.rag.domain.models import Orphans, StoredFile, WorkspaceId
from sherlock.worker import keep_reconciled

HERE, ELSEWHERE = WorkspaceId("here"), WorkspaceId("elsewhere")


class Bench:
    def __init__(self) -> None:
        state = MemoryState()
        self.store, self.catalog = InMemoryFileStore(), InMemoryCatalog(state)
        objects = Objects(InMemoryLooseObjects(state), self.store)
        self.files = Files(self.catalog, self.store, objects, max_file_bytes=1000)
        self.records = InMemoryReconciliation(state)
        self.reconciler = Reconciler(self.files, self.records, every_s=3600, grace_s=0.01)

    async def add_file(self, workspace: WorkspaceId = HERE) -> StoredFile:
        async def data() -> AsyncIterator[bytes]:
            yield b"text"

        async def details() -> UploadDetails:
            return UploadDetails("assistants")

        return await self.files.upload(workspace, "a.txt", data(), details)

    def leave_bytes(self, workspace: WorkspaceId = HERE) -> str:
        key = f"{workspace}/{new_file_id()}"
        self.store.blobs[key] = b"left over"
        return key


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemoryMetricReader]:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    monkeypatch.setattr(
        instruments, "orphans", provider.get_meter("test").create_gauge("sherlock.rag.orphans")
    )
    yield reader
    provider.shutdown()


def values(reader: InMemoryMetricReader) -> dict[object, float]:
    data = reader.get_metrics_data()
    assert data is not None
    [metric] = data.resource_metrics[0].scope_metrics[0].metrics
    assert metric.name == "sherlock.rag.orphans"
    return {(point.attributes or {})["kind"]: point.value for point in metric.data.data_points}  # type: ignore[union-attr]


async def test_where_all_is_well_nothing_is_found(bench: Bench, told: InMemoryMetricReader) -> None:
    for workspace in (HERE, ELSEWHERE):
        await bench.add_file(workspace)
    bench.store.blobs["somebody's/report.pdf"] = b"not ours"
    assert await bench.reconciler.run_if_due() == Orphans(0, 0)
    assert values(told) == {"bytes": 0, "record": 0}


async def test_both_kinds_are_counted_and_nothing_is_touched(
    bench: Bench, told: InMemoryMetricReader
) -> None:
    files = [await bench.add_file() for _ in range(3)]
    for gone in files[:2]:
        del bench.store.blobs[gone.blob_key]
    bench.leave_bytes(ELSEWHERE)
    before = dict(bench.store.blobs)
    assert await bench.reconciler.run_if_due() == Orphans(1, 2)
    assert values(told) == {"bytes": 1, "record": 2}
    assert bench.store.blobs == before
    assert await bench.catalog.recorded(HERE, [file.id for file in files]) == {file.id for file in files}


async def test_it_looks_again_only_when_it_is_time(bench: Bench) -> None:
    assert await bench.reconciler.run_if_due() == Orphans(0, 0)
    bench.leave_bytes()
    assert await bench.reconciler.run_if_due() == Orphans(0, 0), "what was found last"
    assert await replace(bench.reconciler, every_s=0).run_if_due() == Orphans(1, 0)


async def test_what_was_removed_while_it_was_listed_is_no_orphan(bench: Bench) -> None:
    gone = bench.leave_bytes()
    bench.leave_bytes()
    looking = asyncio.ensure_future(replace(bench.reconciler, grace_s=0.2).run_if_due())
    await asyncio.sleep(0.05)
    await bench.store.delete(gone)
    assert await looking == Orphans(1, 0)


async def test_what_is_deleted_while_the_file_store_is_down_is_no_drift(bench: Bench) -> None:
    file = await bench.add_file()
    bench.store.down = True
    await bench.files.delete(HERE, file.id)
    bench.store.down = False
    assert {*bench.store.blobs} == {file.blob_key}
    assert await bench.reconciler.run_if_due() == Orphans(0, 0)


async def test_a_file_deleted_or_uploaded_meanwhile_is_not_missing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    deleted = await bench.add_file()
    listed = bench.records.files

    async def slow_list(after: int, limit: int) -> list[tuple[int, WorkspaceId, str]]:
        if not after:
            await bench.add_file()
        page = await listed(after, limit)
        if not after:
            await bench.files.delete(HERE, deleted.id)
        return page

    monkeypatch.setattr(bench.records, "files", slow_list)
    assert await bench.reconciler.count() == Orphans(0, 0)


async def test_a_person_removes_bytes_and_on_demand_records(bench: Bench) -> None:
    kept, gone = await bench.add_file(), await bench.add_file()
    del bench.store.blobs[gone.blob_key]
    bench.leave_bytes()
    assert await bench.reconciler.count() == Orphans(1, 1)
    assert await bench.reconciler.remove(records=False) == Orphans(1, 0)
    assert bench.records.found == Orphans(0, 1)
    assert await bench.reconciler.remove(records=True) == Orphans(0, 1)
    assert bench.records.found == Orphans(0, 0)
    assert await bench.catalog.recorded(HERE, [kept.id, gone.id]) == {kept.id}
    assert {*bench.store.blobs} == {kept.blob_key}


async def test_readiness_tells_what_was_found(bench: Bench) -> None:
    assert (await bench.reconciler.file_store_status()).reason is None
    bench.leave_bytes()
    await bench.reconciler.run_if_due()
    status = await bench.reconciler.file_store_status()
    assert status.state == "ready"
    assert "1 objects without a file" in (status.reason or "")
    bench.store.down = True
    with pytest.raises(FileStoreUnavailable):
        await bench.reconciler.file_store_status()


async def test_a_database_that_hangs_is_not_the_file_stores_fault(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang() -> Orphans | None:
        await asyncio.Event().wait()
        return None

    monkeypatch.setattr(reconcile, "_LATEST_TIMEOUT_S", 0.01)
    monkeypatch.setattr(bench.records, "latest", hang)
    assert (await bench.reconciler.file_store_status()).state == "ready"


async def test_a_worker_goes_on_after_an_outage(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.leave_bytes()
    bench.store.down = True
    stop = asyncio.Event()
    always = replace(bench.reconciler, every_s=0)
    with caplog.at_level(logging.WARNING):
        looking = asyncio.ensure_future(keep_reconciled(always, stop, every_s=0.01))
        async with asyncio.timeout(5):
            while not caplog.records:  # noqa: ASYNC110 - the worker tells nobody
                await asyncio.sleep(0.01)
            bench.store.down = False
            while bench.records.found is None:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        stop.set()
        await looking
    assert bench.records.found == Orphans(1, 0)
    assert caplog.records[0].error == "FileStoreUnavailable"  # type: ignore[attr-defined]
