"""Named random streams: every draw depends on a seed and on labels that say what it is for."""

from __future__ import annotations

import hashlib

import numpy as np


def stream_seed(seed: int, *labels: str | int) -> int:
    """A 256-bit integer that depends on the seed and on every label, and on nothing else."""
    digest = hashlib.sha256(repr((seed, *labels)).encode()).digest()
    return int.from_bytes(digest, "little")


def stream(seed: int, *labels: str | int) -> np.random.Generator:
    """A generator that depends only on the seed and labels, such as ("batch", round, client).

    >>> bool(stream(0, "batch", 3, 7).integers(100) == stream(0, "batch", 3, 7).integers(100))
    True
    """
    return np.random.default_rng(stream_seed(seed, *labels))
