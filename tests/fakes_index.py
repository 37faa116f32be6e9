"""`ChunkIndex` in memory, over the state of the other fakes. Exact: every chunk is scored.

`qualifies` says in plain Python what a filter means.
"""

import itertools
import math
import operator
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.fakes import MembershipKey, MemoryJob, MemoryState, has_expired

from sherlock.rag import terms
from sherlock.rag.domain.errors import InvalidFile, InvalidRequest, LeaseLost, Unavailable
from sherlock.rag.domain.models import (
    Attributes,
    AttributeValue,
    Candidate,
    Chunk,
    Comparison,
    Compound,
    EmbeddedChunk,
    Encoder,
    Filter,
    IndexQuery,
    Lease,
    Published,
    ReadingNotes,
    Staged,
    Vector,
    WorkspaceId,
)
from sherlock.rag.domain.operators import Operators

_ORDERINGS: Mapping[str, Callable[[Any, Any], bool]] = {
    "gt": operator.gt,
    "gte": operator.ge,
    "lt": operator.lt,
    "lte": operator.le,
}


def qualifies(where: Filter | None, attributes: Attributes | None) -> bool:
    """Whether a file with these attributes passes the filter."""
    if where is None:
        return True
    if isinstance(where, Compound):
        combine = all if where.type == "and" else any
        return combine(qualifies(part, attributes) for part in where.filters)
    stored = (attributes or {}).get(where.key)
    wanted = where.value if isinstance(where.value, tuple) else (where.value,)
    if where.type in ("eq", "in"):
        return stored is not None and any(_same(stored, one) for one in wanted)
    if where.type in ("ne", "nin"):
        return stored is None or not any(_same(stored, one) for one in wanted)
    comparable = stored is not None and _kind(stored) == _kind(wanted[0])
    return comparable and _ORDERINGS[where.type](stored, wanted[0])


@dataclass(frozen=True)
class StoredChunk:
    id: int
    membership: MembershipKey
    chunk: Chunk
    windows: Sequence[Vector]
    weights: Mapping[int, float]


@dataclass
class InMemoryChunkIndex:
    """`ChunkIndex` over a `MemoryState`; chunks vanish with their membership."""

    state: MemoryState
    _staged: dict[int, dict[int, EmbeddedChunk]] = field(default_factory=dict)
    _published: dict[MembershipKey, list[StoredChunk]] = field(default_factory=dict)
    _ids: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    async def staged(self, lease: Lease) -> Mapping[int, bytes]:
        try:
            staged = self._staged.get(self._held(lease).id, {})
        except LeaseLost:
            return {}
        return {index: embedded.chunk.digest for index, embedded in staged.items()}

    async def encoded(
        self, workspace_id: WorkspaceId, encoder: Encoder, digests: Collection[bytes]
    ) -> Mapping[bytes, Sequence[Vector]]:
        wanted, found = set(digests), {}
        for (owner, store_id, file_id), chunks in self._published.items():
            if owner != workspace_id or (owner, store_id, file_id) not in self.state.memberships:
                continue
            if self.state.stores[owner, store_id].encoder == encoder:
                found |= {one.chunk.digest: one.windows for one in chunks if one.chunk.digest in wanted}
        return found

    async def stage(self, lease: Lease, chunks: Sequence[EmbeddedChunk]) -> None:
        for embedded in chunks:
            if not _storable(embedded.chunk.text):
                raise InvalidFile("The text holds characters that cannot be stored.")
        job = self._held(lease)
        self._staged.setdefault(job.id, {}).update({embedded.chunk.index: embedded for embedded in chunks})

    async def stage_copy(self, lease: Lease, read_by: str) -> Staged | None:
        job = self._held(lease)
        own = self.state.memberships[job.membership].value
        workspace_id, store_id, file_id = job.membership
        encoder = self.state.stores[workspace_id, store_id].encoder
        for key, membership in self.state.memberships.items():
            other = membership.value
            if (
                key != job.membership
                and (key[0], key[2]) == (workspace_id, file_id)
                and (other.status, membership.read_by, other.chunking) == ("completed", read_by, own.chunking)
                and self.state.stores[key[:2]].encoder == encoder
                and (stored := self._published.get(key))
            ):
                self._staged[job.id] = {
                    one.chunk.index: EmbeddedChunk(one.chunk, one.windows) for one in stored
                }
                return Staged(len(stored), other.notes or ReadingNotes())
        return None

    async def publish(self, lease: Lease, chunk_count: int) -> Published:
        job = self._held(lease)
        staged = {i: chunk for i, chunk in self._staged.pop(job.id, {}).items() if i < chunk_count}
        if staged or not chunk_count:
            if len(staged) != chunk_count:
                self._staged[job.id] = staged
                raise Unavailable("Some finished chunks of the file are missing; they must be made again.")
            self._published[job.membership] = [
                StoredChunk(
                    next(self._ids),
                    job.membership,
                    embedded.chunk,
                    embedded.windows,
                    terms.document_weights(terms.terms(embedded.chunk.text)),
                )
                for _, embedded in sorted(staged.items())
            ]
        stored = self._published.get(job.membership, [])
        if len(stored) != chunk_count:
            raise Unavailable("Some finished chunks of the file are missing; they must be made again.")
        content_bytes = sum(len(chunk.chunk.text.encode()) for chunk in stored)
        floats = sum(len(window) for chunk in stored for window in chunk.windows)
        return Published(chunk_count, sum(len(chunk.windows) for chunk in stored), content_bytes + 2 * floats)

    async def clear_unpublished(self) -> bool:
        return False

    async def search(self, workspace_id: WorkspaceId, query: IndexQuery) -> list[Candidate]:
        _check_filter(query.filter)
        stores = {(workspace_id, store) for store in query.vector_store_ids}
        chunks = [chunk for chunk in self._searchable() if chunk.membership[:2] in stores]
        weights, best_score = _query(query.text, chunks)
        cosine = {chunk.id: _cosine(query.vector, chunk.windows) for chunk in chunks}
        keyword = {chunk.id: _bm25(weights, chunk.weights) / (best_score or 1) for chunk in chunks}
        qualifying = [
            chunk
            for chunk in chunks
            if qualifies(query.filter, self._attributes(chunk)) and _holds(chunk, query.operators)
        ]
        dense = sorted(qualifying, key=lambda chunk: (-cosine[chunk.id], chunk.id))
        matching = [chunk for chunk in qualifying if keyword[chunk.id] > 0 or query.operators.phrases]
        lexical = sorted(matching, key=lambda chunk: (-keyword[chunk.id], chunk.id))
        found = [
            *(dense[: query.candidates] if query.alpha > 0 and query.vector is not None else []),
            *(lexical[: query.candidates] if query.alpha < 1 else []),
        ]
        return [
            self._candidate(chunk, cosine[chunk.id], keyword[chunk.id])
            for chunk in {chunk.id: chunk for chunk in found}.values()
        ]

    async def chunks(self, workspace_id: WorkspaceId, vector_store_id: str, file_id: str) -> list[Chunk]:
        key = (workspace_id, vector_store_id, file_id)
        stored = self._published.get(key, []) if key in self.state.memberships else []
        return [one.chunk for one in stored]

    def _held(self, lease: Lease) -> MemoryJob:
        job = self.state.jobs.get(lease.job_id)
        if job is None or not job.running or job.attempt != lease.attempt:
            raise LeaseLost
        if self.state.memberships[job.membership].value.status not in ("in_progress", "completed"):
            raise LeaseLost
        return job

    def _searchable(self) -> Iterator[StoredChunk]:
        for key, chunks in self._published.items():
            membership = self.state.memberships.get(key)
            if membership is None or has_expired(self.state.files[key[0], key[2]]):
                continue
            if membership.value.status in ("in_progress", "completed"):
                yield from chunks

    def _attributes(self, chunk: StoredChunk) -> Attributes | None:
        return self.state.memberships[chunk.membership].value.attributes

    def _candidate(self, stored: StoredChunk, cosine: float, keyword: float) -> Candidate:
        membership = self.state.memberships[stored.membership].value
        chunk = stored.chunk
        return Candidate(
            chunk_id=stored.id,
            vector_store_id=membership.vector_store_id,
            file_id=membership.file_id,
            filename=membership.filename,
            attributes=membership.attributes,
            chunk_index=chunk.index,
            text=chunk.text,
            start=chunk.start,
            end=chunk.end,
            page=chunk.page,
            heading=chunk.heading,
            cosine=cosine,
            keyword=keyword,
            gap=chunk.gap,
            page_breaks=chunk.page_breaks,
        )


