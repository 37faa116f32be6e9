"""The search use case over in-memory ports: what it returns, what degrades it, and what it never does."""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from tests.fakes import InMemoryCatalog, InMemoryIngestQueue, MemoryState
from tests.fakes_index import InMemoryChunkIndex
from tests.fakes_models import FakeChatModel, FakeReranker

from sherlock import evaluate
from sherlock.rag.adapters.hash_embedder import HashEmbedder
from sherlock.rag.application import retrieve, spans
from sherlock.rag.application.retrieve import Retriever
from sherlock.rag.application.rewrite import Rewriter
from sherlock.rag.domain.errors import (
    ChatModelUnavailable,
    Conflict,
    DatabaseUnavailable,
    EmbedderUnavailable,
    InvalidRequest,
    RerankerUnavailable,
)
from sherlock.rag.domain.models import (
    Attributes,
    Candidate,
    ChatRequest,
    Chunk,
    ChunkingStrategy,
    Comparison,
    EmbeddedChunk,
    Encoder,
    IndexQuery,
    Retrieval,
    SearchOptions,
    SearchQuery,
    StoredFile,
    Vector,
    VectorStore,
    WorkspaceId,
)

WORKSPACE = WorkspaceId("ws-1")
CHUNKING = ChunkingStrategy(512, 50)
PUMP = "The feed pump stops when the oil valve closes."
CODE = "Error code KX-4471 means that the rotor is stuck."
FRUIT = "Bananas ripen faster beside an apple."
OTHERS = [f"Part {number} of the manual is about gears." for number in range(6)]


class Library:
    """A workspace of in-memory parts, with a retriever over them."""

    def __init__(self) -> None:
        self.state = MemoryState()
        self.catalog = InMemoryCatalog(self.state)
        self.queue = InMemoryIngestQueue(self.state)
        self.index = InMemoryChunkIndex(self.state)
        self.embedder = HashEmbedder(64)
        self.retriever = Retriever(
            self.catalog, self.index, self.embedder, None, candidates=20, rerank_budget_s=0.4
        )

    async def add_store(self, store: str, encoder: Encoder | None = None) -> None:
        new = VectorStore(store, WORKSPACE, "", None, None, encoder or self.embedder.encoder, 0, 0)
        await self.catalog.add_vector_store(new, [], CHUNKING)

    async def ingest(
        self, store: str, file: str, texts: Sequence[str], attributes: Attributes | None = None
    ) -> None:
        await self.catalog.add_file(StoredFile(file, WORKSPACE, f"{file}.txt", "assistants", 1, "0", 0))
        await self.catalog.attach_file(
            WORKSPACE, store, file, attributes=attributes, chunking=CHUNKING, chunking_given=False
        )
        job = await self.queue.claim("worker", 60)
        assert job is not None
        windows = await self.embedder.embed_documents(texts)
        chunks = [
            EmbeddedChunk(Chunk(number, text, 0, len(text)), vectors)
            for number, (text, vectors) in enumerate(zip(texts, windows, strict=True))
        ]
        await self.index.stage(job.lease, chunks)
        await self.queue.complete(job.lease, await self.index.publish(job.lease, len(chunks)))

    async def search(
        self, *texts: str, stores: Sequence[str] = ("vs_1",), chat: ChatRequest | None = None, **changes: Any
    ) -> Retrieval:
        options = replace(SearchOptions(limit=10, alpha=0.7), **changes)
        return await self.retriever.search(WORKSPACE, SearchQuery(texts, tuple(stores), options, chat))


@pytest.fixture
async def library() -> Library:
    library = Library()
    await library.add_store("vs_1")
    await library.ingest("vs_1", "file-a", [PUMP, CODE, FRUIT, *OTHERS], {"kind": "manual"})
    return library


async def test_the_best_chunk_comes_first_and_the_stages_are_told(library: Library) -> None:
    found = await library.search("what does error code KX-4471 mean")
    assert found.queries == ("what does error code KX-4471 mean",)
    assert found.results[0].candidate.text == CODE
    assert found.stages == ("embed", "dense", "keyword", "fuse")
    assert found.degraded == ()
    scores = [result.score for result in found.results]
    assert scores == sorted(scores, reverse=True)
    assert all(0 <= score <= 1 for score in scores)
    assert set(found.timings_ms) == {"stores", "embed", "search"}
    assert all(took >= 0 for took in found.timings_ms.values())


