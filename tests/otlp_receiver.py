"""A collector that keeps what it is sent: OTLP over HTTP, on a free port, in a thread of this process."""

import gzip
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SentSpan


@dataclass(frozen=True)
class ReceivedSpan:
    name: str
    scope: str
    process: str
    trace_id: str
    span_id: str
    parent_id: str
    attributes: dict[str, Any]


@dataclass
class Received:
    """Everything that was sent so far."""

    url: str
    bodies: list[bytes] = field(default_factory=list)
    """As they came: what stands in none of them was not sent."""
    spans: list[ReceivedSpan] = field(default_factory=list)
    units: dict[str, str] = field(default_factory=dict)
    """Of each metric that has points."""
    labels: defaultdict[str, set[tuple[tuple[str, Any], ...]]] = field(
        default_factory=lambda: defaultdict(set)
    )
    """The label sets of each metric."""
    buckets: dict[tuple[str, str], tuple[list[float], list[int]]] = field(default_factory=dict)
    """Bounds and counts of each timer without labels, by its name and the process; counted from its start."""
    requests: Counter[str] = field(default_factory=Counter)
    """How often each path was posted to."""

    def values(self, metric: str, label: str) -> set[Any]:
        """What `label` was among the points of a metric."""
        return {dict(labels).get(label) for labels in self.labels[metric]}

    def named(self, name: str) -> list[ReceivedSpan]:
        return [span for span in self.spans if span.name == name]

    def take(self, path: str, body: bytes) -> None:
        self.bodies.append(body)
        if path == "/v1/traces":
            self._take_spans(ExportTraceServiceRequest.FromString(body))
        elif path == "/v1/metrics":
            self._take_metrics(ExportMetricsServiceRequest.FromString(body))

    def _take_spans(self, sent: ExportTraceServiceRequest) -> None:
        for resource in sent.resource_spans:
            process = plain(resource.resource.attributes)["sherlock.process"]
            for scope in resource.scope_spans:
                self.spans += [received(span, scope.scope.name, process) for span in scope.spans]

    def _take_metrics(self, sent: ExportMetricsServiceRequest) -> None:
        for resource in sent.resource_metrics:
            process = plain(resource.resource.attributes)["sherlock.process"]
            for metric in (metric for scope in resource.scope_metrics for metric in scope.metrics):
                kind = metric.WhichOneof("data")
                points = getattr(metric, kind).data_points if kind else []
                for point in points:
                    self.units[metric.name] = metric.unit
                    self.labels[metric.name].add(tuple(sorted(plain(point.attributes).items())))
                    if kind == "histogram" and not point.attributes:
                        counted = ([*point.explicit_bounds], [*point.bucket_counts])
                        self.buckets[metric.name, process] = counted


def plain(attributes: "list[KeyValue] | Any") -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}


def received(span: SentSpan, scope: str, process: str) -> ReceivedSpan:
    return ReceivedSpan(
        name=span.name,
        scope=scope,
        process=process,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        attributes=plain(span.attributes),
    )


@contextmanager
def otlp_receiver(answer: Callable[[], int] = lambda: 200) -> Iterator[Received]:
    """`answer` gives the status of each request; it may take its time."""
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            with lock:
                taken.requests[self.path] += 1
            if (status := answer()) == 200:
                with lock:
                    taken.take(self.path, body)
            try:
                self.send_response(status)
                self.send_header("content-length", "0")
                self.end_headers()
            except OSError:  # whoever sent it has stopped waiting
                self.close_connection = True

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    taken = Received(f"http://127.0.0.1:{server.server_port}")
    serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    serving.start()
    try:
        yield taken
    finally:
        server.shutdown()
        serving.join()
        server.server_close()
