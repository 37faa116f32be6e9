"""OpenTelemetry's SDK: where spans and metrics go, for the whole process. Nothing else imports it.

Sent by threads of the SDK as OTLP over HTTP. A collector that is down, hangs or refuses costs what was meant
for it and nothing else: queues are bounded and drop what does not fit, the log says when that begins and when
it is over, and a process that stops waits `SHUTDOWN_S` for it at most. The SDK's own standard variables hold
(`OTEL_EXPORTER_OTLP_HEADERS`, `OTEL_METRIC_EXPORT_INTERVAL`, `OTEL_TRACES_SAMPLER`, ...).
"""

import logging
import os
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from opentelemetry import metrics, trace
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricExportResult, MetricsData, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult

from sherlock import __version__
from sherlock.config import Settings
from sherlock.rag.application.spans import show_content

log = logging.getLogger(__name__)

SHUTDOWN_S = 3.0
"""How long a process that stops tries to send what is left."""


@contextmanager
def exported(settings: Settings, *, process: Literal["serve", "worker"]) -> Iterator[None]:
    """Send spans and metrics until the block ends; nothing where no endpoint is set. Once in a process."""
    if not settings.otel_exporter_otlp_endpoint:
        yield
        return
    show_content(settings.content_tracing)
    if settings.content_tracing:
        log.warning("content tracing is on: texts of documents, questions and answers go into spans")
    # What its exporters say of a failure, at each try, holds addresses and answers of other servers.
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL + 1)
    base = settings.otel_exporter_otlp_endpoint.rstrip("/")
    resource = Resource.create(
        {
            "service.name": os.environ.get("OTEL_SERVICE_NAME") or "sherlock",
            "service.version": __version__,
            "service.instance.id": str(uuid.uuid4()),
            "sherlock.process": process,
        }
    )
    tracers = TracerProvider(resource=resource, shutdown_on_exit=False)
    tracers.add_span_processor(OwnSpans(SpanExporter(address("TRACES", base))))
    meters = MeterProvider(
        [PeriodicExportingMetricReader(MetricExporter(address("METRICS", base)))],
        resource,
        shutdown_on_exit=False,
    )
    trace.set_tracer_provider(tracers)
    metrics.set_meter_provider(meters)
    log.info("telemetry is on")
    try:
        yield
    finally:
        stop(tracers, meters)


def address(signal: Literal["TRACES", "METRICS"], base: str) -> str:
    """A signal may have an address of its own, by the standard's variables."""
    own = os.environ.get(f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT")
    return own or f"{base}/v1/{signal.lower()}"


def stop(tracers: TracerProvider, meters: MeterProvider) -> None:
    """Send what is left. The SDK would wait half a minute for a collector that does not answer."""
    threads = [threading.Thread(target=part.shutdown, daemon=True) for part in (tracers, meters)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SHUTDOWN_S / len(threads))


class OwnSpans(BatchSpanProcessor):
    """Passes on what Sherlock measures itself: spans of libraries hold addresses, statements and inputs."""

    def on_end(self, span: ReadableSpan) -> None:
        scope = span.instrumentation_scope
        if scope is not None and scope.name.partition(".")[0] == "sherlock":
            super().on_end(span)


class Delivery:
    """Whether the collector takes one kind of what it is sent, told when it changes."""

    def __init__(self, signal: Literal["spans", "metrics"]) -> None:
        self._signal = signal
        self._works = True

    def noted(self, works: bool) -> None:
        if works != self._works:
            self._works = works
            if works:
                log.info("telemetry is delivered again", extra={"signal": self._signal})
            else:
                log.warning("telemetry cannot be delivered and is dropped", extra={"signal": self._signal})


class SpanExporter(OTLPSpanExporter):
    def __init__(self, endpoint: str) -> None:
        super().__init__(endpoint)
        self._delivery = Delivery("spans")

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = super().export(spans)
        self._delivery.noted(result is SpanExportResult.SUCCESS)
        return result


class MetricExporter(OTLPMetricExporter):
    def __init__(self, endpoint: str) -> None:
        super().__init__(endpoint)
        self._delivery = Delivery("metrics")

    def export(self, metrics_data: MetricsData, *arguments: Any, **options: Any) -> MetricExportResult:
        result = super().export(metrics_data, *arguments, **options)
        self._delivery.noted(result is MetricExportResult.SUCCESS)
        return result