async def test_limit_threshold_and_filter(library: Library) -> None:
    everything = await library.search("error code KX-4471")
    assert len((await library.search("error code KX-4471", limit=2)).results) == 2
    threshold = everything.results[1].score
    above = await library.search("error code KX-4471", score_threshold=threshold)
    assert above.results == everything.results[:2]
    assert (await library.search("pump", filter=Comparison("eq", "kind", "novel"))).results == ()


async def test_operators_bind_what_is_found_and_are_told(library: Library) -> None:
    found = await library.search('"oil valve" or bananas')
    assert [result.candidate.text for result in found.results] == [PUMP]
    assert found.queries == ('"oil valve" or bananas',), "as it was asked"
    assert found.stages == ("embed", "dense", "keyword", "operators", "fuse")
    without = await library.search("oil or bananas -pump", "rotor")
    assert PUMP in {result.candidate.text for result in without.results}, "the other question may find it"
    assert len((await library.search("oil or bananas -pump")).results) == 8
    assert (await library.search('"oil pump"')).results == ()
    with pytest.raises(InvalidRequest):
        await library.search("-pump")


async def test_a_name_that_no_encoder_knows_is_found_by_its_letters(library: Library) -> None:
    class Astray(HashEmbedder):
        """Takes every question for one about fruit."""

        async def embed_query(self, text: str) -> Vector:
            return await super().embed_query(FRUIT)

    library.retriever = replace(library.retriever, embedder=Astray(64))
    asked, looked_up = await library.search("what is KX-4471"), await library.search("KX-4471")
    assert asked.results[0].candidate.text == FRUIT
    assert looked_up.results[0].candidate.text == CODE
    assert looked_up.stages == ("embed", "dense", "keyword", "lookup", "fuse")
    assert (await library.search("KX-4471", alpha=1.0)).results[0].candidate.text == FRUIT


async def test_what_is_excluded_is_not_searched_for(library: Library) -> None:
    plain, excluding = await library.search("oil valve"), await library.search("oil valve -rotor")
    scores = {result.candidate.chunk_id: result.score for result in plain.results}
    assert all(scores[result.candidate.chunk_id] == result.score for result in excluding.results)


async def test_quotes_in_a_chat_are_text(library: Library) -> None:
    question = 'what does "oil pump" mean -valve'
    chat = ChatRequest("m", ({"role": "user", "content": question},))
    found = await library.search(question, chat=chat)
    assert len(found.results) == 9
    assert "operators" not in found.stages


async def test_a_limit_over_the_candidates_is_still_served(library: Library) -> None:
    library.retriever = replace(library.retriever, candidates=1)
    assert len((await library.search("pump", limit=9)).results) == 9


async def test_a_file_in_two_stores_is_found_once(library: Library) -> None:
    await library.add_store("vs_2")
    await library.ingest("vs_2", "file-b", [CODE, PUMP])
    both = await library.search("error code KX-4471", stores=("vs_1", "vs_2"))
    found = [result.candidate.text for result in both.results]
    assert found[0] == CODE
    assert len(found) == len(set(found)) == len((await library.search("error code KX-4471")).results)


async def test_keywords_alone_need_no_encoder(library: Library) -> None:
    class Broken(HashEmbedder):
        async def embed_query(self, text: str) -> Vector:
            raise EmbedderUnavailable("The encoder is not loaded.")

    library.retriever = replace(library.retriever, embedder=Broken(64))
    found = await library.search("rotor", alpha=0.0)
    assert [result.candidate.text for result in found.results] == [CODE]
    assert found.stages == ("keyword", "fuse")
    with pytest.raises(EmbedderUnavailable):
        await library.search("rotor")


async def test_vectors_alone(library: Library) -> None:
    found = await library.search("rotor", alpha=1.0)
    assert found.stages == ("embed", "dense", "fuse")
    assert all(result.score == max(result.candidate.cosine, 0) for result in found.results)


