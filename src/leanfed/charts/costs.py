"""What a run had spent by each evaluation, and what it cost to reach a target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

# axis -> (column that is summed over rounds, unit it is shown in, label)
AXES: Final[dict[str, tuple[str | None, float, str]]] = {
    "rounds": (None, 1.0, "rounds"),
    "latency_s": ("latency_s", 1.0, "simulated seconds"),
    "energy_j": ("energy_j", 1.0, "joules, all clients"),
    "gigabits": ("upload_bits", 1e9, "uplink gigabits, all clients"),
    "tflops": ("flops", 1e12, "TFLOPs, all clients"),
}


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
