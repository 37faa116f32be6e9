"""What is measured of retrieval and ingestion. `docs/operations.md` lists every instrument; a test compares.

Attributes are bounded sets: stages, kinds, file name extensions that Sherlock knows. Never an id, a name or
a text. Without a telemetry endpoint all of these do nothing.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from opentelemetry import metrics

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Bounds of the timers' buckets: from a statement to a large file."""

meter = metrics.get_meter("sherlock")


def timer(name: str, description: str) -> metrics.Histogram:
    """A histogram of seconds."""
    return meter.create_histogram(name, "s", description, explicit_bucket_boundaries_advisory=SECONDS)


# ── files and ingestion ─────────────────────────────────────────────────────

uploads = meter.create_counter(
    "sherlock.rag.uploads.total", "{file}", "files stored, in one piece or in parts"
)
ingest_latency = timer(
    "sherlock.rag.ingest.latency", "one attempt at a job, from its claim until it is settled"
)
queue_depth = meter.create_gauge("sherlock.rag.queue.depth", "{job}", "ingest jobs by state")
queue_oldest_age = meter.create_gauge(
    "sherlock.rag.queue.oldest_age", "s", "age of the oldest job that waits; 0 where none does"
)
orphans = meter.create_gauge(
    "sherlock.rag.orphans",
    "{object}",
    "bytes without a record, and records without bytes; 0 unless something is wrong",
)

# ── retrieval and chat ──────────────────────────────────────────────────────

retrieval_latency = timer(
    "sherlock.rag.retrieval.latency", "a whole retrieval: rewriting, embedding, search, fusion, reranking"
)
search_latency = timer("sherlock.rag.search.latency", "the index's search of one phrasing, both legs")
embed_latency = timer(
    "sherlock.rag.embed.latency", "how long a caller waits for vectors, its turn at the encoder included"
)
degraded = meter.create_counter(
    "sherlock.rag.degraded", "{answer}", "answers that had to do without one of their parts"
)

# ── stages, models and connections ──────────────────────────────────────────

stage_latency = timer("sherlock.rag.stage.latency", "one stage of an ingest, a retrieval or a chat")
errors = meter.create_counter(
    "sherlock.rag.errors", "{error}", "stages that failed, though not by the fault of a request"
)
_model_time = timer("sherlock.model.time", "a model at work: one run, one answer of the language model")
first_piece = timer(
    "sherlock.model.first_piece", "from a request to the language model to the first piece of its answer"
)
pool_wait = timer("sherlock.db.pool.wait", "until a transaction has a connection that answers")


@contextmanager
def model_time(model: Literal["encoder", "reranker", "llm"]) -> Iterator[None]:
    """Counts the time inside as the model's own work; may be used in any thread."""
    began = time.perf_counter()
    try:
        yield
    finally:
        _model_time.record(time.perf_counter() - began, {"model": model})
