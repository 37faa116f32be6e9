"""Telemetry as a collector sees it: real processes, a real broker, a receiver that keeps all it is sent."""

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import nats
from tests.contract.test_metrics import listed
from tests.integration.processes import Deployment, deployment
from tests.nats_servers import NatsServer, nats_server
from tests.otlp_receiver import Received, ReceivedSpan, otlp_receiver
from tests.paced_upstream import chunk

from sherlock.telemetry import SHUTDOWN_S

CANARY = "xylocanary"
"""Planted wherever a user may write: a plain word, so that it is a term, a name and a key."""
TEXT = f"The {CANARY} turbine is shut off with the code KX-4471-Q."
QUESTION = f"How is the {CANARY} turbine shut off?"
CHAT = [{"role": "user", "content": QUESTION}]
OFTEN = {"OTEL_METRIC_EXPORT_INTERVAL": "500", "OTEL_BSP_SCHEDULE_DELAY": "200"}
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACEPARENT = f"00-{TRACE}-00f067aa0ba902b7-01"
RAG = "sherlock.v1.rag"


@dataclass
class Upstream:
    """A language model server that remembers the headers of what it is asked."""

    url: str
    heard: list[dict[str, str]] = field(default_factory=list)


@contextmanager
def upstream() -> Iterator[Upstream]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            model.heard.append({name.lower(): value for name, value in self.headers.items()})
            said = chunk({"content": f"With a code, {CANARY}."}) + chunk({}, "stop") + b"data: [DONE]\n\n"
            self.answer("text/event-stream", said)

        def do_GET(self) -> None:
            self.answer("application/json", b'{"data": [{"id": "m"}]}')

        def answer(self, kind: str, said: bytes) -> None:
            self.send_response(200)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    model = Upstream(f"http://127.0.0.1:{server.server_port}/v1")
    serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    serving.start()
    try:
        yield model
    finally:
        server.shutdown()
        serving.join()
        server.server_close()


def log_lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


# ── one full ingest, search and chat, over HTTP and over messages ───────────


@dataclass
class Seen:
    """What the outside saw of a run."""

    sent: Received
    model: Upstream
    logs: dict[str, str]
    harmless: list[str] = field(default_factory=list)
    """Bodies of errors and of health, which hold nothing of anybody's."""


def over_http(running: Deployment, seen: Seen) -> str:
    """Everything once; returns a store with a file in it."""
    headers = {"authorization": f"Bearer {CANARY}"}
    with httpx.Client(base_url=running.url, trust_env=False, timeout=30, headers=headers) as http:
        store = http.post("/v1/vector_stores", json={"name": CANARY}).json()["id"]

        def attached(name: str, data: bytes) -> dict[str, Any]:
            form = {"purpose": "assistants"}
            file = http.post("/v1/files", data=form, files={"file": (name, data)}).json()["id"]
            body = {"file_id": file, "attributes": {CANARY: CANARY}}
            asked = {"x-request-id": "attached-by-http"}
            done: dict[str, Any] = http.post(
                f"/v1/vector_stores/{store}/files?sync=true", json=body, headers=asked
            ).json()
            return done

        done = attached(f"{CANARY}.txt", TEXT.encode())
        assert done["status"] == "completed", done
        broken = attached(f"{CANARY}.pdf", b"%PDF-1.7\n" + TEXT.encode())
        assert broken["status"] == "failed", broken
        seen.harmless.append(json.dumps(broken["last_error"]))

        search = {"query": QUESTION, "rewrite_query": True}
        found = http.post(f"/v1/vector_stores/{store}/search", json=search).json()
        assert CANARY in found["data"][0]["content"][0]["text"]
        tools = [{"type": "file_search", "vector_store_ids": [store]}]
        chat = {"model": "m", "messages": CHAT, "tools": tools, "user": CANARY}
        answer = http.post("/v1/chat/completions", json=chat, headers={"x-request-id": "a-chat"})
        assert CANARY in answer.json()["choices"][0]["message"]["content"]
        answer = http.post("/v1/responses", json={"model": "m", "input": QUESTION, "tools": tools})
        assert answer.json()["status"] == "completed"
        assert http.post("/v1/embeddings", json={"model": "hash", "input": QUESTION}).status_code == 200

        wrong = [
            http.post(f"/v1/vector_stores/{store}/search", json={"query": QUESTION, "max_num_results": 0}),
            http.post("/v1/chat/completions", json={"model": "m", "messages": [{"content": QUESTION}]}),
            http.post("/v1/files", data={"purpose": "assistants"}, files={"file": (CANARY, b"\0\1")}),
            http.post("/v1/embeddings", content=f'{{"input": "{CANARY}'.encode()),
        ]
        assert {answer.status_code for answer in wrong} == {400}
        seen.harmless += [answer.text for answer in wrong]
        return str(store)


