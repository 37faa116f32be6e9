"""`Reranker`: a cross-encoder that reads query and text together, within a budget of time.

How many candidates the budget pays for follows from a running cost per token on this machine, so a busy or
slow one reranks fewer instead of answering late. They are read in their order, some at a time, and the clock
is looked at in between: what has been read by then counts.
"""

import asyncio
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from sherlock.rag.domain.errors import RerankerUnavailable
from sherlock.rag.domain.models import ComponentStatus
from sherlock.rag.instruments import model_time
from sherlock.rag.loaded_model import LoadedModel
from sherlock.rag.surrogates import without_surrogates

if TYPE_CHECKING:
    import torch
    from tokenizers import Encoding, Tokenizer

MAX_TOKENS = 512
"""Query and text together; a longer text is cut, the query is kept whole."""
MAX_QUERY_TOKENS = 128
FEWEST = 2
"""One score alone orders nothing."""
BATCH_TOKENS = 512
"""Padded; some 0.1 s on one core."""
HAND_OVER = 0.95
"""The part of the budget after which what has been read by then is handed over, also out of a batch that
takes longer than expected; the rest of the time is for the way back."""
FIRST_GUESS_S_PER_TOKEN = 0.00025
"""Until the warm-up has measured it."""
WARM_UP_RUNS = 3
COST_MEMORY = 0.8
"""Weight of the past in the moving average of the cost."""
LARGEST_RISE = 3.0
"""One batch counts as at most so many times the average: a moment's pause is no new cost."""

_WARM_UP = [("what is a cross-encoder", "A model that reads two texts at once. " * 12)] * 4


class _CrossEncoder(Protocol):
    """A loaded model: encodings of (query, text) pairs -> logits."""

    tokenizer: "Tokenizer"

    def logits(self, batch: Sequence["Encoding"]) -> list[float]: ...


class CrossEncoderReranker:
    """`locate` gives the model's folder and may block; ONNX weights in it run on ONNX Runtime, others on
    torch.

    `name` is the model's full name, for the status; `threads` bounds one call of the model.
    """

    def __init__(self, name: str, locate: Callable[[], Path], *, threads: int = 1) -> None:
        self._name = name
        self._locate = locate
        self._threads = threads
        self._model = LoadedModel("The reranker", self._load, RerankerUnavailable)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rerank")
        self._cost_s = FIRST_GUESS_S_PER_TOKEN
        """Seconds per token now."""
        self._least_cost_s = FIRST_GUESS_S_PER_TOKEN
        """The least that was measured or guessed: a refusal does not make it seem less."""
        self._closing = threading.Event()

    def start(self) -> None:
        """Begin loading in the background, and measure the cost."""
        self._thread.submit(self._warm_up)

    async def rerank(self, query: str, texts: Sequence[str], budget_s: float) -> list[float]:
        if not texts:
            return []
        if self._closing.is_set():
            raise RerankerUnavailable("The reranker has been stopped.")
        time_s = HAND_OVER * budget_s
        deadline = time.monotonic() + time_s
        abandoned = threading.Event()
        scores: list[float] = []
        reading = asyncio.get_running_loop().run_in_executor(
            self._thread, self._rerank, query, list(texts), time_s, deadline, abandoned, scores
        )
        reading.add_done_callback(_ended)
        try:
            async with asyncio.timeout(time_s):
                await asyncio.shield(reading)
        except TimeoutError:
            pass
        except RerankerUnavailable:
            raise
        except Exception as error:  # ONNX Runtime, torch and the tokenizer share no error class
            raise RerankerUnavailable("The reranker failed.") from error
        finally:
            abandoned.set()  # a caller who went away leaves the thread to the next one
        read = scores.copy()
        return read if len(read) >= min(FEWEST, len(texts)) else []

    async def status(self) -> ComponentStatus:
        return self._model.status(self._name)

    async def close(self) -> None:
        self._closing.set()
        self._thread.shutdown(wait=False, cancel_futures=True)

    # ── in the adapter's thread ──

    def _load(self) -> _CrossEncoder:
        folder = self._locate()
        for weights in (folder / "model.onnx", folder / "onnx" / "model.onnx"):
            if weights.is_file() and (folder / "tokenizer.json").is_file():
                return _OnnxCrossEncoder(weights, folder / "tokenizer.json", self._threads)
        return _TorchCrossEncoder(folder)

    def _warm_up(self) -> None:
        try:
            model = self._model.get()
            encodings = model.tokenizer.encode_batch(list(_WARM_UP))
            model.logits(encodings)  # the first call also allocates
            measured_s = min(_timed(model, encodings)[1] for _ in range(WARM_UP_RUNS))
            # At a start other models load too. So it may be much too high, and counts half where it is high.
            self._cost_s = (min(measured_s, FIRST_GUESS_S_PER_TOKEN) + measured_s) / 2
            self._least_cost_s = min(self._least_cost_s, measured_s)
        except RerankerUnavailable:
            return  # stands in the status, and the next call says so

    def _rerank(
        self,
        query: str,
        texts: list[str],
        budget_s: float,
        deadline: float,
        abandoned: threading.Event,
        scores: list[float],
    ) -> None:
        """Add to `scores`, batch by batch."""
        # The budget runs from the call, so time spent waiting for the thread or the first load is spent.
        if self._model.status(None).state != "ready":
            self._warm_up()
        model = self._model.get()
        query = _cut(model.tokenizer, without_surrogates(query), MAX_QUERY_TOKENS)
        encodings: list[Encoding] = []
        tokens = 0
        left_s = deadline - time.monotonic()
        affordable = left_s / self._cost_s
        for text in texts:
            encoding = model.tokenizer.encode(query, without_surrogates(text))
            tokens += len(encoding)
            if tokens > affordable:
                break
            encodings.append(encoding)
        if len(encodings) < min(FEWEST, len(texts)):
            if left_s > budget_s / 2:  # it is the cost that is too high, not the wait that was too long
                # What was measured in a busy moment must not switch reranking off for good.
                self._cost_s = min(self._cost_s, max(self._cost_s * COST_MEMORY, self._least_cost_s))
            return
        for batch in _batches(encodings):
            if abandoned.is_set() or self._closing.is_set():
                return
            if time.monotonic() + _padded(batch) * self._cost_s > deadline:
                break
            with model_time("reranker"):
                logits, cost_s = _timed(model, batch)
            self._learn(cost_s)
            scores += map(_sigmoid, logits)

    def _learn(self, cost_s: float) -> None:
        counted_s = min(cost_s, LARGEST_RISE * self._cost_s)
        self._cost_s = COST_MEMORY * self._cost_s + (1 - COST_MEMORY) * counted_s
        self._least_cost_s = min(self._least_cost_s, cost_s)


