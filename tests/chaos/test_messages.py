"""A hundred ingest requests in disorder, while the message server is cut off again and again."""

import random
from pathlib import Path

import pytest
from tests.chaos.corpus import corpus
from tests.chaos.disorder import send_in_disorder
from tests.chaos.scene import scene


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_messages_in_disorder(folder: Path, seed: int) -> None:
    dice = random.Random(seed)
    with scene(folder, dice, corpus(dice, large_paragraphs=20), workers=2) as at:
        send_in_disorder(at, files=100, cuts=20)
        at.check()
