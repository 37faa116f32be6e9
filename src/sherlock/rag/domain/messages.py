"""Messages: what passes through a broker, and what the core needs of one.

A message is at most once until something durable holds it: a stream before it was taken, a row of
`IngestRequests` after. Both may bring the same thing twice, so whatever they wake can run twice.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from sherlock.rag.domain.models import ComponentStatus, IngestJob, WorkspaceId


@dataclass(frozen=True, slots=True)
class Message:
    subject: str
    data: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    reply_to: str | None = None
    """The subject on which the sender waits for an answer."""

    @property
    def size(self) -> int:
        """Bytes, as a broker counts: data and headers, a generous guess at the framing included."""
        framing = 4
        headers = sum(len(n.encode()) + len(v.encode()) + framing for n, v in self.headers.items())
        return len(self.data) + headers + 4 * framing


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message out of a durable stream, delivered until it is settled."""

    message: Message
    id: str
    """The same at every delivery of the message, and of no other one."""
    attempt: int
    """Counted from 1."""


@dataclass(frozen=True, slots=True)
class Parked:
    """Why a message can never be done, as a plain sentence."""

    reason: str


Receive = Callable[[Message], None]
Settle = Callable[[Delivery], Awaitable[Parked | None]]
"""Done when it returns; `Parked` puts the message aside. On an error it is delivered again, later."""


class MessageBroker(Protocol):
    """A connection that is made, and made again when it is lost, for as long as it is open.

    Subscriptions are stated once and hold over every reconnection.
    """

    @property
    def is_connected(self) -> bool: ...

    @property
    def max_size(self) -> int:
        """The largest `Message.size` that can be published."""

    def start(self) -> None:
        """Begin to connect, in the background. Until then nothing is sent or received."""

    def subscribe(self, subject: str, group: str, receive: Receive) -> None:
        """Hand each message to one member of the group. `receive` returns at once."""

    def consume(self, stream: str, subject: str, consumer: str, settle: Settle) -> None:
        """Settle what the durable `stream` holds of `subject`, some side by side; both are made if missing.

        What was published while nobody consumed comes first. Parked messages go to the stream's parking
        place, with the reason.
        """

    async def publish(self, message: Message) -> None:
        """Hand over to be sent; while disconnected it is kept for a while. Raises `MessagingUnavailable`."""

    async def flush(self) -> None:
        """Return when the server has all that was published. Raises `MessagingUnavailable`."""

    async def connected(self) -> None:
        """Return as soon as there is a connection."""

    async def stop_receiving(self) -> None:
        """Leave every group and stream; publishing goes on."""

    async def status(self) -> ComponentStatus: ...


# ── ingest ──────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class IngestRequest:
    """A request for ingest that came as a message, and where its result is to go."""

    workspace_id: WorkspaceId
    message_id: str
    """`Delivery.id`: what tells that a message has come again."""
    request_id: str
    vector_store_id: str
    file_id: str
    reply_to: str | None = None
    traceparent: str | None = None
    """The span that queued the job, as W3C Trace Context writes it."""


class IngestRequests(Protocol):
    """Requests whose result has not been sent yet, and for a day those whose has: durable, shared by all."""

    async def add(self, request: IngestRequest) -> None:
        """Remember it; one with the same `message_id` is there already and stays as it is."""

    async def known(self, workspace_id: WorkspaceId, message_id: str) -> bool:
        """Whether that message was remembered before."""

    async def claim_ended(self, limit: int, lease_s: float) -> list[IngestRequest]:
        """The oldest requests whose file is no longer being ingested, for this caller alone for `lease_s`.

        Also when the file, its membership or its store has gone meanwhile.
        """

    async def settle(self, requests: Sequence[IngestRequest]) -> None:
        """Their results were sent."""

    async def forget_settled(self, limit: int) -> int:
        """Remove up to `limit` requests whose results were sent a day ago; returns how many."""

    async def wait_for_ended(self, timeout_s: float) -> None:
        """Return when an ingest that was requested ended, or after `timeout_s`; it may return for nothing."""


IngestStage = Literal["fetch", "embed", "publish", "completed", "failed", "postponed"]


class IngestProgress(Protocol):
    async def report(self, job: IngestJob, stage: IngestStage, chunks: int = 0) -> None:
        """Tell whoever listens that the job has come to `stage` with so many chunks done.

        Never raises and never waits for the network: progress that nobody can be told is dropped.
        """


class Silent:
    """Progress that nobody hears of."""

    async def report(self, job: IngestJob, stage: IngestStage, chunks: int = 0) -> None:
        pass
