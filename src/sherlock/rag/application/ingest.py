"""One ingest job: fetch the file, read it as chunks, embed them, publish them."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Final

from sherlock.rag.application.spans import collected, content, stage
from sherlock.rag.domain.errors import FileStoreUnavailable, IngestError, NotFound, Unavailable
from sherlock.rag.domain.messages import IngestProgress, Silent
from sherlock.rag.domain.models import (
    Chunk,
    EmbeddedChunk,
    IngestJob,
    Published,
    ReadingNotes,
    Staged,
    blob_key,
)
from sherlock.rag.domain.ports import ChunkIndex, DocumentReader, Embedder, FileStore
from sherlock.rag.threads import run_in_thread
from sherlock.rag.working_folders import working_folder

FIRST_RETRY_S: Final = 2.0
LONGEST_RETRY_S: Final = 60.0
"""After an outage, however long, every job goes on within a minute."""


@dataclass(frozen=True, slots=True)
class Ingestor:
    files: FileStore
    index: ChunkIndex
    embedder: Embedder
    reader: DocumentReader
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
        with collected() as times:
            read_by = await self.reader.version()
            with stage("ingest.copy") as span:
                made = await self.index.stage_copy(job.lease, read_by)
                span.set_attribute("chunks", made.chunk_count if made else 0)
            if made is None:
                made = await self._make(job)
            await self.progress.report(job, "publish", made.chunk_count)
            with stage("ingest.publish", chunks=made.chunk_count):
                published = await self.index.publish(job.lease, made.chunk_count)
        return replace(
            published,
            notes=made.notes,
            read_by=read_by,
            stage_ms={name.partition(".")[2]: round(s * 1e3, 1) for name, s in times.items()},
        )

    async def _make(self, job: IngestJob) -> Staged:
        """Stage the file's chunks, but for those that were staged before."""
        staged = await self.index.staged(job.lease)
        with working_folder() as folder:
            path = folder / "file"
            await self.progress.report(job, "fetch")
            await self._fetch(job, path)
            await self.progress.report(job, "embed")
            return await self._stage_all(job, path, staged)

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

    async def _stage_all(self, job: IngestJob, path: Path, staged: Mapping[int, bytes]) -> Staged:
        """Stage all of the file's chunks, but for those that were staged before.

        While the encoder works on a batch, the one before is staged and the one after is read, so that it
        never waits for either. Three batches are held at most.
        """
        chunk_count = 0
        notes: list[ReadingNotes] = []
        staging: asyncio.Task[None] | None = None
        try:
            async with aclosing(self._batches(job, path, notes.append)) as batches:
                async for batch in batches:
                    chunk_count += len(batch)
                    new = [made for made in batch if staged.get(made.index) != made.digest]
                    if not new:
                        continue
                    embedded = await self._embed(job, new)
                    if staging is not None:
                        await staging
                    staging = asyncio.create_task(self._stage(job, embedded))
                    await self.progress.report(job, "embed", chunk_count)
            if staging is not None:
                await staging
        except Exception:
            if staging is not None:
                await asyncio.wait([staging])  # finished work is kept for the next attempt
            raise
        finally:
            if staging is not None:
                staging.cancel()
                await asyncio.gather(staging, return_exceptions=True)
        return Staged(chunk_count, notes[0])

    async def _batches(
        self, job: IngestJob, path: Path, noted: Callable[[ReadingNotes], None]
    ) -> AsyncGenerator[list[Chunk], None]:
        """What the reader makes of the file, with a span for each wait."""
        async with aclosing(self.reader.chunks(path, job.filename, job.chunking, noted)) as batches:
            while True:
                with stage("ingest.parse") as span:
                    batch: list[Chunk] = await anext(batches, [])
                    span.set_attribute("chunks", len(batch))
                if not batch:
                    return
                yield batch

    async def _embed(self, job: IngestJob, chunks: Sequence[Chunk]) -> list[EmbeddedChunk]:
        """Each text is encoded once: what the workspace has already is taken from its index."""
        with stage("ingest.embed", chunks=len(chunks)) as span:
            texts = {made.digest: made.text_in_context for made in chunks}
            content(span, chunks=lambda: "\n".join(made.text for made in chunks))
            windows = dict(await self.index.encoded(job.workspace_id, job.encoder, texts.keys()))
            span.set_attribute("reused", len(windows))
            if new := [digest for digest in texts if digest not in windows]:
                encoded = await self.embedder.embed_documents([texts[digest] for digest in new])
                windows |= zip(new, encoded, strict=True)
            span.set_attribute("windows", sum(map(len, windows.values())))
            return [EmbeddedChunk(made, windows[made.digest]) for made in chunks]

    async def _stage(self, job: IngestJob, chunks: Sequence[EmbeddedChunk]) -> None:
        with stage("ingest.stage", chunks=len(chunks)):
            await self.index.stage(job.lease, chunks)


def retry_delay_s(attempt: int, random: Random) -> float:
    """Seconds to wait when `attempt` (from 1) has failed: doubled each time, half of it by chance.

    Chance keeps jobs that failed together from coming back together ("equal jitter" in Marc Brooker,
    "Exponential Backoff And Jitter", AWS Architecture Blog, 2015).
    """
    longest = min(LONGEST_RETRY_S, FIRST_RETRY_S * 2.0 ** min(attempt - 1, 32))
    return longest / 2 + random.uniform(0, longest / 2)
