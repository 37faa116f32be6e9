"""Users who do not give up: they send, attach and ask again until they are answered."""

import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import openai
from tests.chaos.corpus import Document
from tests.chaos.messages import Messages
from tests.chaos.plant import Plant

T = TypeVar("T")

PATIENCE_S = 1_200.0
"""Longest a user waits for one answer, or for the end of one ingest, while all around is killed."""


@dataclass(slots=True)
class Ingest:
    document: Document
    store_id: str
    file_id: str = ""
    status: str = "in_progress"
    took_s: float = 0.0
    """From attaching, with all that is asked again, to the end."""
    again: bool = False
    """The file was ingested into another store before."""
    messages: int = 0
    """Requests that were sent for it over NATS."""


@dataclass(slots=True)
class Users:
    plant: Plant
    messages: Messages
    documents: Sequence[Document]
    seed: int
    ingests: list[Ingest]
    """Those that have ended are added."""
    doing: Counter[str] = field(default_factory=Counter)
    """What is being asked of the API now."""
    refusals: Counter[str] = field(default_factory=Counter)
    """Answers that made somebody ask again."""
    stopping: threading.Event = field(default_factory=threading.Event)
    _failures: list[BaseException] = field(default_factory=list)
    _threads: list[threading.Thread] = field(default_factory=list)

    # ── one ingest ──────────────────────────────────────────────────────────

    def ingest(self, client: openai.OpenAI, dice: random.Random, ingest: Ingest) -> None:
        """From the bytes, or a file that is there, to the end of the ingest, in one of four ways."""
        if not ingest.file_id:
            large = len(ingest.document.content) > 20_000
            send = self.send_in_parts if large and dice.random() < 0.5 else self.send
            ingest.file_id = send(client, ingest)
        began = time.monotonic()
        match dice.randrange(4):
            case 0:
                ingest.messages = dice.choice((1, 1, 2))
                for _ in range(ingest.messages):
                    self.messages.request(ingest.file_id, ingest.store_id)
            case 1:
                self.insist(
                    "attaching",
                    lambda: client.vector_stores.file_batches.create(
                        ingest.store_id, file_ids=[ingest.file_id]
                    ),
                )
            case _:
                self.attach(client, ingest)
        ingest.status = self.wait(client, ingest)
        ingest.took_s = time.monotonic() - began

    def send(self, client: openai.OpenAI, ingest: Ingest) -> str:
        file = (ingest.document.name, ingest.document.content)
        return self.insist("uploading", lambda: client.files.create(file=file, purpose="assistants")).id

    def send_in_parts(self, client: openai.OpenAI, ingest: Ingest) -> str:
        content = ingest.document.content
        upload = self.insist(
            "uploading",
            lambda: client.uploads.create(
                bytes=len(content),
                filename=ingest.document.name,
                mime_type="text/plain",
                purpose="assistants",
            ),
        )
        middle = len(content) // 2
        parts = [
            self.insist("uploading", lambda data=data: client.uploads.parts.create(upload.id, data=data)).id  # type: ignore[misc]
            for data in (content[:middle], content[middle:])
        ]
        completed = self.insist("uploading", lambda: client.uploads.complete(upload.id, part_ids=parts))
        assert completed.file is not None
        return completed.file.id

    def attach(self, client: openai.OpenAI, ingest: Ingest) -> None:
        self.insist(
            "attaching",
            lambda: client.vector_stores.files.create(ingest.store_id, file_id=ingest.file_id),
        )

    def wait(self, client: openai.OpenAI, ingest: Ingest) -> str:
        """The status in which the ingest ended."""

        def ask() -> str:
            try:
                return client.vector_stores.files.retrieve(
                    ingest.file_id, vector_store_id=ingest.store_id
                ).status
            except openai.NotFoundError:
                if not ingest.messages:
                    raise
                return "in_progress"  # the message was not taken yet

        deadline = time.monotonic() + PATIENCE_S
        while (status := self.insist("asking", ask)) == "in_progress":
            assert time.monotonic() < deadline, f"{ingest.document.name} is stuck"
            time.sleep(0.1)
        return status

    def insist(self, what: str, ask: Callable[[], T]) -> T:
        """Ask until there is an answer; an error that says more than "not now" is raised."""
        deadline = time.monotonic() + PATIENCE_S
        self.doing[what] += 1
        try:
            while True:
                try:
                    return ask()
                except openai.APIConnectionError as error:
                    self.refusals["no answer"] += 1
                    last: Exception = error
                except openai.APIStatusError as error:
                    if error.status_code not in (429, 503):
                        raise
                    self.refusals[str(error.status_code)] += 1
                    last = error
                assert time.monotonic() < deadline, f"{what} is never answered: {last}"
                time.sleep(0.1)
        finally:
            self.doing[what] -= 1

    # ── many ────────────────────────────────────────────────────────────────

    @contextmanager
    def at_work(self, count: int, stores: Sequence[str], *, side_by_side: int) -> Iterator[None]:
        """`count` ingests, so many at once, under way while the block runs and over when it has ended."""
        numbers = itertools.count()

        def work(number: int) -> None:
            dice = random.Random(f"{self.seed} {number}")
            client = self.plant.deployment.client().with_options(timeout=20)
            try:
                ingest = self._next(dice, stores)
                while next(numbers) < count and not self.stopping.is_set():
                    self.ingest(client, dice, ingest)
                    self.ingests.append(ingest)
                    ingest = self._next(dice, stores, ingest)
            except BaseException as error:
                self._failures.append(error)
                self.stopping.set()
            finally:
                client.close()

        self._threads = [threading.Thread(target=work, args=[number]) for number in range(side_by_side)]
        for thread in self._threads:
            thread.start()
        try:
            yield
        except BaseException:
            self.stopping.set()
            raise
        finally:
            for thread in self._threads:
                thread.join()
        if self._failures:
            raise self._failures[0]

    def _next(self, dice: random.Random, stores: Sequence[str], last: Ingest | None = None) -> Ingest:
        """A document, or once in a while the last one's file in another store, which copies it."""
        others = [store for store in stores if last is not None and store != last.store_id]
        if last is not None and others and not last.again and dice.random() < 0.3:
            return Ingest(last.document, dice.choice(others), last.file_id, again=True)
        return Ingest(dice.choice(self.documents), dice.choice(stores))

    @property
    def are_busy(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)
