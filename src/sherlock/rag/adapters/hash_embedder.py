"""`Embedder` without a model: hashed words and word pairs, the same on every machine and in every process.

Feature hashing with signs (Weinberger et al., "Feature Hashing for Large Scale Multitask Learning", 2009).
Texts that share words are near each other, texts that share none are nearly orthogonal. For tests, small
machines and air-gapped demonstrations; it knows no synonyms.
"""

import asyncio
import re
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from sherlock.rag.domain.models import ComponentStatus, Encoder, Vector
from sherlock.rag.instruments import model_time
from sherlock.rag.vectors import mean, unit

WINDOW_WORDS = 256
PAIR_WEIGHT = 0.5
"""Pairs tell order apart, but single words carry the topic."""

_WORD = re.compile(r"\w+|[^\w\s]")


@lru_cache(maxsize=1 << 17)
def _hash(feature: str) -> int:
    """31 bits: the upper ones choose the float, the lowest its sign."""
    return (
        int.from_bytes(blake2b(feature.encode("utf-8", "surrogatepass"), digest_size=4).digest(), "big") >> 1
    )


class HashEmbedder:
    """Vectors of `dimension` floats."""

    def __init__(self, dimension: int = 384) -> None:
        self._dimension = dimension
        self._since = int(time.time())
        self._documents = ThreadPoolExecutor(1, thread_name_prefix="hash-documents")
        self._queries = ThreadPoolExecutor(1, thread_name_prefix="hash-query")

    @property
    def encoder(self) -> Encoder:
        return Encoder("hash", self._dimension)

    async def embed_documents(self, texts: Sequence[str]) -> list[list[Vector]]:
        return await self._run(self._documents, texts)

    async def embed_query(self, text: str) -> Vector:
        (windows,) = await self._run(self._queries, [text])
        return mean(windows)

    async def embed_texts(self, texts: Sequence[str]) -> list[Vector]:
        return [mean(windows) for windows in await self._run(self._documents, texts)]

    async def status(self) -> ComponentStatus:
        return ComponentStatus("ready", self._since, model="hash")

    async def close(self) -> None:
        for threads in (self._documents, self._queries):
            threads.shutdown(wait=False, cancel_futures=True)

    async def _run(self, threads: ThreadPoolExecutor, texts: Sequence[str]) -> list[list[Vector]]:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(threads, self._all_windows, texts)

    def _all_windows(self, texts: Sequence[str]) -> list[list[Vector]]:
        with model_time("encoder"):
            return [self._windows(text) for text in texts]

    def _windows(self, text: str) -> list[Vector]:
        """One vector for every `WINDOW_WORDS` words; at least one."""
        words = _WORD.findall(text.casefold())
        starts = range(0, max(len(words), 1), WINDOW_WORDS)
        return [self._vector(words[start : start + WINDOW_WORDS]) for start in starts]

    def _vector(self, words: list[str]) -> Vector:
        single = [_hash(word) for word in words]
        hashes = np.array(single, dtype=np.int64)
        # A pair's hash is mixed from its words' hashes, which spares hashing every pair of strings.
        pairs = (hashes[:-1] * 1_000_003 + hashes[1:] * 97) & 0x7FFFFFFF
        values: NDArray[np.float64] = np.zeros(self._dimension)
        for features, weight in ((hashes, 1.0), (pairs, PAIR_WEIGHT)):
            places = (features >> 1) % self._dimension
            signs = np.where(features & 1, weight, -weight)
            values += np.bincount(places, weights=signs, minlength=self._dimension)
        return unit(values)
