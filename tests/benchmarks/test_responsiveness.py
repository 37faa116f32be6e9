"""How quickly processes start, and how lively the API stays while a large file is ingested."""

import io
import itertools
import random
import re
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from reportlab.lib.pagesizes import A4
from reportlab.pdfgen.canvas import Canvas
from tests.integration.processes import deployment
from tests.otlp_receiver import otlp_receiver

pytestmark = [pytest.mark.benchmark, pytest.mark.torch, pytest.mark.timeout(3600)]

PAGES = 300
PROBES_PER_S = 50


def book(pages: int, seed: int) -> bytes:
    """A PDF of `pages` full pages of made-up prose."""
    dice = random.Random(seed)
    words = ["".join(dice.choices("abcdefghijklmnoprstuvw", k=dice.randint(2, 9))) for _ in range(2_000)]
    file = io.BytesIO()
    canvas = Canvas(file, pagesize=A4)
    for page in range(1, pages + 1):
        text = canvas.beginText(50, 790)
        text.textLine(f"Chapter {page}")
        for _ in range(48):
            text.textLine(" ".join(dice.choices(words, k=13)))
        canvas.drawText(text)
        canvas.showPage()
    canvas.save()
    return file.getvalue()


def quantile(values: list[float], q: float) -> float:
    return statistics.quantiles(values, n=100)[round(q * 100) - 1]


def test_health_while_a_book_is_ingested(folder: Path) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    running = deployment(folder)
    with running.running("serve", "worker"), httpx.Client(base_url=running.url, trust_env=False) as probe:
        client = running.client()
        store = client.vector_stores.create()
        stored = client.files.create(file=("book.pdf", book(PAGES, seed)), purpose="assistants")
        took: list[float] = []
        began = time.perf_counter()
        client.vector_stores.files.create(store.id, file_id=stored.id)
        status = "in_progress"
        while status == "in_progress":
            for _ in range(PROBES_PER_S * 2):
                sent = time.perf_counter()
                probe.get("/health").raise_for_status()
                took.append(time.perf_counter() - sent)
                time.sleep(1 / PROBES_PER_S)
            status = client.vector_stores.files.retrieve(stored.id, vector_store_id=store.id).status
        seconds = time.perf_counter() - began
        usage = client.vector_stores.retrieve(store.id).usage_bytes
    print(
        f"\n{PAGES} pages (seed {seed}): {status} in {seconds:.0f} s, {usage:,} bytes in the store; "
        f"/health p50 {quantile(took, 0.5) * 1e3:.1f} ms, p99 {quantile(took, 0.99) * 1e3:.1f} ms, "
        f"max {max(took) * 1e3:.1f} ms over {len(took)} probes"
    )
    assert status == "completed"


def test_loops_while_books_are_ingested_and_searches_reranked(folder: Path) -> None:
    """One process encodes pages, another encodes queries and reranks; both keep their event loops turning.

    The lag is what the processes measure themselves and send to a collector, in the buckets of its timer.
    """
    seed = random.SystemRandom().randrange(1 << 32)
    health: list[float] = []
    searches: list[dict[str, object]] = []
    done = threading.Event()
    with otlp_receiver() as received:
        running = deployment(folder, rerank_budget_ms="400")
        collected = {"OTEL_EXPORTER_OTLP_ENDPOINT": received.url, "OTEL_METRIC_EXPORT_INTERVAL": "5000"}
        with running.running("serve", "worker", **collected):
            client = running.client()
            known = client.files.create(file=("known.pdf", book(10, seed)), purpose="assistants")
            store = client.vector_stores.create()
            client.vector_stores.files.create_and_poll(known.id, vector_store_id=store.id)

            def search() -> None:
                text = client.vector_stores.files.content(known.id, vector_store_id=store.id).data[0].text
                words = itertools.cycle(re.findall(r"[a-z]{4,}", text or ""))
                while not done.is_set():
                    question = " ".join(itertools.islice(words, 6))
                    asked = {"query": question, "include": ["sherlock"]}
                    answer = httpx.post(
                        f"{running.url}/v1/vector_stores/{store.id}/search", json=asked, timeout=60
                    )
                    searches.append(answer.raise_for_status().json()["sherlock"])

            def probe() -> None:
                with httpx.Client(base_url=running.url, trust_env=False) as client:
                    while not done.is_set():
                        sent = time.perf_counter()
                        client.get("/health").raise_for_status()
                        health.append(time.perf_counter() - sent)
                        time.sleep(1 / PROBES_PER_S)

            book_file = client.files.create(file=("book.pdf", book(PAGES, seed + 1)), purpose="assistants")
            with ThreadPoolExecutor(2) as threads:
                beside = [threads.submit(search), threads.submit(probe)]
                try:
                    ended = client.vector_stores.files.create_and_poll(book_file.id, vector_store_id=store.id)
                finally:
                    done.set()
                for one in beside:
                    one.result()
    reranked = sum("rerank" in found["stages"] for found in searches)  # type: ignore[operator]
    print(
        f"\n{PAGES} pages (seed {seed}): {ended.status}; beside it {len(searches)} searches, "
        f"{reranked} reranked; "
        f"/health p50 {quantile(health, 0.5) * 1e3:.1f} ms, p99 {quantile(health, 0.99) * 1e3:.1f} ms"
    )
    for process in ("serve", "worker"):
        bounds, counts = received.buckets["sherlock.process.loop_lag", process]
        within = {
            bound: sum(counts[: place + 1]) / sum(counts) for place, bound in enumerate(bounds) if bound < 0.2
        }
        shares = ", ".join(f"{share:.1%} within {bound * 1e3:g} ms" for bound, share in within.items())
        print(f"{process}: {sum(counts)} looks at the event loop, {shares}")
    assert ended.status == "completed"
    assert reranked


def test_starts(folder: Path) -> None:
    gateway = deployment(
        folder, rag_enabled="false", llm_base_url="http://127.0.0.1:9/v1", ready_path="/health"
    )
    for attempt in ("first", "second"):
        began = time.perf_counter()
        with gateway.running("serve"):
            print(f"\ngateway, {attempt} start: serves after {time.perf_counter() - began:.1f} s", end="")
    whole = deployment(folder)
    for attempt in ("first (models converted before)", "second"):
        began = time.perf_counter()
        with whole.running("up"):
            print(f"\nsherlock up, {attempt} start: ready after {time.perf_counter() - began:.1f} s", end="")
    print()
