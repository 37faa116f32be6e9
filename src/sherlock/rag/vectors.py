"""Vectors of unit length, so that their dot product is the cosine."""

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sherlock.rag.domain.models import Vector


def unit(values: NDArray[np.floating[Any]]) -> Vector:
    """`values` [dimension] brought to length 1; no direction at all becomes the first axis."""
    wide = values.astype(np.float64)
    length = float(np.linalg.norm(wide))
    if length == 0:
        wide[0] = length = 1.0
    return array("f", (wide / length).astype(np.float32).tobytes())


def mean(windows: Sequence[Vector]) -> Vector:
    """The mean of a text's windows, brought to length 1."""
    if len(windows) == 1:
        return windows[0]
    return unit(
        np.sum([np.frombuffer(window, dtype=np.float32) for window in windows], axis=0, dtype=np.float64)
    )