async def test_a_chunk_counts_once_with_its_best_phrasing(library: Library) -> None:
    one = await library.search("the feed pump stops")
    other = await library.search("bananas and apples")
    both = await library.search("the feed pump stops", "bananas and apples")
    expected = {
        text: max(
            result.score
            for found in (one, other)
            for result in found.results
            if result.candidate.text == text
        )
        for text in (PUMP, FRUIT)
    }
    assert {r.candidate.text: r.score for r in both.results[:2]} == expected
    assert len(both.results) == len({r.candidate.chunk_id for r in both.results}) == 9


async def test_unknown_stores_yield_nothing_and_spoil_nothing(library: Library) -> None:
    assert await library.search("pump", stores=["vs_unknown"]) == Retrieval(queries=("pump",), results=())
    found = await library.search("pump", stores=["vs_unknown", "vs_1"])
    assert found.results == (await library.search("pump")).results


async def test_another_workspace_finds_nothing(library: Library) -> None:
    query = SearchQuery(("pump",), ("vs_1",), SearchOptions(limit=10, alpha=0.7))
    assert (await library.retriever.search(WorkspaceId("ws-2"), query)).results == ()


async def test_a_store_of_another_encoder_is_a_conflict(library: Library) -> None:
    await library.add_store("vs_old", Encoder("another-model", 64))
    with pytest.raises(Conflict) as refused:
        await library.search("pump", stores=["vs_1", "vs_old"])
    assert refused.value.code is None
    assert "another-model" in refused.value.message
    # Words compare whatever the encoder.
    assert (await library.search("pump", stores=["vs_1", "vs_old"], alpha=0.0)).results


async def test_searching_counts_as_activity(library: Library) -> None:
    key = (WORKSPACE, "vs_1")
    library.catalog.state.stores[key] = replace(library.catalog.state.stores[key], last_active_at=1)
    await library.search("pump")
    assert (await library.catalog.get_vector_store(*key)).last_active_at > 1


async def test_an_expired_store_yields_nothing_and_the_others_are_searched(library: Library) -> None:
    await library.add_store("vs_old")
    key = (WORKSPACE, "vs_old")
    aged = replace(library.catalog.state.stores[key], last_active_at=1, expires_after_days=1)
    library.catalog.state.stores[key] = aged
    both = await library.search("pump", stores=["vs_old", "vs_1"])
    assert both.results == (await library.search("pump")).results
    alone = await library.search("pump", stores=["vs_old"])
    assert (alone.results, alone.stages) == ((), ())
    assert library.catalog.state.stores[key].last_active_at == 1, "it is not active any more"


async def test_a_search_that_succeeded_does_not_fail_over_its_activity(
    library: Library, caplog: pytest.LogCaptureFixture
) -> None:
    class ReadOnly(InMemoryCatalog):
        async def touch_vector_stores(
            self, workspace_id: WorkspaceId, vector_store_ids: Sequence[str]
        ) -> None:
            raise DatabaseUnavailable

    library.retriever = replace(library.retriever, catalog=ReadOnly(library.state))
    with caplog.at_level(logging.WARNING):
        assert (await library.search("pump")).results
    assert "activity" in caplog.text
    assert "pump" not in caplog.text


async def test_a_database_that_is_down_is_an_error_not_an_empty_page(library: Library) -> None:
    class Down(InMemoryChunkIndex):
        async def search(self, workspace_id: WorkspaceId, query: IndexQuery) -> list[Candidate]:
            raise DatabaseUnavailable

    library.retriever = replace(library.retriever, index=Down(library.state))
    with pytest.raises(DatabaseUnavailable):
        await library.search("pump")


# ── rewriting ───────────────────────────────────────────────────────────────


def talk(*questions: str) -> ChatRequest:
    return ChatRequest("fake-model", tuple({"role": "user", "content": text} for text in questions))


async def test_each_phrasing_is_rewritten(library: Library) -> None:
    model = FakeChatModel(reply="error code KX-4471")
    library.retriever = replace(library.retriever, rewriter=Rewriter(model, 1.0))
    found = await library.search("Hello, what does my machine say?", "And why?", rewrite=True)
    assert found.queries == ("error code KX-4471",) * 2
    assert found.results[0].candidate.text == CODE
    assert found.stages[0] == "rewrite"
    assert "rewrite" in found.timings_ms
    assert len(model.requests) == 2
    assert (await library.search("pump")).queries == ("pump",)
    assert (await library.search("pump", stores=["vs_unknown"], rewrite=True)).queries == ("pump",)
    assert len(model.requests) == 2, "only where it was asked for, and where there is something to search"


