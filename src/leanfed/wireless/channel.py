"""The channel between a device and the base station: where it stands, what the air takes, what fades."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from leanfed.wireless.units import Array, db_to_ratio

METRES_PER_KILOMETRE = 1000.0


def distances_in_disc(rng: np.random.Generator, count: int, *, radius_m: float, nearest_m: float) -> Array:
    """Distances to the centre of points uniform in a disc without its core.

    The core keeps the gain bounded: the path loss is an urban fit that turns into an amplifier below 0.4 m.
    """
    # The squared distance of a uniform point is uniform.
    return np.sqrt(rng.uniform(nearest_m**2, radius_m**2, count))


def path_loss_db(distance_m: ArrayLike, *, at_1km_db: float = 128.1, per_decade_db: float = 37.6) -> Array:
    """Path loss of the paper's parameter table: 128.1 + 37.6 log10(distance in km), in dB.

    >>> float(path_loss_db(1000.0))
    128.1
    """
    distance_km = np.asarray(distance_m, dtype=float) / METRES_PER_KILOMETRE
    return np.asarray(at_1km_db + per_decade_db * np.log10(distance_km))


def path_gain(distance_m: ArrayLike, *, at_1km_db: float = 128.1, per_decade_db: float = 37.6) -> Array:
    """Power gain that the path loss leaves, a ratio."""
    return db_to_ratio(-path_loss_db(distance_m, at_1km_db=at_1km_db, per_decade_db=per_decade_db))


def rayleigh_fading(rng: np.random.Generator, count: int) -> Array:
    """Power gains of Rayleigh fading: exponential with mean one."""
    return rng.exponential(1.0, count)


def log_normal_shadowing(rng: np.random.Generator, count: int, *, deviation_db: float) -> Array:
    """Power gains of shadowing: normal in decibels around zero (median one)."""
    return db_to_ratio(rng.normal(0.0, deviation_db, count))