class _OnnxCrossEncoder:
    """Inputs `input_ids`, `attention_mask`, `token_type_ids` [batch, tokens]; output logits [batch, 1]."""

    def __init__(self, weights: Path, tokenizer: Path, threads: int) -> None:
        import onnxruntime
        from tokenizers import Tokenizer

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        # Idle threads would burn a core.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session = onnxruntime.InferenceSession(
            os.fspath(weights), options, providers=["CPUExecutionProvider"]
        )
        self._inputs = [node.name for node in self._session.get_inputs()]
        self.tokenizer = _pair_tokenizer(Tokenizer.from_file(os.fspath(tokenizer)))

    def logits(self, batch: Sequence["Encoding"]) -> list[float]:
        shape = (len(batch), max(map(len, batch)))
        inputs = {name: np.zeros(shape, dtype=np.int64) for name in self._inputs}
        for row, encoding in enumerate(batch):
            columns = {
                "input_ids": encoding.ids,
                "attention_mask": encoding.attention_mask,
                "token_type_ids": encoding.type_ids,
            }
            for name in self._inputs:
                inputs[name][row, : len(encoding)] = columns[name]
        (logits,) = self._session.run(None, inputs)
        return [float(value) for value in logits.reshape(len(batch), -1)[:, 0]]


class _TorchCrossEncoder:
    """Weights in sentence-transformers' form."""

    def __init__(self, folder: Path) -> None:
        from sentence_transformers import CrossEncoder
        from tokenizers import Tokenizer
        from transformers.utils import logging as transformers_logging

        transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        encoder = CrossEncoder(os.fspath(folder), device="cpu", local_files_only=True)
        encoder.model.eval()
        self._model = encoder.model
        self._pad = encoder.tokenizer.pad_token_id or 0
        self.tokenizer = _pair_tokenizer(Tokenizer.from_str(encoder.tokenizer.backend_tokenizer.to_str()))

    def logits(self, batch: Sequence["Encoding"]) -> list[float]:
        import torch

        longest = max(map(len, batch))

        def padded(rows: list[list[int]], fill: int) -> "torch.Tensor":
            return torch.tensor([row + [fill] * (longest - len(row)) for row in rows])

        inputs = {
            "input_ids": padded([e.ids for e in batch], self._pad),
            "attention_mask": padded([e.attention_mask for e in batch], 0),
        }
        if getattr(self._model.config, "type_vocab_size", 0) > 1:
            inputs["token_type_ids"] = padded([e.type_ids for e in batch], 0)
        with torch.inference_mode():
            output = self._model(**inputs).logits
        return [float(value) for value in output[:, 0]]


def _pair_tokenizer(tokenizer: "Tokenizer") -> "Tokenizer":
    """The files may ask for padding to 512, which would cost as much as text."""
    tokenizer.no_padding()
    tokenizer.enable_truncation(MAX_TOKENS, strategy="only_second")
    return tokenizer


def _batches(encodings: Sequence["Encoding"]) -> Iterator[list["Encoding"]]:
    """In their order, each of at most `BATCH_TOKENS` when padded, or of a single one."""
    batch: list[Encoding] = []
    longest = 0
    for encoding in encodings:
        longest = max(longest, len(encoding))
        if batch and longest * (len(batch) + 1) > BATCH_TOKENS:
            yield batch
            batch, longest = [], len(encoding)
        batch.append(encoding)
    if batch:
        yield batch


def _cut(tokenizer: "Tokenizer", text: str, max_tokens: int) -> str:
    """The beginning of `text` that fits, so that truncation always finds room in the second text."""
    text = text[: max_tokens * 64]  # bounds the work on a query of any length
    encoding = tokenizer.encode("", text)  # as the second text, which is what the tokenizer may cut
    ends = [end for (_, end), part in zip(encoding.offsets, encoding.sequence_ids, strict=True) if part == 1]
    return text if len(ends) <= max_tokens else text[: ends[max_tokens - 1]]


def _padded(batch: Sequence["Encoding"]) -> int:
    """Tokens that a batch costs."""
    return len(batch) * max(map(len, batch))


def _timed(model: _CrossEncoder, batch: Sequence["Encoding"]) -> tuple[list[float], float]:
    """Logits, and seconds per padded token."""
    started = time.monotonic()
    logits = model.logits(batch)
    return logits, (time.monotonic() - started) / _padded(batch)


def _ended(reading: "asyncio.Future[None]") -> None:
    """Look at the outcome, for nobody may be waiting for it any more, and asyncio would complain."""
    if not reading.cancelled():
        reading.exception()


def _sigmoid(logit: float) -> float:
    return 1 / (1 + math.exp(-logit)) if logit >= 0 else math.exp(logit) / (1 + math.exp(logit))
