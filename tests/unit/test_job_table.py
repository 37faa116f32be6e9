"""Ingest jobs in writing."""

import json

from sherlock.job_table import age, as_json, as_table
from sherlock.rag.domain.models import JobRecord, WorkspaceId

JOB = JobRecord(
    7, WorkspaceId("default"), "vs_1", "file-1", "a.txt", "failed", 2, 2, 1000, 1000, 1100, "No text."
)


def test_a_table_has_a_line_a_job() -> None:
    heading, line = as_table([JOB], now=1000 + 3 * 3600).splitlines()
    assert line == "7   failed  3h   2        default    vs_1   file-1  No text."
    assert heading.index("REASON") == line.index("No text.")
    assert as_table([], now=0).split()[0] == "ID"


def test_json_has_what_a_record_has() -> None:
    assert json.loads(as_json([JOB]))[0] == json.loads(as_json(JOB))
    assert json.loads(as_json(JOB))["reason"] == "No text."


def test_ages_are_told_in_their_largest_unit() -> None:
    shown = [age(seconds) for seconds in (-1, 0, 59, 60, 3599, 3600, 86_399, 86_400, 10 * 86_400)]
    assert shown == ["0s", "0s", "59s", "1m", "59m", "1h", "23h", "1d", "10d"]
