"""Decibels to SI and back, once, at the edge: everything past this file is watts, hertz, metres and plain ratios."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


def db_to_ratio(decibels: ArrayLike) -> Array:
    """A power ratio from decibels: 10^(x / 10).

    >>> float(db_to_ratio(20.0))
    100.0
    """
    return np.asarray(np.power(10.0, np.asarray(decibels, dtype=float) / 10.0))


def ratio_to_db(ratio: ArrayLike) -> Array:
    """Decibels from a positive power ratio: 10 log10(x)."""
    return np.asarray(10.0 * np.log10(np.asarray(ratio, dtype=float)))


def dbm_to_w(dbm: ArrayLike) -> Array:
    """Watts from decibels above a milliwatt (or W/Hz from dBm/Hz): 10^((x - 30) / 10).

    >>> float(dbm_to_w(30.0))
    1.0
    """
    return db_to_ratio(np.asarray(dbm, dtype=float) - 30.0)


def w_to_dbm(watts: ArrayLike) -> Array:
    """Decibels above a milliwatt from positive watts (or dBm/Hz from W/Hz): 10 log10(x) + 30."""
    return np.asarray(ratio_to_db(watts) + 30.0)
