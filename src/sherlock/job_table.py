"""Ingest jobs in writing: a plain table for a terminal, JSON for programs."""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict

from sherlock.rag.domain.models import JobRecord

COLUMNS = ("ID", "STATUS", "AGE", "ATTEMPT", "WORKSPACE", "STORE", "FILE", "REASON")


def as_table(jobs: Sequence[JobRecord], *, now: float | None = None) -> str:
    """One line a job under a line of headings; the last column is as long as it is."""
    now = time.time() if now is None else now
    rows = [COLUMNS, *(_row(job, now) for job in jobs)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS) - 1)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]).rstrip()
        for row in rows
    )


def as_json(jobs: JobRecord | Sequence[JobRecord]) -> str:
    """An object, or an array of them, with the members of `JobRecord`."""
    shown = asdict(jobs) if isinstance(jobs, JobRecord) else [asdict(job) for job in jobs]
    return json.dumps(shown, indent=2)


def age(seconds: float) -> str:
    """In its largest unit, rounded down: `59s`, `3m`, `23h`, `12d`."""
    for unit, length in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{int(seconds // length)}{unit}"
    return f"{max(0, int(seconds))}s"


def _row(job: JobRecord, now: float) -> tuple[str, ...]:
    return (
        str(job.id),
        job.state,
        age(now - job.created_at),
        str(job.attempt),
        job.workspace_id,
        job.vector_store_id,
        job.file_id,
        job.reason or "-",
    )