async def over_messages(running: Deployment, broker: NatsServer, store: str, seen: Seen) -> None:
    form, name = {"purpose": "assistants"}, f"{CANARY}-2.md"
    async with httpx.AsyncClient(base_url=running.url, trust_env=False, timeout=30) as http:
        sent = await http.post("/v1/files", data=form, files={"file": (name, f"# {TEXT} Twice.".encode())})
    client = await nats.connect(broker.url)
    headers = {"traceparent": TRACEPARENT, "x-request-id": "asked-by-message"}
    results = await client.subscribe(f"{RAG}.ingest.result")

    async def ask(subject: str, **payload: object) -> dict[str, Any]:
        asked = await client.request(subject, json.dumps(payload).encode(), timeout=20, headers=headers)
        answer: dict[str, Any] = json.loads(asked.data)
        return answer

    try:
        await ask(f"{RAG}.ingest.request", file_id=sent.json()["id"], vector_store_id=store)
        result = await results.next_msg(20)
        assert json.loads(result.data)["status"] == "completed"
        assert result.headers is not None
        assert result.headers["traceparent"].split("-")[1] == TRACE
        assert result.headers["x-request-id"] == "asked-by-message"
        assert (await ask(f"{RAG}.search.request", query=QUESTION, vector_store_ids=[store]))["results"]
        chat = await ask(f"{RAG}.chat.request", user_id="u", text=QUESTION, vector_store_ids=[store])
        assert chat["error"] is None
        assert (await ask(f"{RAG}.embed.request", input=QUESTION))["error"] is None
        assert (await ask("sherlock.v1.chat", model="m", messages=CHAT))["error"] is None
        refused = await ask(f"{RAG}.search.request", query=QUESTION, vector_store_ids=[store], top_k=0)
        assert refused["error"]
        seen.harmless.append(json.dumps(refused))
    finally:
        await client.close()


async def test_a_collector_sees_everything_but_content(folder: Path, empty_database_url: str) -> None:
    with otlp_receiver() as sent, upstream() as model, nats_server(folder) as broker:
        running = deployment(
            folder,
            encoder_model="hash",
            reranker_model="none",
            postgres_url=empty_database_url,
            nats_url=broker.url,
            llm_base_url=model.url,
            llm_model="m",
            llm_api_key=CANARY,
            query_rewrite_timeout_s="0",
        )
        seen = Seen(sent, model, {})
        endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": sent.url, **OFTEN}
        with running.running("serve", "worker", **endpoint) as processes:
            store = over_http(running, seen)
            await over_messages(running, broker, store, seen)
            health_tells_of_the_jobs(running, seen)
        seen.logs = {process.command: process.text() for process in processes}

    assert sent.units == listed()
    every_label_is_bounded(sent)
    spans_form_the_traces(seen)
    logs_join_them(seen)
    assert {span.scope.partition(".")[0] for span in sent.spans} == {"sherlock"}
    for body in sent.bodies:
        assert CANARY.encode() not in body
    for text in (*seen.logs.values(), *seen.harmless):
        assert CANARY not in text


def health_tells_of_the_jobs(running: Deployment, seen: Seen) -> None:
    with httpx.Client(base_url=running.url, trust_env=False, timeout=30) as http:

        def ingest() -> dict[str, Any]:
            seen.harmless += [http.get("/health").text, http.get("/health/ready").text]
            told: dict[str, Any] = json.loads(seen.harmless[-1])["ingest"]
            return told

        wait_until(lambda: ingest()["recent_jobs"] == 2)
        told = ingest()
    assert (told["waiting"], told["running"], told["oldest_age_s"]) == (0, 0, 0)
    assert told["stage_ms"].keys() == {"copy", "fetch", "parse", "embed", "stage", "publish"}
    assert all(milliseconds >= 0 for milliseconds in told["stage_ms"].values())


def every_label_is_bounded(sent: Received) -> None:
    """Nothing that was made for this run stands in a label."""
    values = {value for sets in sent.labels.values() for labels in sets for _, value in labels}
    assert not [value for value in values if re.search(r"(vs|file|req)[_-][0-9a-f]|attached-by", str(value))]
    assert sent.values("sherlock.rag.uploads.total", "extension") == {".txt", ".pdf", ".md"}
    assert sent.values("sherlock.rag.ingest.latency", "outcome") == {"completed", "failed"}
    assert sent.values("sherlock.rag.errors", "stage") == {"ingest.parse"}
    assert sent.values("sherlock.rag.degraded", "part") == {"rewrite"}
    assert sent.values("sherlock.rag.embed.latency", "kind") == {"query", "documents", "texts"}
    assert sent.values("sherlock.model.time", "model") == {"encoder", "llm"}
    assert sent.values("sherlock.http.errors", "status_class") == {"4xx"}
    assert sent.values("sherlock.messages.requests", "subject") == {
        f"{RAG}.{kind}.request" for kind in ("ingest", "search", "chat", "embed")
    } | {"sherlock.v1.chat"}
    assert sent.values("sherlock.messages.errors", "subject") == {f"{RAG}.search.request"}
    assert {"/v1/files", "/v1/vector_stores/{vector_store_id}/search", "/health/ready"} <= sent.values(
        "sherlock.http.requests", "route"
    )


