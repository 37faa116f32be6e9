"""A thread for a model that is fastest when full: small requests that wait at once share one run of it."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

T = TypeVar("T")

Run = Callable[[list[str], Callable[[], bool]], list[T]]
"""One result for each text, in order; it may give up, by raising, when the function says nobody waits."""


class _Request(Generic[T]):
    def __init__(self, texts: list[str]) -> None:
        self.texts = texts
        self.chars = sum(map(len, texts))
        self.results: Future[list[T]] = Future()
        self.abandoned = threading.Event()


class SharedRuns(Generic[T]):
    """Requests are served in the order they came; `together_chars` is how much text a shared run holds.

    A request as long as that fills a run by itself, so nobody waits for others' long texts who would not have
    waited anyway.
    """

    def __init__(self, run: Run[T], together_chars: int, name: str) -> None:
        self._run = run
        self._together_chars = together_chars
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._waiting: deque[_Request[T]] = deque()

    async def __call__(self, texts: Sequence[str]) -> list[T]:
        """Raises what `run` raises; `RuntimeError` after `close`."""
        request: _Request[T] = _Request([*texts])
        self._waiting.append(request)
        self._thread.submit(self._serve_waiting)
        try:
            return await asyncio.wrap_future(request.results)
        finally:
            request.abandoned.set()

    def close(self) -> None:
        """Drop what waits: its callers are cancelled. A run under way ends by itself."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        while self._waiting:
            self._waiting.popleft().results.cancel()

    # ── in the thread ──

    def _serve_waiting(self) -> None:
        if requests := self._next_requests():  # none: an earlier call has served this one's
            self._serve(requests)

    def _next_requests(self) -> list[_Request[T]]:
        taken: list[_Request[T]] = []
        chars = 0
        while self._waiting and (not taken or chars + self._waiting[0].chars <= self._together_chars):
            request = self._waiting.popleft()
            if request.results.set_running_or_notify_cancel():
                taken.append(request)
                chars += request.chars
        return taken

    def _serve(self, requests: list[_Request[T]]) -> None:
        try:
            results = iter(
                self._run(
                    [text for request in requests for text in request.texts],
                    lambda: all(request.abandoned.is_set() for request in requests),
                )
            )
        except Exception as error:
            if len(requests) == 1:
                requests[0].results.set_exception(error)
                return
            # The text that cannot be encoded is one of them: the others are not to suffer.
            for request in requests:
                self._serve([request])
        else:
            for request in requests:
                request.results.set_result([next(results) for _ in request.texts])
