"""Every route has a counter, a timer and an error counter, whatever is asked of it."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from sherlock import http_telemetry
from sherlock.config import Settings
from sherlock.main import create_app

Labels = frozenset[tuple[str, Any]]


class Measured:
    def __init__(self, reader: InMemoryMetricReader) -> None:
        self._reader = reader

    def counts(self) -> dict[str, dict[Labels, int]]:
        """By instrument and labels, how often it was used."""
        data = self._reader.get_metrics_data()
        scopes = (
            [scope for resource in data.resource_metrics for scope in resource.scope_metrics] if data else []
        )
        return {
            metric.name: {
                frozenset((point.attributes or {}).items()): getattr(point, "count", None) or point.value  # type: ignore[union-attr]
                for point in metric.data.data_points
            }
            for scope in scopes
            for metric in scope.metrics
        }


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Iterator[Measured]:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    meter = provider.get_meter("test")
    monkeypatch.setattr(http_telemetry, "requests", meter.create_counter("requests"))
    monkeypatch.setattr(http_telemetry, "latency", meter.create_histogram("latency"))
    monkeypatch.setattr(http_telemetry, "errors", meter.create_counter("errors"))
    yield Measured(reader)
    provider.shutdown()


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(http_telemetry, "_tracer", provider.get_tracer("test"))
    yield exporter
    provider.shutdown()


@pytest.fixture
async def http() -> Any:
    app = create_app(Settings(root_path="/behind"))
    async with app.router.lifespan_context(app) as state:

        async def with_state(scope: Any, receive: Any, send: Any) -> None:
            await app({**scope, "state": dict(state or {})}, receive, send)

        transport = httpx.ASGITransport(with_state)
        async with httpx.AsyncClient(transport=transport, base_url="http://sherlock/behind") as client:
            client.paths = app.openapi()["paths"]  # type: ignore[attr-defined]
            yield client


async def test_every_route_is_counted_and_timed(http: Any, measured: Measured) -> None:
    """Retrieval is off: routes that are closed for it are counted under their own names, too."""
    asked: set[Labels] = set()
    for path, operations in http.paths.items():
        for method in operations.keys() & {"get", "post", "delete"}:
            url = path.replace("{", "").replace("}", "")
            answer = await http.request(method, url, json={} if method == "post" else None)
            labels = {
                "method": method.upper(),
                "route": path,
                "status_class": f"{answer.status_code // 100}xx",
            }
            asked.add(frozenset(labels.items()))
    templates = {route for labels in asked for name, route in labels if name == "route"}
    assert templates == set(http.paths)
    counts = measured.counts()
    assert counts["requests"] == counts["latency"] == dict.fromkeys(asked, 1)
    failed = {labels for labels in asked if dict(labels)["status_class"] in ("4xx", "5xx")}
    assert len(failed) > 30
    assert counts["errors"] == dict.fromkeys(failed, 1)


async def test_what_no_route_answers_is_counted_together(http: Any, measured: Measured) -> None:
    for path in ("/nothing-here", "/v1/nobody/xylocanary"):
        assert (await http.request("BREW", path)).status_code == 404
    labels = {"method": "other", "route": "unmatched", "status_class": "4xx"}
    assert measured.counts()["errors"] == {frozenset(labels.items()): 2}


async def test_spans_name_templates_and_health_has_none(http: Any, spans: InMemorySpanExporter) -> None:
    parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    sent = {"traceparent": parent, "x-request-id": "mine"}
    await http.get("/v1/files/file-xylocanary?after=xylocanary", headers=sent)
    await http.get("/health")
    await http.get("/health/ready")
    [span] = spans.get_finished_spans()
    assert span.name == "GET /v1/files/{file_id}"
    assert span.context is not None
    assert span.parent is not None
    assert (f"{span.context.trace_id:032x}", f"{span.parent.span_id:016x}") == tuple(parent.split("-")[1:3])
    assert dict(span.attributes or {}) == {
        "request_id": "mine",
        "http.request.method": "GET",
        "http.route": "/v1/files/{file_id}",
        "http.response.status_code": 503,
    }
