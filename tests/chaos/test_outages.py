"""What each dependency's outage leaves: nothing, but for a delay; and what is answered meanwhile."""

import random
import time
from pathlib import Path

import openai
import pytest
from tests.chaos.corpus import corpus
from tests.chaos.outages import OUTAGES, interrupt
from tests.chaos.plant import LEASE_S, plant
from tests.chaos.scene import scene
from tests.chaos.stages import jobs_under_way

pytestmark = pytest.mark.slow

FROZEN_FOR_AT_MOST_S = 60.0
LASTING_S = (0.5, LEASE_S * 2, 15.0)
"""Shorter than a lease, longer, and longer than anybody's patience with a connection."""


@pytest.mark.timeout(3600)
def test_outages(folder: Path, seed: int) -> None:
    dice = random.Random(seed)
    with scene(folder, dice, corpus(dice, large_paragraphs=60), workers=2) as at:
        for name in OUTAGES:
            for seconds in LASTING_S:
                interrupt(at, name, seconds, ingests=12)
        at.check()


@pytest.mark.timeout(600)
def test_what_is_asked_in_an_outage_is_refused_in_time(folder: Path) -> None:
    """503 and a sentence, not an empty answer, not a hang; and the process goes on serving."""
    with plant(folder, workers=1) as running:
        client = running.deployment.client().with_options(timeout=60)
        store = client.vector_stores.create()
        file = client.files.create(file=("a.txt", b"The valve opens at 4.2 bar."), purpose="assistants")
        client.vector_stores.files.create_and_poll(file.id, vector_store_id=store.id, poll_interval_ms=50)
        asked = {
            "postgres": [
                lambda: client.files.retrieve(file.id),
                lambda: client.vector_stores.search(store.id, query="valve"),
                lambda: client.vector_stores.files.create(store.id, file_id=file.id),
                lambda: client.files.create(file=("b.txt", b"b"), purpose="assistants"),
            ],
            "s3": [
                lambda: client.files.content(file.id).content,
                lambda: client.files.create(file=("b.txt", b"b"), purpose="assistants"),
            ],
        }
        for name, questions in asked.items():
            running.networks[name].cut()
            for ask in questions:
                began = time.monotonic()
                with pytest.raises(openai.APIStatusError) as refused:
                    ask()
                took = time.monotonic() - began
                assert refused.value.status_code == 503
                assert took < 15
                print(f"{name} cut: refused after {took:.1f} s")
            running.networks[name].restore()
            for ask in questions:
                ask()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("stage", ["staging", "publishing"])
def test_a_frozen_worker_holds_nothing_for_ever(folder: Path, seed: int, stage: str) -> None:
    """A worker that is frozen inside a transaction holds locks; the database gives them to others in time."""
    dice = random.Random(seed)
    large = [max(corpus(dice, large_paragraphs=300), key=lambda document: len(document.content))]
    with scene(folder, dice, large, workers=2) as at:
        users = at.users()
        with users.at_work(1, [at.new_store()], side_by_side=1):
            held_by = None
            while held_by is None:
                jobs = jobs_under_way(at.plant.database)
                held_by = next((job.worker_pid for job in jobs if job.stage == stage), None)
            number = [worker.popen.pid for worker in at.plant.workers].index(held_by)
            at.plant.freeze(number)
            began = time.monotonic()
            while users.are_busy and time.monotonic() < began + FROZEN_FOR_AT_MOST_S:
                time.sleep(0.1)
            took, ended = time.monotonic() - began, not users.are_busy
            at.plant.thaw(number)
        print(
            f"frozen while {stage}: the other worker had done it after {took:.1f} s; asked again after "
            f"{dict(users.refusals)}"
        )
        assert ended, "the file waits for a worker that is frozen"
        time.sleep(LEASE_S)  # what the thawed one still tries must change nothing
        at.check()
