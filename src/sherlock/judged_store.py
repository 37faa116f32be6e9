"""A judged collection as a vector store for the time of a measurement, filled the way users fill theirs."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice

from sherlock.rag.application.files import UploadDetails
from sherlock.rag.domain.errors import IngestError, NotFound
from sherlock.rag.domain.models import DEFAULT_WORKSPACE, Result
from sherlock.wiring import Rag
from sherlock.worker import Worker

BATCH_FILES = 100
"""Files that wait at a time: a measurement leaves room in the queue for others."""
LIFE_DAYS = 1
"""When housekeeping clears away what a measurement that was killed has left."""


@dataclass(frozen=True, slots=True)
class JudgedStore:
    """`documents`: file id -> the collection's own id of the document in it."""

    vector_store_id: str
    documents: dict[str, str] = field(default_factory=dict)

    def document_of(self, result: Result) -> str:
        return self.documents[result.candidate.file_id]


@asynccontextmanager
async def ingested(
    rag: Rag,
    documents: Iterable[tuple[str, str]],
    *,
    name: str,
    slots: int,
    lease_s: float,
    progress: Callable[[int], None] = lambda count: None,
) -> AsyncIterator[JudgedStore]:
    """A store that holds the `(id, text)` documents, each a text file; it and its files go afterwards.

    Ingests with `slots` jobs at a time, beside any worker that runs. `progress` hears how many files each
    batch had. Raises `IngestError` where a document cannot be ingested: figures without it would mislead.
    """
    made = await rag.vector_stores.create(
        DEFAULT_WORKSPACE, name=f"measuring {name}", expires_after_days=LIFE_DAYS
    )
    store = JudgedStore(made.id)
    try:
        async with _working(Worker(rag.queue, rag.ingestor, slots=slots, lease_s=lease_s)) as working:
            for batch in _batches(documents, BATCH_FILES):
                for file_id in [await _attach(rag, store, *document) for document in batch]:
                    await _wait(rag, store, file_id, working)
                progress(len(batch))
        yield store
    finally:
        # A task of its own, so that it also ends when this one is cancelled.
        await asyncio.shield(asyncio.ensure_future(_remove(rag, store)))


@asynccontextmanager
async def _working(worker: Worker) -> "AsyncIterator[asyncio.Future[None]]":
    stop = asyncio.Event()
    working = asyncio.ensure_future(worker.run(stop))
    try:
        yield working
    finally:
        stop.set()
        await working


def _batches(documents: Iterable[tuple[str, str]], size: int) -> Iterator[Sequence[tuple[str, str]]]:
    rest = iter(documents)
    while batch := list(islice(rest, size)):
        yield batch


async def _attach(rag: Rag, store: JudgedStore, document: str, text: str) -> str:
    """The id of the file that holds the document."""

    async def data() -> AsyncIterator[bytes]:
        yield text.encode()

    async def details() -> UploadDetails:
        return UploadDetails("assistants", expires_after_s=LIFE_DAYS * 86_400)

    file = await rag.files.upload(DEFAULT_WORKSPACE, "document.txt", data(), details)
    store.documents[file.id] = document
    await rag.vector_stores.attach(DEFAULT_WORKSPACE, store.vector_store_id, file.id)
    return file.id


async def _wait(rag: Rag, store: JudgedStore, file_id: str, working: "asyncio.Future[None]") -> None:
    while True:
        member = await rag.vector_stores.wait(DEFAULT_WORKSPACE, store.vector_store_id, file_id, 1.0)
        if member.status == "completed":
            return
        if member.status != "in_progress":
            reason = member.last_error.message if member.last_error else f"It ended {member.status}."
            raise IngestError(f"The document '{store.documents[file_id]}' was not ingested: {reason}")
        if working.done():
            working.result()


async def _remove(rag: Rag, store: JudgedStore) -> None:
    with suppress(NotFound):
        await rag.vector_stores.delete(DEFAULT_WORKSPACE, store.vector_store_id)
    for file_id in store.documents:
        with suppress(NotFound):
            await rag.files.delete(DEFAULT_WORKSPACE, file_id)
