"""One span and one timing for each stage of a use case: what people see of an ingest or a search."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from opentelemetry.trace import Span, SpanKind, StatusCode, get_tracer

from sherlock.rag import instruments
from sherlock.rag.domain.errors import LeaseLost, RequestError

LONGEST_CONTENT = 4_000
"""Characters of a text on a span: a whole document would burst the exporter's requests."""

_tracer = get_tracer("sherlock.rag")
_collected: ContextVar[dict[str, float] | None] = ContextVar("collected", default=None)
_content_shown = False


@contextmanager
def stage(name: str, **counts: int) -> Iterator[Span]:
    """A span of that name (`ingest.parse`, `retrieve.rerank`), counts as attributes; its time is recorded.

    Of an error it tells the kind alone: the text of a foreign error may quote a document or a question.
    """
    began = time.perf_counter()
    try:
        with span(name, counts) as opened:
            yield opened
    except (LeaseLost, RequestError):
        raise  # nothing is broken: the job was let go, the request was wrong
    except Exception:
        instruments.errors.add(1, {"stage": name})
        raise
    finally:
        took = time.perf_counter() - began
        instruments.stage_latency.record(took, {"stage": name})
        if (times := _collected.get()) is not None:
            times[name] = times.get(name, 0.0) + took


@contextmanager
def span(
    name: str, attributes: Mapping[str, str | int | None], *, kind: SpanKind = SpanKind.INTERNAL
) -> Iterator[Span]:
    """A span that is no stage: what stages belong to. Attributes that are `None` are left out."""
    given = {key: value for key, value in attributes.items() if value is not None}
    with _tracer.start_as_current_span(
        name, kind=kind, attributes=given, record_exception=False, set_status_on_exception=False
    ) as opened:
        try:
            yield opened
        except Exception as error:
            opened.set_status(StatusCode.ERROR, type(error).__name__)
            raise


@contextmanager
def collected() -> Iterator[dict[str, float]]:
    """Seconds spent in each stage inside the block, by name, also in the tasks that are begun there."""
    times: dict[str, float] = {}
    token = _collected.set(times)
    try:
        yield times
    finally:
        _collected.reset(token)


# ── content ─────────────────────────────────────────────────────────────────


def show_content(shown: bool) -> None:
    """Whether spans of this process carry texts of documents, questions and answers; off unless asked for."""
    global _content_shown
    _content_shown = shown


def content(opened: Span, **texts: Callable[[], str]) -> None:
    """Put texts on a span, as `sherlock.content.<name>`, where the operator has asked for it.

    Nowhere else are they even made.
    """
    if _content_shown:
        for name, text in texts.items():
            opened.set_attribute(f"sherlock.content.{name}", text()[:LONGEST_CONTENT])
