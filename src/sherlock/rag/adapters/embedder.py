"""`Embedder` on sentence-transformers (torch, CPU).

The encoder reads some 256 word pieces at once and would drop the rest, so a text is cut into windows at word
pieces, and every window gets its vector. Windows of similar length share a batch: padding costs as much as
words.
"""

import asyncio
import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sherlock.rag.domain.errors import EmbedderUnavailable
from sherlock.rag.domain.models import ComponentStatus, Encoder, Vector
from sherlock.rag.instruments import model_time
from sherlock.rag.loaded_model import LoadedModel
from sherlock.rag.shared_runs import SharedRuns
from sherlock.rag.surrogates import without_surrogates
from sherlock.rag.vectors import mean, unit

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from tokenizers import Tokenizer

WINDOW_TOKENS = 256
OVERLAP_TOKENS = 32
BATCH_TOKENS = 1024
"""Padded tokens in one call of the model; larger batches are slower on a CPU (padding, cache)."""
TOGETHER_CHARS = 4 * BATCH_TOKENS
"""Short texts of several callers that fill one call: 5 words take 6 ms in company and 15 alone."""
QUERY_CACHE_ENTRIES = 256

Kind = Literal["query", "document"]


def window_spans(tokens: int, size: int, overlap: int) -> list[tuple[int, int]]:
    """`(start, end)` of equal windows over `tokens` word pieces; each at most `size`, `overlap` shared at
    least.

    Equal parts, not full ones and a stub: a stub's vector says little. At least one window, which may be
    empty.
    """
    if tokens <= size:
        return [(0, tokens)]
    count = -(-(tokens - overlap) // (size - overlap))
    length = -(-(tokens + (count - 1) * overlap) // count)
    last_start = tokens - length
    return [(start := last_start * i // (count - 1), start + length) for i in range(count)]


def batches(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Positions grouped by similar length, so that longest x count of a group stays within `budget`."""
    group: list[int] = []
    # Longest first: the group's first member sets its padding.
    for position in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if group and lengths[group[0]] * (len(group) + 1) > budget:
            yield group
            group = []
        group.append(position)
    if group:
        yield group


@dataclass(frozen=True, slots=True)
class _Model:
    """The loaded encoder with its own tokenizer, and the ids that stand around each window."""

    transformer: "SentenceTransformer"
    tokenizer: "Tokenizer"
    head: dict[Kind, list[int]]
    tail: list[int]
    pad: int
    window_tokens: int
    dimension: int


class SentenceTransformersEmbedder:
    """`locate` gives the model's folder and may block (it may fetch it); it runs in the loading thread.

    `dimension` is what the folder's configuration says, so that `encoder` is known before the model is
    loaded; `None` where that cannot be known. `threads` bounds torch in this whole process.
    """

    def __init__(
        self,
        name: str,
        locate: Callable[[], Path],
        *,
        dimension: int | None = None,
        threads: int = 1,
    ) -> None:
        self._name = name
        self._locate = locate
        self._dimension = dimension
        self._threads = threads
        self._model = LoadedModel("The encoder", self._load, EmbedderUnavailable)
        # A batch of documents holds its thread for some 0.35 s, and many follow each other. Queries have
        # their own thread over the same weights, which are only read.
        self._documents = SharedRuns(self._embed_documents, TOGETHER_CHARS, "embed-documents")
        self._queries = ThreadPoolExecutor(1, thread_name_prefix="embed-query")
        self._recent: OrderedDict[str, Vector] = OrderedDict()
        self._closing = threading.Event()

    def start(self) -> None:
        """Begin loading in the background."""
        self._queries.submit(self._warm_up)

    @property
    def encoder(self) -> Encoder:
        """Raises `EmbedderUnavailable` while the dimension is not known yet."""
        if self._dimension is None:
            raise EmbedderUnavailable("The encoder is still being loaded.")
        return Encoder(self._name, self._dimension)

    async def embed_documents(self, texts: Sequence[str]) -> list[list[Vector]]:
        return await self._translated(self._documents(texts))

    async def embed_texts(self, texts: Sequence[str]) -> list[Vector]:
        return [mean(windows) for windows in await self._translated(self._documents(texts))]

    async def embed_query(self, text: str) -> Vector:
        if text in self._recent:
            self._recent.move_to_end(text)
            return self._recent[text][:]
        (windows,) = await self._translated(self._embed_alone(text))
        self._recent[text] = vector = mean(windows)
        if len(self._recent) > QUERY_CACHE_ENTRIES:
            self._recent.popitem(last=False)
        return vector[:]

    async def status(self) -> ComponentStatus:
        return self._model.status(self._name)

    async def close(self) -> None:
        self._closing.set()
        self._documents.close()
        self._queries.shutdown(wait=False, cancel_futures=True)

    async def _embed_alone(self, text: str) -> list[list[Vector]]:
        abandoned = threading.Event()
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._queries, self._embed, [text], "query", abandoned.is_set
            )
        finally:
            abandoned.set()  # a caller who went away leaves the thread to the next one

    async def _translated(self, vectors: Coroutine[Any, Any, list[list[Vector]]]) -> list[list[Vector]]:
        """Raises `EmbedderUnavailable`: the one place where the library's errors are translated."""
        try:
            if self._closing.is_set():
                raise EmbedderUnavailable("The encoder has been stopped.")
            return await vectors
        except EmbedderUnavailable:
            raise
        except Exception as error:  # torch and the tokenizer have no error of their own in common
            raise EmbedderUnavailable("The encoder failed.") from error
        finally:
            vectors.close()

    # ── in the adapter's threads ──

    def _warm_up(self) -> None:
        try:
            self._embed(["warm"], "query", lambda: False)
        except EmbedderUnavailable:
            return  # stands in the status, and the next call says so

    def _load(self) -> _Model:
        folder = self._locate()
        import torch
        from sentence_transformers import SentenceTransformer
        from tokenizers import Tokenizer
        from transformers.utils import logging as transformers_logging

        transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        torch.set_num_threads(self._threads)
        transformer = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
        transformer.eval()
        # A copy of our own: the library's changes its padding and truncation from call to call.
        tokenizer = Tokenizer.from_str(transformer.tokenizer.backend_tokenizer.to_str())
        tokenizer.no_padding()
        tokenizer.no_truncation()
        framed = tokenizer.encode("a")
        inner = [i for i, special in enumerate(framed.special_tokens_mask) if not special]
        head, tail = framed.ids[: inner[0]], framed.ids[inner[-1] + 1 :]
        heads: dict[Kind, list[int]] = {}
        for kind in ("query", "document"):
            prompt = transformer.prompts.get(kind) or ""
            heads[kind] = head + tokenizer.encode(prompt, add_special_tokens=False).ids
        dimension = transformer.get_embedding_dimension()
        if dimension is None:
            raise EmbedderUnavailable("The encoder does not say how many floats its vectors have.")
        self._dimension = dimension
        longest_head = max(map(len, heads.values()))
        limit = min(WINDOW_TOKENS, transformer.max_seq_length or WINDOW_TOKENS)
        return _Model(
            transformer=transformer,
            tokenizer=tokenizer,
            head=heads,
            tail=tail,
            pad=transformer.tokenizer.pad_token_id or 0,
            window_tokens=limit - longest_head - len(tail),
            dimension=dimension,
        )

    def _embed_documents(self, texts: list[str], abandoned: Callable[[], bool]) -> list[list[Vector]]:
        return self._embed(texts, "document", abandoned)

    def _embed(self, texts: list[str], kind: Kind, abandoned: Callable[[], bool]) -> list[list[Vector]]:
        model = self._model.get()
        readable = [without_surrogates(text) for text in texts]
        windows: list[list[int]] = []
        owners: list[int] = []
        for owner, encoding in enumerate(
            model.tokenizer.encode_batch_fast(readable, add_special_tokens=False)
        ):
            for start, end in window_spans(len(encoding), model.window_tokens, OVERLAP_TOKENS):
                windows.append([*model.head[kind], *encoding.ids[start:end], *model.tail])
                owners.append(owner)
        vectors: list[list[Vector]] = [[] for _ in texts]
        for owner, vector in zip(owners, self._encode(model, windows, abandoned), strict=True):
            vectors[owner].append(vector)
        return vectors

    def _encode(self, model: _Model, windows: list[list[int]], abandoned: Callable[[], bool]) -> list[Vector]:
        import torch

        vectors: list[Vector] = [array("f")] * len(windows)
        for positions in batches([len(window) for window in windows], BATCH_TOKENS):
            if self._closing.is_set() or abandoned():
                raise EmbedderUnavailable("The encoder has been stopped.")
            longest = len(windows[positions[0]])
            ids = torch.full((len(positions), longest), model.pad)
            mask = torch.zeros((len(positions), longest), dtype=torch.long)
            for row, position in enumerate(positions):
                window = windows[position]
                ids[row, : len(window)] = torch.tensor(window)
                mask[row, : len(window)] = 1
            with model_time("encoder"), torch.inference_mode():
                output = model.transformer.forward({"input_ids": ids, "attention_mask": mask})
            for position, values in zip(positions, output["sentence_embedding"].numpy(), strict=True):
                vectors[position] = unit(values)
        return vectors
