"""How the queue stands, for whoever asks every few seconds."""

import asyncio

import pytest
from tests.fakes import InMemoryIngestQueue, MemoryState

from sherlock.rag.application.activity import Activity
from sherlock.rag.domain.errors import DatabaseUnavailable
from sherlock.rag.domain.models import QueueActivity


class Queue(InMemoryIngestQueue):
    """Counts how often it is asked; may be down."""

    def __init__(self) -> None:
        super().__init__(MemoryState())
        self.asked = 0
        self.error: Exception | None = None

    async def activity(self) -> QueueActivity:
        self.asked += 1
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        return await super().activity()


async def test_many_who_ask_at_once_ask_the_database_once() -> None:
    queue = Queue()
    activity = Activity(queue)
    found = await asyncio.gather(*(activity() for _ in range(20)))
    assert found == [QueueActivity(waiting=0, running=0, oldest_age_s=0)] * 20
    assert queue.asked == 1


@pytest.mark.parametrize("error", [DatabaseUnavailable("It is down."), LookupError("no such column")])
async def test_trouble_is_no_answer_and_passes(error: Exception) -> None:
    queue = Queue()
    activity = Activity(queue, good_for_s=0)
    queue.error = error
    assert await activity() is None
    queue.error = None
    assert await activity() == QueueActivity(waiting=0, running=0, oldest_age_s=0)
