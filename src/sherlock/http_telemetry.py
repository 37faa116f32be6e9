"""A span, a counter, a timer and an error counter for every request over HTTP.

FastAPI's own instrumentation stays off: its spans hold whole addresses and the inputs that failed validation.
"""

import time

from opentelemetry.trace import Span, SpanKind, StatusCode, get_tracer
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sherlock.observability import HEALTH_ROUTES, route_of
from sherlock.rag import instruments, tracing

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

_tracer = get_tracer("sherlock.http")
requests = instruments.meter.create_counter("sherlock.http.requests", "{request}", "requests, by route")
latency = instruments.timer(
    "sherlock.http.latency", "from a request to the end of its answer, streams included"
)
errors = instruments.meter.create_counter(
    "sherlock.http.errors", "{request}", "requests answered with a status of 400 or more"
)


class HttpTelemetry:
    """Plain ASGI, so that streams and cancellation pass through untouched."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = time.perf_counter(), 0

        async def watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        method = method_of(scope)
        try:
            if is_health(scope):  # asked every few seconds: counted, not traced
                await self.app(scope, receive, watch)
                return
            with _tracer.start_as_current_span(
                method,
                tracing.received(Headers(scope=scope)),
                SpanKind.SERVER,
                record_exception=False,
                set_status_on_exception=False,
            ) as span:
                try:
                    await self.app(scope, receive, watch)
                finally:
                    describe(span, method, route_of(scope), status)
        finally:
            labels = {"method": method, "route": route_of(scope), "status_class": class_of(status)}
            requests.add(1, labels)
            latency.record(time.perf_counter() - began, labels)
            if status >= 400:
                errors.add(1, labels)


def describe(span: Span, method: str, route: str, status: int) -> None:
    """What is known of a request at its end, by OpenTelemetry's semantic conventions for HTTP."""
    span.update_name(f"{method} {route}")
    span.set_attributes(
        {"http.request.method": method, "http.route": route, "http.response.status_code": status}
    )
    if status >= 500:
        span.set_status(StatusCode.ERROR)


def is_health(scope: Scope) -> bool:
    path: str = scope["path"].removeprefix(scope.get("root_path", ""))
    return path.startswith(HEALTH_ROUTES)


def method_of(scope: Scope) -> str:
    """One of a bounded set, whatever a client sends."""
    method: str = scope["method"]
    return method if method in METHODS else "other"


def class_of(status: int) -> str:
    """`2xx` and the like; `none` for a request that was given up before its answer began."""
    return f"{status // 100}xx" if status else "none"
