"""The trace of a request, handed on: into jobs and messages, to other servers, and taken up again from them.

W3C Trace Context alone (https://www.w3.org/TR/trace-context/), whatever `OTEL_PROPAGATORS` says: baggage
would carry what callers put into it on to everybody else.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from opentelemetry import context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from sherlock.rag.domain.correlation import Correlation, request_id

_propagator = TraceContextTextMapPropagator()


def headers() -> dict[str, str]:
    """`traceparent`, and `tracestate` where there is one, of the current span; empty outside of a trace."""
    carrier: dict[str, str] = {}
    _propagator.inject(carrier)
    return carrier


def received(carrier: Mapping[str, str]) -> context.Context:
    """The context in which a span joins its sender's trace; headers that name none are passed over.

    `carrier` has its names in lower case.
    """
    return _propagator.extract(carrier)


def current() -> Correlation:
    """What a job remembers of the request that queues it."""
    return Correlation(request_id.get(), headers().get("traceparent"))


@contextmanager
def resumed(correlation: Correlation) -> Iterator[None]:
    """Inside, logs and spans belong to the request that the correlation was taken from."""
    known = request_id.set(correlation.request_id)
    carrier = {"traceparent": correlation.traceparent} if correlation.traceparent else {}
    attached = context.attach(_propagator.extract(carrier, context=context.Context()))
    try:
        yield
    finally:
        context.detach(attached)
        request_id.reset(known)
