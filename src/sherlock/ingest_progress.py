"""The progress of ingest jobs, as messages on a subject of each file."""

from dataclasses import dataclass

from pydantic_core import to_json

from sherlock.message_schemas import PROGRESS_SUBJECT, IngestProgressEvent
from sherlock.rag.domain.errors import MessagingUnavailable
from sherlock.rag.domain.messages import IngestStage, Message, MessageBroker
from sherlock.rag.domain.models import IngestJob


@dataclass(frozen=True, slots=True)
class ProgressMessages:
    """`IngestProgress` over a broker."""

    broker: MessageBroker

    async def report(self, job: IngestJob, stage: IngestStage, chunks: int = 0) -> None:
        if not self.broker.is_connected:
            return
        event: IngestProgressEvent = {
            "file_id": job.file_id,
            "vector_store_id": job.vector_store_id,
            "attempt": job.lease.attempt,
            "stage": stage,
            "chunks": chunks,
        }
        try:
            await self.broker.publish(Message(f"{PROGRESS_SUBJECT}.{job.file_id}", to_json(event)))
        except MessagingUnavailable:
            return