async def test_of_a_chat_only_a_follow_up_is_rewritten(library: Library) -> None:
    model = FakeChatModel(reply="error code KX-4471")
    library.retriever = replace(library.retriever, rewriter=Rewriter(model, 1.0))
    first = await library.search("why?", chat=talk("why?"), rewrite=True)
    assert (first.queries, first.degraded, model.requests) == (("why?",), (), [])
    second = await library.search("why?", chat=talk("My machine says KX-4471", "why?"), rewrite=True)
    assert second.queries == ("error code KX-4471",)


async def test_a_search_says_when_its_question_was_not_rewritten(library: Library) -> None:
    without = await library.search("pump", rewrite=True)
    assert without.degraded == ("rewrite: off",)
    chatting = await library.search("pump", chat=talk("a", "pump"), rewrite=True)
    assert chatting.degraded == (), "it did not ask"
    down = FakeChatModel(error=ChatModelUnavailable("The language model is down."))
    library.retriever = replace(library.retriever, rewriter=Rewriter(down, 1.0))
    failed = await library.search("pump", "valve", rewrite=True)
    assert (failed.queries, failed.degraded) == (("pump", "valve"), ("rewrite: unavailable",))
    assert "rewrite" not in failed.stages
    assert failed.results == (await library.search("pump", "valve")).results


# ── reranking ───────────────────────────────────────────────────────────────


async def test_the_reranker_reads_the_fused_order(library: Library) -> None:
    reranker = FakeReranker()
    fused = await library.search("the rotor is stuck")
    library.retriever = replace(library.retriever, reranker=reranker)
    found = await library.search("the rotor is stuck")
    assert found.stages == ("embed", "dense", "keyword", "fuse", "rerank")
    assert found.degraded == ()
    assert "rerank" in found.timings_ms
    assert reranker.calls == [("the rotor is stuck", tuple(r.candidate.text for r in fused.results))]
    assert all(result.rerank is not None for result in found.results)
    assert found.results[0].candidate.text == CODE


@pytest.mark.parametrize("relevance", [0.0, 1.0])
async def test_the_reranker_neither_drops_nor_saves_a_result_by_the_threshold(
    library: Library, relevance: float
) -> None:
    class Of(FakeReranker):
        async def rerank(self, query: str, texts: Sequence[str], budget_s: float) -> list[float]:
            return [relevance for _ in texts]

    fused = await library.search("the rotor is stuck")
    library.retriever = replace(library.retriever, reranker=Of())
    threshold = fused.results[2].score
    found = await library.search("the rotor is stuck", score_threshold=threshold)
    assert [r.candidate for r in found.results] == [r.candidate for r in fused.results[:3]]
    assert all(result.fused >= threshold for result in found.results)


async def test_what_the_budget_does_not_pay_for_stays_behind(library: Library) -> None:
    library.retriever = replace(library.retriever, reranker=FakeReranker(cost_s=0.09))
    found = await library.search("the rotor is stuck")
    assert [result.rerank is not None for result in found.results] == [True] * 4 + [False] * 5


async def test_of_a_long_chunk_the_reranker_reads_what_was_asked_for(library: Library) -> None:
    long = "The house has a garden with a pond. " * 60 + CODE
    await library.ingest("vs_1", "file-long", [long])
    reranker = FakeReranker()
    library.retriever = replace(library.retriever, reranker=reranker, rerank_budget_s=60)
    found = await library.search("error code KX-4471")
    ((_, texts),) = reranker.calls
    (read,) = (text for text in texts if text in long and text != CODE)
    assert CODE in read
    assert len(read) <= 1_000
    assert long in {result.candidate.text for result in found.results}, "it is found and shown whole"


async def test_reranking_can_be_switched_off(library: Library) -> None:
    reranker = FakeReranker()
    library.retriever = replace(library.retriever, reranker=reranker)
    assert "rerank" not in (await library.search("pump", rerank=False)).stages
    library.retriever = replace(library.retriever, rerank_budget_s=0)
    found = await library.search("pump")
    assert found.degraded == ()
    assert reranker.calls == []


