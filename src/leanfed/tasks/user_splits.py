"""Which samples of a user's own data are for testing, where nobody says."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

EVERY: Final = 5  # without a test set, every fifth sample of each group is for testing


def every_fifth(groups: npt.NDArray[Any], *, at_least_one: bool = False) -> npt.NDArray[np.bool_]:
    """Mask of every fifth sample of each group, in the given order; of a small group its last, where one is needed.

    >>> every_fifth(np.array([0, 0, 0, 0, 0, 1, 1]), at_least_one=True).astype(int).tolist()
    [0, 0, 0, 0, 1, 0, 1]
    """
    held = np.zeros(len(groups), dtype=bool)
    order = np.argsort(groups, kind="stable")
    edges = np.flatnonzero(groups[order][1:] != groups[order][:-1]) + 1
    for rows in np.split(order, edges):
        chosen = rows[EVERY - 1 :: EVERY]
        held[chosen if len(chosen) or not at_least_one else rows[-1:]] = True
    return held
