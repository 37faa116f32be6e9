"""`Embedder` on sentence-transformers: torch, and ONNX Runtime for single queries.

The encoder reads some 256 word pieces at once and would drop the rest, so a text is cut into windows at word
pieces, and every window gets its vector. Windows of similar length share a batch: padding costs as much as
words. Queries have a thread of their own, and on a CPU soon an exported form of the encoder, which takes half
the time for one of them and the same for a batch.
"""

import asyncio
import logging
import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from sherlock.rag.domain.errors import EmbedderUnavailable
from sherlock.rag.domain.models import ComponentStatus, Encoder, Vector
from sherlock.rag.exported_encoder import Batch, Forward, open_exported
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
GPU_BATCH_TOKENS = 32 * BATCH_TOKENS
"""A GPU is fastest when it is full."""
TOGETHER_CHARS = 4 * BATCH_TOKENS
"""Short texts of several callers that fill one call: 5 words take 6 ms in company and 15 alone."""
QUERY_CACHE_ENTRIES = 256

_SAMPLES = (
    ("warm",),
    ("how do I reset the password of my account?",),
    ("E-4711", "naïve café 東京 🙂", "", "the same words " * 40),
    ("a line of text that comes in company", "and another one " * 9),
)
"""What an exported encoder is compared on: one text and several, of lengths that need padding."""

Kind = Literal["query", "document"]

logger = logging.getLogger(__name__)


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

    folder: Path
    transformer: "SentenceTransformer"
    tokenizer: "Tokenizer"
    head: dict[Kind, list[int]]
    tail: list[int]
    pad: int
    window_tokens: int
    batch_tokens: int
    dimension: int

    def windows(self, texts: Sequence[str], kind: Kind) -> tuple[list[list[int]], list[int]]:
        """The word pieces of every window, and of each the position of its text."""
        windows: list[list[int]] = []
        owners: list[int] = []
        readable = [without_surrogates(text) for text in texts]
        for owner, encoding in enumerate(
            self.tokenizer.encode_batch_fast(readable, add_special_tokens=False)
        ):
            for start, end in window_spans(len(encoding), self.window_tokens, OVERLAP_TOKENS):
                windows.append([*self.head[kind], *encoding.ids[start:end], *self.tail])
                owners.append(owner)
        return windows, owners

    def padded(self, windows: Sequence[list[int]]) -> Batch:
        """Word pieces and mask [windows, longest]."""
        longest = max(map(len, windows))
        ids = np.full((len(windows), longest), self.pad, dtype=np.int64)
        mask = np.zeros_like(ids)
        for row, window in enumerate(windows):
            ids[row, : len(window)] = window
            mask[row, : len(window)] = 1
        return ids, mask

    def forward(self, ids: NDArray[np.int64], mask: NDArray[np.int64]) -> NDArray[np.float32]:
        """`Forward` on torch."""
        import torch

        device = self.transformer.device
        features = {
            "input_ids": torch.from_numpy(ids).to(device),
            "attention_mask": torch.from_numpy(mask).to(device),
        }
        with torch.inference_mode():
            vectors: torch.Tensor = self.transformer.forward(features)["sentence_embedding"]
        return vectors.float().cpu().numpy()


class SentenceTransformersEmbedder:
    """`locate` gives the model's folder and may block (it may fetch it); it runs in the loading thread.

    `dimension` is what the folder's configuration says, so that `encoder` is known before the model is
    loaded; `None` where that cannot be known. `threads` bounds torch in this whole process. `exports` are the
    folders where the encoder's exported form is looked for and kept; with none, queries stay on torch.
    """

    def __init__(
        self,
        name: str,
        locate: Callable[[], Path],
        *,
        dimension: int | None = None,
        threads: int = 1,
        exports: Sequence[Path] = (),
    ) -> None:
        self._name = name
        self._locate = locate
        self._dimension = dimension
        self._threads = threads
        self._exports = exports
        self._model = LoadedModel("The encoder", self._load, EmbedderUnavailable)
        # A batch of documents holds its thread for some 0.35 s, and many follow each other. Queries have
        # their own thread over the same weights, which are only read.
        self._documents = SharedRuns(self._embed_documents, TOGETHER_CHARS, "embed-documents")
        self._queries = ThreadPoolExecutor(1, thread_name_prefix="embed-query")
        self._exporting = ThreadPoolExecutor(1, thread_name_prefix="export-encoder")
        self._export_begun = False
        self._exported: Forward | None = None
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
        if self._exports and not self._export_begun:
            # Behind the first query: a start takes no longer for it, and a worker, which has no queries, does
            # without.
            self._export_begun = True
            self._exporting.submit(self._export)
        return vector[:]

    async def status(self) -> ComponentStatus:
        return self._model.status(self._name)

    async def close(self) -> None:
        self._closing.set()
        self._documents.close()
        self._queries.shutdown(wait=False, cancel_futures=True)
        self._exporting.shutdown(wait=False, cancel_futures=True)

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
        device = "cuda" if torch.cuda.is_available() else "cpu"
        transformer = SentenceTransformer(str(folder), device=device, local_files_only=True)
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
            folder=folder,
            transformer=transformer,
            tokenizer=tokenizer,
            head=heads,
            tail=tail,
            pad=transformer.tokenizer.pad_token_id or 0,
            window_tokens=limit - longest_head - len(tail),
            batch_tokens=BATCH_TOKENS if device == "cpu" else GPU_BATCH_TOKENS,
            dimension=dimension,
        )

    def _embed_documents(self, texts: list[str], abandoned: Callable[[], bool]) -> list[list[Vector]]:
        return self._embed(texts, "document", abandoned)

    def _embed(self, texts: list[str], kind: Kind, abandoned: Callable[[], bool]) -> list[list[Vector]]:
        model = self._model.get()
        windows, owners = model.windows(texts, kind)
        forward = (self._exported if kind == "query" else None) or model.forward
        encoded: list[Vector] = [array("f")] * len(windows)
        for positions in batches([len(window) for window in windows], model.batch_tokens):
            if self._closing.is_set() or abandoned():
                raise EmbedderUnavailable("The encoder has been stopped.")
            batch = model.padded([windows[position] for position in positions])
            with model_time("encoder"):
                values = forward(*batch)
            for position, vector in zip(positions, values, strict=True):
                encoded[position] = unit(vector)
        vectors: list[list[Vector]] = [[] for _ in texts]
        for owner, vector in zip(owners, encoded, strict=True):
            vectors[owner].append(vector)
        return vectors

    def _export(self) -> None:
        """Have queries run on the encoder's exported form, if it has one that gives the same vectors."""
        try:
            model = self._model.get()
            if model.transformer.device.type == "cpu" and not self._closing.is_set():
                samples = [model.padded(model.windows(texts, "query")[0]) for texts in _SAMPLES]
                self._exported = open_exported(
                    model.transformer, model.folder, self._exports, model.forward, samples
                )
        except Exception:  # of the exporter, of ONNX Runtime, or that it is not installed
            logger.warning("encoder could not be exported; queries stay on torch", exc_info=True)
