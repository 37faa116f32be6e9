"""A plant for each test that breaks it, and the seed of its chaos.

`CHAOS_SEED` repeats a run whose seed was printed; the short forms have a fixed one, the long ones a new
one each.
"""

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.conftest import open_folder

FIXED_SEED = 20_310_304


@pytest.fixture
def folder() -> Iterator[Path]:
    with open_folder() as path:
        yield path


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    usual = (
        random.SystemRandom().randrange(1 << 32) if request.node.get_closest_marker("slow") else FIXED_SEED
    )
    chosen = int(os.environ.get("CHAOS_SEED", usual))
    print(f"\nCHAOS_SEED={chosen}")
    return chosen
