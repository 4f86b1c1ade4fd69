"""How much of a vector its largest entries hold, at a few keep rates, in one pass and without sorting."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
from torch import Tensor

from leanfed.quantities import KEPT
from leanfed.records import Floats

RATES: Final = tuple(KEPT.values())
SAMPLE: Final = 8192  # entries that are enough: a mean over clients needs no more
HALF_OCTAVE: Final = 22  # bits of a float32 below its exponent and the first bit of its mantissa


def kept_shares(rows: Tensor, size: int) -> Floats:
    """(C, 5): the share of each row's squared norm, over its first `size` entries, in its largest ones at `RATES`.

    Magnitudes are counted in steps of about sqrt(2). Between two steps the share is taken as linear in the number of
    entries, which is never above the true one. Of long rows every n-th entry is looked at. A row of zeros has nothing
    to lose: its shares are 1.
    """
    stride = max(1, size // SAMPLE)
    return np.stack([_of_row(row) for row in rows.detach()[:, :size:stride].cpu().numpy()])


def _of_row(row: npt.NDArray[np.float32]) -> Floats:
    magnitudes = np.abs(row)  # contiguous, so that its bits can be read
    steps = magnitudes.view(np.int32) >> HALF_OCTAVE
    counts = np.bincount(steps)[::-1].cumsum()
    energy = np.bincount(steps, weights=np.square(magnitudes, dtype=np.float64))[::-1].cumsum()
    if not energy[-1] > 0.0:
        return np.ones(len(RATES))
    wanted = np.multiply(RATES, len(row))
    return np.asarray(np.interp(wanted, np.r_[0.0, counts], np.r_[0.0, energy]) / energy[-1])
