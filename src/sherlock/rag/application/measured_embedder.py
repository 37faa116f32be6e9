"""`Embedder` that records how long its callers wait, whichever embedder it is."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from sherlock.rag import instruments
from sherlock.rag.domain.models import ComponentStatus, Encoder, Vector
from sherlock.rag.domain.ports import Embedder


@dataclass(frozen=True, slots=True)
class MeasuredEmbedder:
    embedder: Embedder

    @property
    def encoder(self) -> Encoder:
        return self.embedder.encoder

    async def embed_documents(self, texts: Sequence[str]) -> list[list[Vector]]:
        with _measured("documents"):
            return await self.embedder.embed_documents(texts)

    async def embed_query(self, text: str) -> Vector:
        with _measured("query"):
            return await self.embedder.embed_query(text)

    async def embed_texts(self, texts: Sequence[str]) -> list[Vector]:
        with _measured("texts"):
            return await self.embedder.embed_texts(texts)

    async def status(self) -> ComponentStatus:
        return await self.embedder.status()


@contextmanager
def _measured(kind: Literal["documents", "query", "texts"]) -> Iterator[None]:
    began = time.perf_counter()
    try:
        yield
    finally:
        instruments.embed_latency.record(time.perf_counter() - began, {"kind": kind})
