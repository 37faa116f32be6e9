"""The trace of a request, handed on and taken up again."""

import asyncio
import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace

from sherlock.observability import JsonFormatter
from sherlock.rag import instruments, tracing
from sherlock.rag.application import spans
from sherlock.rag.domain.correlation import UNKNOWN, Correlation, request_id
from sherlock.rag.domain.errors import EmbedderUnavailable, InvalidFile, LeaseLost, NotFound

TRACES = st.integers(1, 2**128 - 1).map("{:032x}".format)
SPANS = st.integers(1, 2**64 - 1).map("{:016x}".format)
TRACEPARENTS = st.builds("00-{}-{}-{}".format, TRACES, SPANS, st.sampled_from(["00", "01"]))


@given(st.builds(Correlation, st.none() | st.text(max_size=20), st.none() | TRACEPARENTS))
def test_what_was_remembered_is_what_is_resumed(correlation: Correlation) -> None:
    with tracing.resumed(correlation):
        assert tracing.current() == correlation
    assert tracing.current() == UNKNOWN


@given(TRACEPARENTS, TRACEPARENTS)
def test_a_job_belongs_to_its_own_request_alone(outer: str, inner: str) -> None:
    with tracing.resumed(Correlation("outer", outer)):
        with tracing.resumed(UNKNOWN):
            assert tracing.current() == UNKNOWN
        with tracing.resumed(Correlation("inner", inner)):
            assert tracing.current() == Correlation("inner", inner)
        assert tracing.current() == Correlation("outer", outer)


@given(st.text() | TRACEPARENTS.map(lambda given: given[:-1]) | TRACEPARENTS.map(lambda given: given + "0"))
def test_a_header_that_is_no_trace_is_passed_over(header: str) -> None:
    context = tracing.received({"traceparent": header, "tracestate": header})
    span = trace.get_current_span(context).get_span_context()
    assert not span.is_valid


def test_baggage_is_not_handed_on() -> None:
    with tracing.resumed(Correlation(None, "00-" + "1" * 32 + "-" + "2" * 16 + "-01")):
        assert tracing.headers().keys() == {"traceparent"}


def test_log_lines_carry_the_trace() -> None:
    record = logging.makeLogRecord({"name": "sherlock.worker", "msg": "job completed"})
    with tracing.resumed(Correlation("asked", "00-" + "1" * 32 + "-" + "2" * 16 + "-01")):
        line = json.loads(JsonFormatter().format(record))
    assert (line["request_id"], line["trace_id"], line["span_id"]) == ("asked", "1" * 32, "2" * 16)
    line = json.loads(JsonFormatter().format(record))
    assert not line.keys() & {"request_id", "trace_id", "span_id"}
    assert request_id.get() is None


# ── stages ──────────────────────────────────────────────────────────────────


class Counted:
    def __init__(self) -> None:
        self.stages: list[object] = []

    def add(self, _: int, labels: dict[str, str]) -> None:
        self.stages.append(labels["stage"])


async def test_the_times_of_stages_are_summed_also_those_of_tasks() -> None:
    async def one(name: str) -> None:
        with spans.stage(name):
            await asyncio.sleep(0.01)

    with spans.collected() as times:
        await one("ingest.parse")
        await asyncio.gather(one("ingest.parse"), one("ingest.embed"))
    await one("ingest.publish")
    assert times.keys() == {"ingest.parse", "ingest.embed"}
    assert times["ingest.parse"] > times["ingest.embed"] > 0.005


@pytest.mark.parametrize(
    ("error", "counted"),
    [
        (InvalidFile("It is broken."), True),
        (EmbedderUnavailable("It is off."), True),
        (LookupError("a fault of ours"), True),
        (NotFound("File", "file-1"), False),
        (LeaseLost(), False),
        (asyncio.CancelledError(), False),
    ],
    ids=lambda given: type(given).__name__,
)
def test_only_what_is_broken_counts_as_an_error(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, counted: bool
) -> None:
    errors = Counted()
    monkeypatch.setattr(instruments, "errors", errors)
    with pytest.raises(type(error)), spans.stage("ingest.parse"):
        raise error
    assert errors.stages == ["ingest.parse"] * counted
