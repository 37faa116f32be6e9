"""One span for each stage of a use case: what people see of an ingest or a search in their traces."""

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry.trace import Span, StatusCode, get_tracer

_tracer = get_tracer("sherlock.rag")


@contextmanager
def stage(name: str, **counts: int) -> Iterator[Span]:
    """A span of that name (`ingest.parse`, `retrieve.rerank`) with counts as attributes.

    Of an error it tells the kind alone: the text of a foreign error may quote a document or a question.
    """
    with _tracer.start_as_current_span(
        name, attributes=counts, record_exception=False, set_status_on_exception=False
    ) as span:
        try:
            yield span
        except Exception as error:
            span.set_status(StatusCode.ERROR, type(error).__name__)
            raise
