"""How the queue stands, for whoever asks every few seconds."""

import asyncio

from tests.fakes import InMemoryIngestQueue, MemoryState

from sherlock.rag.application.activity import Activity
from sherlock.rag.domain.errors import DatabaseUnavailable
from sherlock.rag.domain.models import QueueActivity


class Queue(InMemoryIngestQueue):
    """Counts how often it is asked; may be down."""

    def __init__(self) -> None:
        super().__init__(MemoryState())
        self.asked = 0
        self.down = False

    async def activity(self) -> QueueActivity:
        self.asked += 1
        await asyncio.sleep(0)
        if self.down:
            raise DatabaseUnavailable("It is down.")
        return await super().activity()


async def test_many_who_ask_at_once_ask_the_database_once() -> None:
    queue = Queue()
    activity = Activity(queue)
    found = await asyncio.gather(*(activity() for _ in range(20)))
    assert found == [QueueActivity(waiting=0, running=0, oldest_age_s=0)] * 20
    assert queue.asked == 1


async def test_an_outage_is_no_answer_and_passes() -> None:
    queue = Queue()
    activity = Activity(queue, good_for_s=0)
    queue.down = True
    assert await activity() is None
    queue.down = False
    assert await activity() == QueueActivity(waiting=0, running=0, oldest_age_s=0)
