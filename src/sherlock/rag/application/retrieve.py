"""Search: from a question to the best chunks, and an account of how they were found."""

import asyncio
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from opentelemetry.trace import Span

from sherlock.rag import instruments
from sherlock.rag.application import lookup, spans
from sherlock.rag.application.best_part import PART_CHARS, best_parts
from sherlock.rag.application.rewrite import Rewriter, is_follow_up
from sherlock.rag.domain import ranking
from sherlock.rag.domain.errors import Conflict, DatabaseUnavailable, RerankerUnavailable
from sherlock.rag.domain.models import (
    Candidate,
    IndexQuery,
    Retrieval,
    SearchQuery,
    Vector,
    VectorStore,
    WorkspaceId,
)
from sherlock.rag.domain.operators import NO_OPERATORS, Operators, read_operators
from sherlock.rag.domain.ports import Catalog, ChunkIndex, Embedder, Reranker

RERANK_GRACE_S = 1.0
"""How far a reranker may overrun its budget, which is an estimate, before the search goes on without it."""

MOST_RERANKED = 20
"""Hardly a budget pays for more, and long texts have to be looked through first: 1.4 ms for 1,000 tokens."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Retriever:
    """Ports, and the bounds of one search."""

    catalog: Catalog
    index: ChunkIndex
    embedder: Embedder
    reranker: Reranker | None
    candidates: int
    """Chunks that each leg brings, for each phrasing."""
    rerank_budget_s: float
    """0: never rerank."""
    rewriter: Rewriter | None = None
    """`None`: off, or there is no chat model that is good at it."""

    async def search(self, workspace_id: WorkspaceId, query: SearchQuery) -> Retrieval:
        """The best `limit` chunks, best first; scores lie in 0..1 and mean the same in every search.

        Unknown and expired stores yield nothing. Raises `Conflict` when a store's vectors are of another
        encoder, `InvalidRequest` for operators that leave nothing to look for, and the `Unavailable` of
        database and embedder. Without the reranker the fused order stands, without the chat model the
        question as it was asked; both are said.
        """
        began = time.perf_counter()
        outcome = "failed"
        try:
            with spans.span("retrieve", {"stores": len(query.vector_store_ids)}) as span:
                spans.content(span, queries=lambda: "\n".join(query.texts))
                retrieval = await self._search(workspace_id, query)
                found = retrieval.results
                spans.content(span, results=lambda: "\n".join(result.candidate.text for result in found))
            outcome = "degraded" if retrieval.degraded else "whole"
        finally:
            instruments.retrieval_latency.record(time.perf_counter() - began, {"outcome": outcome})
        for missing in retrieval.degraded:
            instruments.degraded.add(1, {"part": missing.partition(":")[0]})
        return retrieval

    async def _search(self, workspace_id: WorkspaceId, query: SearchQuery) -> Retrieval:
        trace = _Trace()
        texts, operators = _read(query)
        with trace.stage("stores", wanted=len(query.vector_store_ids)):
            found_stores = await self.catalog.find_vector_stores(workspace_id, query.vector_store_ids)
            stores = [store for store in found_stores if not store.expired]
        if not stores:
            return Retrieval(queries=query.texts, results=())
        self._check_encoder(stores, query)
        asked, query = query, replace(query, texts=texts)
        query = replace(query, texts=await self._rewritten(query, trace))
        vectors = await self._embed(query, trace)
        found = await self._find(workspace_id, stores, query, vectors, operators, trace)
        alpha = lookup.weight(query.options.alpha, query.texts)
        trace.stages += ["lookup"] * (alpha != query.options.alpha)
        fused = ranking.fuse(found, alpha)
        fused = ranking.distinct(ranking.reaching(query.options.score_threshold, fused))
        trace.stages.append("fuse")
        scores = await self._rerank(query, fused, trace)
        results = tuple(ranking.apply_rerank(fused, scores)[: query.options.limit])
        await self._touch(workspace_id, stores)
        return Retrieval(
            queries=asked.texts if query.texts == texts else query.texts,
            results=results,
            stages=tuple(trace.stages),
            degraded=tuple(trace.degraded),
            timings_ms=trace.timings_ms,
        )

    def _check_encoder(self, stores: Sequence[VectorStore], query: SearchQuery) -> None:
        ours = self.embedder.encoder
        for store in stores:
            if query.options.alpha > 0 and store.encoder != ours:
                raise Conflict(
                    f"The vector store '{store.id}' was built with the embedding model {store.encoder.name}, "
                    f"and this server runs {ours.name}. Its files have to be attached to a new vector store."
                )

    async def _rewritten(self, query: SearchQuery, trace: "_Trace") -> tuple[str, ...]:
        """The texts as they are searched for; of a chat only a follow-up question is rewritten."""
        chat = query.chat
        if not query.options.rewrite or (chat is not None and not is_follow_up(chat.messages)):
            return query.texts
        if self.rewriter is None:
            if chat is None:  # a chat did not ask for it
                trace.degraded.append("rewrite: off")
            return query.texts
        with trace.stage("rewrite", texts=len(query.texts)):
            outcomes = await asyncio.gather(
                *(
                    self.rewriter.rewrite(text) if chat is None else self.rewriter.condense(chat, text)
                    for text in query.texts
                )
            )
        if any(outcome.failure is None for outcome in outcomes):
            trace.stages.append("rewrite")
        failures = {outcome.failure for outcome in outcomes if outcome.failure is not None}
        trace.degraded += [f"rewrite: {failure}" for failure in sorted(failures)]
        return tuple(outcome.text for outcome in outcomes)

    async def _embed(self, query: SearchQuery, trace: "_Trace") -> list[Vector | None]:
        """A vector for each phrasing; none are needed where only keywords count."""
        if query.options.alpha <= 0:
            return [None] * len(query.texts)
        with trace.stage("embed", texts=len(query.texts)):
            vectors: list[Vector | None] = [await self.embedder.embed_query(text) for text in query.texts]
        trace.stages.append("embed")
        return vectors

    async def _find(
        self,
        workspace_id: WorkspaceId,
        stores: Sequence[VectorStore],
        query: SearchQuery,
        vectors: Sequence[Vector | None],
        operators: Sequence[Operators],
        trace: "_Trace",
    ) -> list[Candidate]:
        """What either leg finds for any phrasing; a chunk comes once for each phrasing that found it."""
        found: list[Candidate] = []
        with trace.stage("search", texts=len(query.texts), stores=len(stores)) as span:
            for text, vector, asked in zip(query.texts, vectors, operators, strict=True):
                sought = IndexQuery(
                    text=text,
                    vector=vector,
                    vector_store_ids=tuple(store.id for store in stores),
                    alpha=query.options.alpha,
                    candidates=max(self.candidates, query.options.limit),
                    filter=query.options.filter,
                    operators=asked,
                )
                began = time.perf_counter()
                found += await self.index.search(workspace_id, sought)
                instruments.search_latency.record(time.perf_counter() - began)
            span.set_attribute("candidates", len(found))
        trace.stages += ["dense"] * (query.options.alpha > 0) + ["keyword"] * (query.options.alpha < 1)
        trace.stages += ["operators"] * any(operators)
        return found

    async def _rerank(
        self, query: SearchQuery, fused: Sequence[tuple[Candidate, float]], trace: "_Trace"
    ) -> list[float]:
        """The cross-encoder's scores of the first of `fused`; none when it is off, failed or too slow."""
        if self.reranker is None or not query.options.rerank or self.rerank_budget_s <= 0 or not fused:
            return []
        question = " ".join(query.texts)
        texts = [candidate.text for candidate, _ in fused[:MOST_RERANKED]]
        scores: list[float] = []
        deadline = time.monotonic() + self.rerank_budget_s
        with trace.stage("rerank", candidates=len(texts)) as span:
            try:
                async with asyncio.timeout(self.rerank_budget_s + RERANK_GRACE_S):
                    if max(map(len, texts)) > PART_CHARS:
                        texts = await asyncio.to_thread(best_parts, question, texts)
                    scores = await self.reranker.rerank(question, texts, deadline - time.monotonic())
            except TimeoutError:
                pass
            except RerankerUnavailable:
                trace.degraded.append("rerank: unavailable")
                return []
            span.set_attribute("reranked", len(scores))
        if scores:
            trace.stages.append("rerank")
        else:
            trace.degraded.append("rerank: late")
        return scores

    async def _touch(self, workspace_id: WorkspaceId, stores: Sequence[VectorStore]) -> None:
        """Note the activity that expiry counts from; a search that has succeeded does not fail over it."""
        try:
            await self.catalog.touch_vector_stores(workspace_id, [store.id for store in stores])
        except DatabaseUnavailable:
            _log.warning("The activity of %d vector stores could not be noted.", len(stores))


def _read(query: SearchQuery) -> tuple[tuple[str, ...], list[Operators]]:
    """The texts to search for, and the operators of each.

    A chat's question is prose: "best" in quotes is no condition there, and a passage that lacks the quoted
    name of the chapter it stands in may be the answer.
    """
    if query.chat is not None:
        return query.texts, [NO_OPERATORS] * len(query.texts)
    read = [read_operators(text) for text in query.texts]
    return tuple(text for text, _ in read), [operators for _, operators in read]


@dataclass(slots=True)
class _Trace:
    """What ran, what did not, and how long it took."""

    stages: list[str] = field(default_factory=list)
    degraded: list[str] = field(default_factory=list)
    timings_ms: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str, **counts: int) -> Iterator[Span]:
        """The span `retrieve.<name>`, and the time it takes."""
        started = time.perf_counter()
        try:
            with spans.stage(f"retrieve.{name}", **counts) as span:
                yield span
        finally:
            self.timings_ms[name] = round((time.perf_counter() - started) * 1000, 1)
