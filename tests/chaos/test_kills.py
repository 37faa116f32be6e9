"""Hundreds of kills over hundreds of ingests: none is lost, doubled, stuck or orphaned."""

import random
from pathlib import Path

import pytest
from tests.chaos.corpus import corpus
from tests.chaos.kills import kill_at_random
from tests.chaos.scene import scene


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_two_hundred_kills(folder: Path, seed: int) -> None:
    dice = random.Random(seed)
    with scene(folder, dice, corpus(dice, large_paragraphs=100), workers=3) as at:
        kill_at_random(at, kills=210, ingests=210)
        at.check()
