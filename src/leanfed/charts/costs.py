"""What it cost to reach a target, for good and for the first time, and where runs stand at equal cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

TOLERANCE: Final = 0.005  # by which a later evaluation may fall below a target that counts as reached for good


def sustained_crossing(
    spent: Sequence[float], accuracy: Sequence[float], target: float, *, tolerance: float = TOLERANCE
) -> float | None:
    """The cost at which a target is reached for good: the figure of merit.

    It is that of the first evaluation which meets the target and after which none falls more than the tolerance below
    it, brought forward to the crossing by linear interpolation, as the first crossing is. (The evaluation before it is
    below the target: else that one would be the first.) A curve that only rises has one crossing, which is both.

    >>> sustained_crossing([1, 2, 3, 4], [0.7, 0.9, 0.7, 0.9], 0.8)
    3.5
    """
    low = [place for place, value in enumerate(accuracy) if value < target - tolerance]
    begin = low[-1] + 1 if low else 0
    met = [place for place in range(begin, len(accuracy)) if accuracy[place] >= target]
    return _interpolated(spent, accuracy, target, met[0]) if met else None


def first_crossing(spent: Sequence[float], accuracy: Sequence[float], target: float) -> float | None:
    """The cost at which a target is first reached, as the paper has it, by linear interpolation between evaluations."""
    met = [place for place, value in enumerate(accuracy) if value >= target]
    return _interpolated(spent, accuracy, target, met[0]) if met else None


def _interpolated(spent: Sequence[float], accuracy: Sequence[float], target: float, place: int) -> float:
    """The cost of a target between the evaluation at a place, which meets it, and the one before, which does not."""
    if place == 0:
        return float(spent[0])
    before, here, low, high = spent[place - 1], spent[place], accuracy[place - 1], accuracy[place]
    return float(before + (here - before) * (target - low) / (high - low))


def reached(
    spent: Sequence[float], values: Sequence[float], target: float, *, rising: bool = True, first: bool = False
) -> float | None:
    """The cost at which a score reaches a target, for good or for the first time; one that falls, from above.

    What a falling score may later exceed its target by is the tolerance as a share of the target.
    """
    if not rising:
        values, tolerance, target = [-value for value in values], TOLERANCE * abs(target), -target
        return (
            first_crossing(spent, values, target)
            if first
            else sustained_crossing(spent, values, target, tolerance=tolerance)
        )
    return first_crossing(spent, values, target) if first else sustained_crossing(spent, values, target)


def score_at(spent: Sequence[float], values: Sequence[float], cost: float) -> float | None:
    """A curve's value at a cost, by linear interpolation; nothing before its first evaluation or after its last.

    >>> score_at([10, 20], [0.5, 0.75], 12)
    0.55
    """
    if not spent or not spent[0] <= cost <= spent[-1]:
        return None
    place = next(place for place, here in enumerate(spent) if here >= cost)
    if spent[place] == cost:
        return float(values[place])
    before, here = spent[place - 1], spent[place]
    return float(values[place - 1] + (values[place] - values[place - 1]) * (cost - before) / (here - before))
