"""A batch of a thousand files through the official client: exact statuses, right counts, a lively API."""

import random
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from tests.chaos.corpus import Document, broken, sound
from tests.chaos.scene import scene
from tests.chaos.users import Ingest

FILES = 1_000
BROKEN = FILES * 5 // 100
SIDE_BY_SIDE = 8


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_batch_of_a_thousand_files(folder: Path, seed: int) -> None:
    dice = random.Random(seed)
    sizes = [*dice.choices([1, 2, 3, 5, 8, 20], k=28), 80, 200]
    kinds = [
        *(sound(dice, kind, size) for kind, size in enumerate(sizes)),
        *(broken(dice, k) for k in range(5)),
    ]
    whole, damaged = [d for d in kinds if d.status == "completed"], [d for d in kinds if d.status == "failed"]
    documents = [*dice.choices(whole, k=FILES - BROKEN), *dice.choices(damaged, k=BROKEN)]
    dice.shuffle(documents)

    with scene(folder, dice, kinds, workers=2) as at, ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        client, store = at.plant.deployment.client(), at.new_store()

        def upload(document: Document) -> Ingest:
            file = client.files.create(file=(document.name, document.content), purpose="assistants")
            return Ingest(document, store, file.id)

        began = time.monotonic()
        ingests = [*pool.map(upload, documents)]
        uploaded = time.monotonic()
        with Probe(at.plant.deployment.url) as probe:
            batch = client.vector_stores.file_batches.create_and_poll(
                store, file_ids=[ingest.file_id for ingest in ingests], poll_interval_ms=500
            )
        ended = time.monotonic()
        megabytes = sum(len(document.content) for document in documents) / 1e6
        print(
            f"{FILES} files ({megabytes:.1f} MB, {BROKEN} broken): uploaded in {uploaded - began:.0f} s, "
            f"ingested in {ended - uploaded:.0f} s; /health {probe.report()}"
        )
        counts = batch.file_counts
        assert (batch.status, counts.in_progress, counts.total) == ("completed", 0, FILES)
        assert (counts.completed, counts.failed, counts.cancelled) == (FILES - BROKEN, BROKEN, 0)
        listed = client.vector_stores.file_batches.list_files(batch.id, vector_store_id=store)
        statuses = {member.id: member.status for member in listed}
        for ingest in ingests:
            ingest.status = statuses[ingest.file_id]
        at.ingests += ingests
        at.check()


class Probe:
    """Asks /health some 50 times a second."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._took: list[float] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._ask)

    def __enter__(self) -> "Probe":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def report(self) -> str:
        percentiles = statistics.quantiles(self._took, n=100)
        return (
            f"p50 {percentiles[49] * 1e3:.1f} ms, p99 {percentiles[98] * 1e3:.1f} ms, "
            f"max {max(self._took) * 1e3:.1f} ms over {len(self._took)} probes"
        )

    def _ask(self) -> None:
        with httpx.Client(base_url=self._url, trust_env=False) as probe:
            while not self._stop.wait(0.02):
                sent = time.perf_counter()
                probe.get("/health").raise_for_status()
                self._took.append(time.perf_counter() - sent)