class Stuck(FakeReranker):
    async def rerank(self, query: str, texts: Sequence[str], budget_s: float) -> list[float]:
        await asyncio.sleep(60)
        raise AssertionError("nobody waits this long")


@pytest.mark.parametrize(
    ("reranker", "reason"),
    [
        (FakeReranker(error=RerankerUnavailable("It is not loaded.")), "rerank: unavailable"),
        (FakeReranker(cost_s=10.0), "rerank: late"),
        (Stuck(), "rerank: late"),
    ],
)
async def test_without_its_reranker_a_search_says_so_and_keeps_the_fused_order(
    library: Library, monkeypatch: pytest.MonkeyPatch, reranker: FakeReranker, reason: str
) -> None:
    monkeypatch.setattr(retrieve, "RERANK_GRACE_S", 0.0)
    fused = await library.search("the rotor is stuck")
    library.retriever = replace(library.retriever, reranker=reranker, rerank_budget_s=0.02)
    found = await library.search("the rotor is stuck")
    assert found.degraded == (reason,)
    assert "rerank" not in found.stages
    assert found.results == fused.results


# ── tracing and evaluation ──────────────────────────────────────────────────


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """The spans of the use case, once they have ended."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(spans, "_tracer", provider.get_tracer("test"))
    yield exporter
    provider.shutdown()


async def test_spans_carry_counts_and_no_text(library: Library, exporter: InMemorySpanExporter) -> None:
    library.retriever = replace(library.retriever, reranker=FakeReranker())
    await library.search("the rotor is stuck")
    finished = exporter.get_finished_spans()
    assert [span.name for span in finished] == [
        "retrieve.stores",
        "retrieve.embed",
        "retrieve.search",
        "retrieve.rerank",
        "retrieve",
    ]
    attributes = [value for span in finished for value in (span.attributes or {}).values()]
    assert attributes
    assert all(isinstance(value, int) for value in attributes)


async def test_of_a_stage_that_fails_its_span_tells_the_kind_alone(
    library: Library, exporter: InMemorySpanExporter
) -> None:
    class Quoting(InMemoryChunkIndex):
        async def search(self, workspace_id: WorkspaceId, query: IndexQuery) -> list[Candidate]:
            raise LookupError(f"select ... where text = '{query.text}'")

    library.retriever = replace(library.retriever, index=Quoting(library.state))
    with pytest.raises(LookupError):
        await library.search("the secret rotor")
    *_, failed, whole = exporter.get_finished_spans()
    assert (failed.name, whole.name) == ("retrieve.search", "retrieve")
    for span in (failed, whole):
        assert span.status.status_code is StatusCode.ERROR
        assert span.status.description == "LookupError"
        assert span.events == ()
        assert "secret" not in span.to_json()


async def test_evaluate_runs_judged_queries(library: Library) -> None:
    queries = [
        evaluate.JudgedQuery("1", "KX-4471", {"file-a": 1.0}),
        evaluate.JudgedQuery("2", "zeppelin", {"file-b": 1.0}),
    ]
    template = SearchQuery((), ("vs_1",), SearchOptions(limit=20, alpha=0.0))
    report = await evaluate.run(
        library.retriever, WORKSPACE, queries, template, k=5, document_of=lambda r: r.candidate.file_id
    )
    assert (report.queries, report.ndcg, report.recall, report.reciprocal_rank) == (2, 0.5, 0.5, 0.5)
    assert report.degraded == 0
    assert report.median_ms <= report.p95_ms
    assert set(report.stages_ms) == {"stores", "search"}
    assert "nDCG@5 0.5000  recall@20 0.5000" in str(report)


async def test_evaluate_looks_for_recall_beyond_the_first(library: Library) -> None:
    for number in range(3):
        await library.ingest("vs_1", f"file-{number}", [f"KX-4471 {'gear ' * number}"])
    asked = [evaluate.JudgedQuery("1", "KX-4471", {f"file-{number}": 1.0 for number in range(3)})]
    template = SearchQuery((), ("vs_1",), SearchOptions(limit=20, alpha=0.0))
    report = await evaluate.run(
        library.retriever, WORKSPACE, asked, template, k=1, document_of=lambda r: r.candidate.file_id
    )
    assert (report.ndcg, report.recall) == (1, 1)
