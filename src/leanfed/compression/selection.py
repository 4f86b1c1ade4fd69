"""Which entries stay: an exact number of the largest, with one rule for ties."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from leanfed.records import Ints


def largest(magnitudes: npt.NDArray[np.float32], count: int) -> Ints:
    """Positions of the `count` largest magnitudes, increasing; among equals the lower position wins."""
    size = len(magnitudes)
    if count >= size:
        return np.arange(size)
    if count <= 0:
        return np.empty(0, dtype=np.int64)
    threshold = np.partition(magnitudes, size - count)[size - count]
    above = np.flatnonzero(magnitudes > threshold)
    ties = np.flatnonzero(magnitudes == threshold)[: count - len(above)]
    return np.sort(np.concatenate([above, ties]))


def drawn(size: int, count: int, rng: np.random.Generator) -> Ints:
    """Positions of `count` entries drawn uniformly without replacement, increasing.

    A smaller count from the same stream is a subset of a larger one.
    """
    return np.sort(rng.permutation(size)[: max(0, count)])
