"""Which entries are kept: an exact number of the largest, with a rule for ties."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import numpy.typing as npt

from leanfed.records import Ints
from leanfed.streams import stream

LARGE = 1 << 20  # entries from which on compiled kernels are worth loading; the result is the same


def largest(magnitudes: npt.NDArray[np.float32], count: int) -> Ints:
    """Positions of the `count` largest magnitudes, increasing; among equals the lower position wins."""
    size = len(magnitudes)
    if count >= size:
        return np.arange(size)
    if count <= 0:
        return np.empty(0, dtype=np.int64)
    if size >= LARGE and find_spec("numba"):
        from leanfed.compression import topk

        return np.asarray(topk.positions(magnitudes.view(np.int32), count))
    threshold = np.partition(magnitudes, size - count)[size - count]
    kept = magnitudes > threshold
    kept[np.flatnonzero(magnitudes == threshold)[: count - np.count_nonzero(kept)]] = True
    return np.flatnonzero(kept)


def load_kernels(size: int) -> None:
    """Load what `largest` needs for so many entries; their compiler takes a second to load, most of it Python's own."""
    if size >= LARGE:
        largest(np.zeros(LARGE, dtype=np.float32), 1)


def drawn(size: int, count: int, rng: np.random.Generator) -> Ints:
    """Positions of `count` entries drawn uniformly without replacement, increasing.

    A smaller count from the same stream is a subset of a larger one.
    """
    return np.sort(rng.permutation(size)[: max(0, count)])


def common(size: int, count: int, seed: int, number: int) -> Ints:
    """The `count` positions, increasing, that all clients of a run send in a round; the server draws the same.

    >>> common(8, 3, seed=0, number=5).tolist() == common(8, 3, seed=0, number=5).tolist()
    True
    """
    return drawn(size, count, stream(seed, "sparsify", number))
