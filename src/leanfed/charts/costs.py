"""The cost of reaching a target accuracy."""

from __future__ import annotations

from collections.abc import Sequence


def first_crossing(spent: Sequence[float], accuracy: Sequence[float], target: float) -> float | None:
    """The cost at which a target is first reached, by linear interpolation between evaluations."""
    before: tuple[float, float] | None = None
    for here, value in zip(spent, accuracy, strict=True):
        if value >= target:
            if before is None:
                return float(here)
            return float(before[0] + (here - before[0]) * (target - before[1]) / (value - before[1]))
        before = (here, value)
    return None
