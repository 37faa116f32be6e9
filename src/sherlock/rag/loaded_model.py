"""A model that is loaded once, on first use or ahead of it, and says how it is doing."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from sherlock.rag.domain.errors import Unavailable
from sherlock.rag.domain.models import ComponentStatus

RETRY_S = 30.0
"""A failed load is tried again by the first call after this time: a hub or a mount may have come back."""

M = TypeVar("M")

logger = logging.getLogger(__name__)


class LoadedModel(Generic[M]):
    """`load` runs in the thread that first calls `get`; other threads wait for it.

    `title` begins the sentences ("The encoder ..."); `error` is the part's own `Unavailable`.
    """

    def __init__(self, title: str, load: Callable[[], M], error: type[Unavailable]) -> None:
        self._title = title
        self._load = load
        self._error = error
        self._lock = threading.Lock()
        self._model: M | None = None
        self._reason: str | None = None
        self._started = False
        self._since = time.time()
        self._closed = False

    def get(self) -> M:
        """The model, loaded where needed (blocks). Raises the part's `Unavailable` with a plain reason."""
        with self._lock:
            if self._model is not None:
                return self._model
            if self._closed:
                raise self._error(f"{self._title} has been stopped.")
            if self._reason is not None and time.time() - self._since < RETRY_S:
                raise self._error(self._reason)
            self._started, self._since, self._reason = True, time.time(), None
            try:
                self._model = self._load()
            except Exception as error:
                logger.warning("model could not be loaded", extra={"model": self._title}, exc_info=True)
                # A library's own words may hold paths; the kind of its error must do for the caller.
                own_words = isinstance(error, Unavailable)
                self._reason = (
                    str(error)
                    if own_words
                    else f"{self._title} could not be loaded ({type(error).__name__})."
                )
                self._since = time.time()
                raise self._error(self._reason) from error
            logger.info(
                "model loaded", extra={"model": self._title, "seconds": round(time.time() - self._since, 1)}
            )
            self._since = time.time()
            return self._model

    def close(self) -> None:
        """Let go of the model; waits for a load that is under way."""
        with self._lock:
            self._model, self._closed = None, True

    def status(self, name: str | None) -> ComponentStatus:
        since = int(self._since)
        if self._model is not None:
            return ComponentStatus("ready", since, model=name)
        if self._reason is not None:
            return ComponentStatus("unavailable", since, self._reason, name)
        return ComponentStatus("starting" if self._started else "idle", since, model=name)
