"""What a node measures of itself: a short calibration, and energy and battery where the platform reports them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import torch

CALIBRATION_SIZE = 192  # rows and columns of the matrices
CALIBRATION_S = 0.02
POWERCAP = Path("/sys/class/powercap")
POWER_SUPPLY = Path("/sys/class/power_supply")


def calibrate(seconds: float = CALIBRATION_S) -> float:
    """FLOP/s of products of small matrices on the threads that training uses: the best of what fits into `seconds`."""
    left, right = torch.ones(CALIBRATION_SIZE, CALIBRATION_SIZE), torch.ones(CALIBRATION_SIZE, CALIBRATION_SIZE)
    end, best = time.perf_counter() + seconds, float("inf")
    while True:
        began = time.perf_counter()
        torch.mm(left, right)
        now = time.perf_counter()
        best = min(best, now - began)
        if now >= end:
            return 2.0 * CALIBRATION_SIZE**3 / best


@dataclass(frozen=True)
class EnergyMeter:
    """Joules since an earlier reading, from the counters of the processor packages; nothing where there are none."""

    before: dict[Path, int]  # package -> microjoules

    @classmethod
    def start(cls, root: Path = POWERCAP) -> EnergyMeter:
        """Read the counters now."""
        packages = [path for path in sorted(root.glob("*:[0-9]*")) if path.name.count(":") == 1]
        found = {path: _integer(path / "energy_uj") for path in packages}
        return cls({path: value for path, value in found.items() if value is not None})

    def joules(self) -> float | None:
        """Joules since the start; a counter that wrapped around is corrected by its range."""
        spent = 0
        for path, before in self.before.items():
            after = _integer(path / "energy_uj")
            if after is None:
                return None
            range_uj = _integer(path / "max_energy_range_uj") or 0
            spent += after - before + (range_uj if after < before else 0)
        return spent * 1e-6 if self.before else None


def battery(root: Path = POWER_SUPPLY) -> float | None:
    """Charge as a share of full, of the first battery there is."""
    for path in sorted(root.glob("*/capacity")):
        percent = _integer(path)
        if percent is not None and 0 <= percent <= 100:
            return percent / 100.0
    return None


def _integer(path: Path) -> int | None:
    """A number in a file of the kernel's; nothing where it cannot be read."""
    try:
        return int(path.read_text().strip())
    except (OSError, ValueError):
        return None