def _query(text: str, chunks: Sequence[StoredChunk]) -> tuple[Mapping[int, float], float]:
    df = Counter(key for chunk in chunks for key in chunk.weights)
    weights = terms.query_weights(terms.terms(text), df, len(chunks))
    return weights, terms.best_score(weights)


def _cosine(vector: Vector | None, windows: Sequence[Vector]) -> float:
    return 0.0 if vector is None else max(sum(map(operator.mul, vector, window)) for window in windows)


def _holds(stored: StoredChunk, operators: Operators) -> bool:
    folded = terms.folded(stored.chunk.text)

    def excluded(word: str) -> bool:
        if terms.is_one_word(word):
            (keys,) = terms.phrase_keys(word)
            return not keys.isdisjoint(stored.weights)
        return terms.folded_phrase(word) in folded

    return (
        all(terms.folded_phrase(phrase) in folded for phrase in operators.phrases)
        and not any(terms.folded_phrase(phrase) in folded for phrase in operators.excluded_phrases)
        and not any(map(excluded, operators.excluded_words))
    )


def _bm25(query: Mapping[int, float], document: Mapping[int, float]) -> float:
    return sum(weight * document.get(key, 0.0) for key, weight in query.items())


def _same(one: AttributeValue, other: AttributeValue) -> bool:
    return _kind(one) == _kind(other) and one == other


def _kind(value: AttributeValue) -> str:
    """`True == 1` in Python, and neither equal nor ordered here."""
    if isinstance(value, bool):
        return "boolean"
    return "string" if isinstance(value, str) else "number"


def _check_filter(where: Filter | None) -> None:
    if isinstance(where, Compound):
        for part in where.filters:
            _check_filter(part)
    elif isinstance(where, Comparison):
        wanted = where.value if isinstance(where.value, tuple) else (where.value,)
        for value in (where.key, *wanted):
            if not (_storable(value) if isinstance(value, str) else math.isfinite(value)):
                raise InvalidRequest("A filter holds a value that cannot be stored.", param="filters")


def _storable(text: str) -> bool:
    return "\0" not in text and not any("\ud800" <= character <= "\udfff" for character in text)
