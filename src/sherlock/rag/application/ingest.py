"""One ingest job: fetch the file, parse it, cut it into chunks, embed them, publish them."""

import hashlib
import tempfile
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from random import Random
from typing import Final

from sherlock.rag import parsers
from sherlock.rag.application.spans import stage
from sherlock.rag.chunker import chunk
from sherlock.rag.domain.errors import (
    FileStoreUnavailable,
    IngestError,
    InvalidFile,
    NotFound,
    SherlockError,
    Unavailable,
)
from sherlock.rag.domain.messages import IngestProgress, Silent
from sherlock.rag.domain.models import Chunk, EmbeddedChunk, IngestJob, Published, blob_key
from sherlock.rag.domain.ports import ChunkIndex, Embedder, FileStore, TokenCounter
from sherlock.rag.threads import run_in_thread

BATCH_CHUNKS: Final = 64
"""Chunks that are parsed, embedded and staged together: what a worker loses that is killed meanwhile.

One that is killed between publishing and completing leaves the whole job to be done again.
"""

FIRST_RETRY_S: Final = 2.0
LONGEST_RETRY_S: Final = 60.0
"""After an outage, however long, every job goes on within a minute."""


@dataclass(frozen=True, slots=True)
class Ingestor:
    files: FileStore
    index: ChunkIndex
    embedder: Embedder
    counter: TokenCounter
    progress: IngestProgress = field(default_factory=Silent)

    async def run(self, job: IngestJob) -> Published:
        """Make the file searchable in its store; a repeated run goes on where the last one ended.

        Raises `IngestError` where the file is at fault, `Unavailable` where it may work later, `LeaseLost`.
        Until the end nothing of it is visible to searches.
        """
        if job.encoder != self.embedder.encoder:
            raise IngestError(
                f"The vector store was made with the encoder {job.encoder.name}; this server runs "
                f"{self.embedder.encoder.name}."
            )
        staged = await self.index.staged(job.lease)
        chunk_count = 0
        with tempfile.TemporaryDirectory(prefix="sherlock-ingest-") as folder:
            path = Path(folder) / "file"
            await self.progress.report(job, "fetch")
            await self._fetch(job, path)
            await self.progress.report(job, "embed")
            async with aclosing(self._chunks(job, path)) as batches:
                async for batch in batches:
                    chunk_count += len(batch)
                    await self._embed(
                        job, [made for made in batch if staged.get(made.index) != _digest(made)]
                    )
                    await self.progress.report(job, "embed", chunk_count)
        await self.progress.report(job, "publish", chunk_count)
        with stage("ingest.publish", chunks=chunk_count):
            return await self.index.publish(job.lease, chunk_count)

    async def _fetch(self, job: IngestJob, path: Path) -> None:
        with stage("ingest.fetch", bytes=job.bytes):
            size = 0
            try:
                with path.open("wb") as file:
                    async for piece in self.files.read(blob_key(job.workspace_id, job.file_id)):
                        size += await run_in_thread(None, file.write, piece)
            except NotFound:
                raise IngestError("The file's bytes are no longer stored.") from None
            except OSError:
                raise Unavailable("The worker has no room for the file.") from None
            if size != job.bytes:
                raise FileStoreUnavailable("The file store returned a part of the file.")

    async def _chunks(self, job: IngestJob, path: Path) -> AsyncGenerator[list[Chunk], None]:
        """Batches of chunks, each parsed when it is asked for, so a slow embedder holds back the parser."""
        made = chunk(parsers.parse(path, job.filename), job.chunking, self.counter)
        while True:
            with stage("ingest.parse") as span:
                batch = await run_in_thread(None, _next_batch, made)
                span.set_attribute("chunks", len(batch))
            if not batch:
                return
            yield batch

    async def _embed(self, job: IngestJob, chunks: Sequence[Chunk]) -> None:
        if not chunks:
            return
        with stage("ingest.embed", chunks=len(chunks)) as span:
            windows = await self.embedder.embed_documents([made.text for made in chunks])
            span.set_attribute("windows", sum(map(len, windows)))
            embedded = [EmbeddedChunk(made, parts) for made, parts in zip(chunks, windows, strict=True)]
            await self.index.stage(job.lease, embedded)


def retry_delay_s(attempt: int, random: Random) -> float:
    """Seconds to wait when `attempt` (from 1) has failed: doubled each time, half of it by chance.

    Chance keeps jobs that failed together from coming back together ("equal jitter" in Marc Brooker,
    "Exponential Backoff And Jitter", AWS Architecture Blog, 2015).
    """
    longest = min(LONGEST_RETRY_S, FIRST_RETRY_S * 2.0 ** min(attempt - 1, 32))
    return longest / 2 + random.uniform(0, longest / 2)


def _next_batch(made: Iterator[Chunk]) -> list[Chunk]:
    """The next chunks, in a thread; whatever a parsing library throws becomes an error of ours."""
    try:
        return [*islice(made, BATCH_CHUNKS)]
    except SherlockError:
        raise
    except MemoryError:
        raise IngestError("Reading the file takes more memory than there is.") from None
    except OSError:
        raise Unavailable("The worker cannot read its copy of the file.") from None
    except Exception:
        # Its text may quote the document, so nothing of it is passed on.
        raise InvalidFile("The file is damaged and cannot be read.") from None


def _digest(made: Chunk) -> bytes:
    return hashlib.sha256(made.text.encode()).digest()
