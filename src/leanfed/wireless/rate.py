"""Eq. (7), the one formula that arrays and compiled scalar code share; the allocator compiles this very function."""

from __future__ import annotations

import math

import numpy as np

LN2 = math.log(2.0)


def capacity(band_hz: float, signal_to_noise: float) -> float:
    """Bit/s of a band with this ratio of signal to noise in it, Eq. (7): b log2(1 + h p / (N0 b)).

    >>> capacity(1e6, 3.0)
    2000000.0
    """
    return band_hz * math.log1p(signal_to_noise) / LN2


# By the C library's logarithm, compiled or not: NumPy's own has other last bits on processors with AVX-512.
capacities = np.vectorize(capacity, otypes=[float])
