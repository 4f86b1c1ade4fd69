"""Eq. (7), the one formula that arrays and compiled scalar code share; the allocator compiles this very function."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

LN2 = math.log(2.0)


def capacity(band_hz: Any, signal_to_noise: Any) -> Any:
    """Bit/s of a band with this ratio of signal to noise in it, Eq. (7): b log2(1 + h p / (N0 b)); scalars or arrays.

    >>> float(capacity(1e6, 3.0))
    2000000.0
    """
    return band_hz * np.log1p(signal_to_noise) / LN2
