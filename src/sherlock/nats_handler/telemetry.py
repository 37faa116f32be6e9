"""A span, a counter, a timer and an error counter for every request by message."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry.trace import Span, SpanKind, StatusCode, get_tracer

from sherlock.message_schemas import Exchange
from sherlock.rag import instruments, tracing
from sherlock.rag.domain.messages import Message

_tracer = get_tracer("sherlock.messages")
requests = instruments.meter.create_counter(
    "sherlock.messages.requests", "{message}", "requests by message, by subject"
)
latency = instruments.timer(
    "sherlock.messages.latency", "from a message to its result; of an ingest until its job is queued"
)
errors = instruments.meter.create_counter(
    "sherlock.messages.errors", "{message}", "requests by message whose result is an error"
)


class Measured:
    """One request, while it is worked on."""

    def __init__(self, span: Span) -> None:
        self._span = span
        self.has_failed = False

    def identified(self, request_id: str | None) -> None:
        if request_id is not None:
            self._span.set_attribute("request_id", request_id)

    def failed(self) -> None:
        self.has_failed = True
        self._span.set_status(StatusCode.ERROR)


@contextmanager
def measured(exchange: Exchange, message: Message) -> Iterator[Measured]:
    """Inside, spans join the trace that the message's headers name."""
    began, labels = time.perf_counter(), {"subject": exchange.request_subject}
    carrier = {name.lower(): value for name, value in message.headers.items()}
    with _tracer.start_as_current_span(
        exchange.request_subject,
        tracing.received(carrier),
        SpanKind.CONSUMER,
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        request = Measured(span)
        try:
            yield request
        except Exception:
            request.failed()
            raise
        finally:
            requests.add(1, labels)
            latency.record(time.perf_counter() - began, labels)
            if request.has_failed:
                errors.add(1, labels)
