"""Records that cross rooms: frozen, typed, checked once when they are made."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Section(BaseModel):
    """A frozen table of settings; unknown keys, NaN and infinity are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


@dataclass(frozen=True)
class RoundPlan:
    """Who takes part in a round, and how much each keeps of its gradient (k) and of its head (r)."""

    round: int
    participants: tuple[int, ...]  # client numbers, increasing
    k: Floats  # (participants,) keep rate of the base gradient
    r: Floats  # (participants,) keep rate of the head


def kept_count(rate: float, size: int) -> int:
    """How many of `size` entries a keep rate leaves: rate x size rounded down, so that no deadline is overrun."""
    # 1e-9 forgives the rounding of products such as 0.07 x 100 = 7.000000000000001.
    return min(size, int(rate * size + 1e-9))
