"""A little of all chaos, in one plant and in less than a minute; the long forms stand in the other files.

pytest tests/chaos                 this
pytest tests/chaos -m slow -s      the long forms, with their figures: more than half an hour
"""

import random
from pathlib import Path

import pytest
from tests.chaos.corpus import corpus
from tests.chaos.disorder import send_in_disorder
from tests.chaos.kills import kill_at_random
from tests.chaos.outages import interrupt
from tests.chaos.scene import scene

OUTAGES_IN_SHORT = (
    "database cut", "file store cut", "messages cut", "file store full", "database restarted",
)  # fmt: skip


@pytest.mark.timeout(300)
def test_a_little_of_everything(folder: Path, seed: int) -> None:
    dice = random.Random(seed)
    with scene(folder, dice, corpus(dice, large_paragraphs=30), workers=2) as at:
        send_in_disorder(at, files=3, cuts=1)
        for outage in OUTAGES_IN_SHORT:
            interrupt(at, outage, 0.5, ingests=2)
        kill_at_random(at, kills=4, ingests=8)
        at.check(hurry=True)