STAGES = {f"ingest.{stage}" for stage in ("copy", "fetch", "parse", "embed", "stage", "publish")}


def spans_form_the_traces(seen: Seen) -> None:
    sent = seen.sent

    def within(root: ReceivedSpan) -> set[str]:
        return {span.name for span in sent.spans if span.trace_id == root.trace_id}

    attached, *_ = sent.named("POST /v1/vector_stores/{vector_store_id}/files")
    assert attached.attributes["request_id"] == "attached-by-http"
    [job] = [span for span in sent.named("ingest.job") if span.parent_id == attached.span_id]
    assert (job.process, job.trace_id) == ("worker", attached.trace_id)
    assert job.attributes["request_id"] == "attached-by-http"
    assert within(attached) >= STAGES
    children = {span.name for span in sent.spans if span.parent_id == job.span_id}
    assert children == STAGES

    [chat] = sent.named("POST /v1/chat/completions")[:1]
    assert within(chat) >= {"retrieve", "retrieve.embed", "retrieve.search", "chat.generate"}
    [generated] = [s for s in sent.named("chat.generate") if s.trace_id == chat.trace_id]
    [heard] = [headers for headers in seen.model.heard if headers.get("x-request-id") == "a-chat"]
    assert heard["traceparent"].split("-")[1:3] == [chat.trace_id, generated.span_id]

    by_message = [span for span in sent.spans if span.trace_id == TRACE]
    assert {span.process for span in by_message} == {"serve", "worker"}
    assert {span.name for span in by_message} >= STAGES | {
        "ingest.job",
        "retrieve",
        "chat.generate",
        f"{RAG}.ingest.request",
        f"{RAG}.search.request",
        f"{RAG}.chat.request",
    }
    assert not [span for span in sent.spans if "health" in span.name]


def logs_join_them(seen: Seen) -> None:
    ended = [
        line for line in log_lines(seen.logs["worker"]) if line["message"] in ("job completed", "job failed")
    ]
    assert [line["request_id"] for line in ended] == ["attached-by-http"] * 2 + ["asked-by-message"]
    assert ended[2]["trace_id"] == TRACE
    jobs = {span.trace_id for span in seen.sent.named("ingest.job")}
    assert {line["trace_id"] for line in ended} == jobs
    asked = [line for line in log_lines(seen.logs["serve"]) if line.get("request_id") == "a-chat"]
    assert {line["trace_id"] for line in asked} <= {s.trace_id for s in seen.sent.named("chat.generate")}
    assert [line["message"] for line in asked] == ["request"]


# ── content, and a collector in trouble ─────────────────────────────────────


def chats(running: Deployment, times: int = 1) -> list[float]:
    """Seconds that each chat took."""
    took = []
    with httpx.Client(base_url=running.url, trust_env=False, timeout=30) as http:
        for _ in range(times):
            began = time.monotonic()
            assert http.post("/v1/chat/completions", json={"model": "m", "messages": CHAT}).status_code == 200
            took.append(time.monotonic() - began)
    return took


def test_content_is_on_spans_alone_and_a_collector_that_hangs_holds_up_nothing(folder: Path) -> None:
    """One gateway, whose collector works at first, and then keeps each request longer than a stop waits."""
    works, over = threading.Event(), threading.Event()
    works.set()

    def answer() -> int:
        if works.is_set():
            return 200
        over.wait(30)
        return 400

    with otlp_receiver(answer) as sent, upstream() as model:
        running = deployment(
            folder,
            rag_enabled="false",
            encoder_model="hash",
            llm_base_url=model.url,
            llm_model="m",
            content_tracing="true",
            ready_path="/health",
        )
        endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": sent.url, "OTEL_EXPORTER_OTLP_TIMEOUT": "1", **OFTEN}
        with running.running("serve", **endpoint) as [process]:
            chats(running)
            wait_until(lambda: sent.named("chat.generate") and "sherlock.http.requests" in sent.units)
            works.clear()
            before = sum(sent.requests.values())
            took = chats(running, 20)
            wait_until(lambda: sum(sent.requests.values()) >= before + 4)
            took += chats(running, 20)
            began = time.monotonic()
            assert process.stop() == 0
            stopped_s = time.monotonic() - began
        over.set()
    generated = sent.named("chat.generate")[0]
    assert QUESTION in generated.attributes["sherlock.content.messages"]
    assert CANARY in generated.attributes["sherlock.content.answer"]
    assert CANARY not in str(sent.labels)
    assert CANARY not in process.text()
    assert max(took) < 2
    assert stopped_s < SHUTDOWN_S + 3
    first, *lost = [line for line in log_lines(process.text()) if line["level"] == "warning"]
    assert first["message"].startswith("content tracing is on")
    assert {line["message"] for line in lost} == {"telemetry cannot be delivered and is dropped"}
    assert sorted(line["signal"] for line in lost) == ["metrics", "spans"]
