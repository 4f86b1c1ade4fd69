"""How good and how quick dry runs are: seconds of a round as estimated, over those of rounds that are played.

    python benchmarks/dry_runs.py [--wall] [NAME ...]

Without `--wall`, CPU seconds of one worker: the wall clock of a busy machine measures its other programs. With it, on a
quiet machine, seconds of the clock with a worker for each core, which is what a user waits for. Each setting is cut to
so few clients that its rounds can be played here; estimate and truth are of the same settings.
"""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from typing import Any

from torch import nn

import leanfed
from leanfed.runs.estimate import estimate
from leanfed.runs.packaged import settings_file
from leanfed.runs.settings import Settings
from leanfed.runs.trial import Clock

ROUNDS = 5  # of which the first only warms up
MANY = 10_000  # rounds of an estimate: its seconds are rounded to tenths
FEW: dict[str, Any] = {"participation.fraction": 0.04, "evaluation.every": 1}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "mnist": ("mnist_alpha01", {"evaluation.every": 1}),
    "cifar10": ("cifar10_alpha01", {**FEW, "evaluation.every": MANY}),
    "svhn": ("joint_svhn", {**FEW, "evaluation.every": MANY}),
    "mrpc": ("joint_mrpc", {**FEW, "evaluation.every": MANY}),
    "own": ("mnist_alpha01", {"task.model": "own-mlp", "evaluation.every": 1}),
}


def main(names: list[str], *, wall: bool) -> None:
    """One line a setting: the ratio, and what the dry run itself took."""
    leanfed.add_model("own-mlp", _mlp, split="1")
    clock, workers = (time.perf_counter, {}) if wall else (time.process_time, {"run.threads": 1})
    print("setting   estimated  played   ratio   dry run: s")
    for name in names or list(CASES):
        packaged, changes = CASES[name]
        overrides = [f"{key}={value}" for key, value in {**changes, **workers, "rounds": MANY}.items()]
        settings = Settings.from_toml(settings_file(packaged), overrides)
        began = clock()
        told = estimate(settings, clock=clock)["estimated_seconds"] / MANY
        dry = clock() - began
        played = _played(settings, clock)
        print(f"{name:9} {told:9.3f} {played:7.3f} {told / played:7.2f} {dry:10.1f}", flush=True)


def _mlp(classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, classes))


class _Enough(Exception):
    """Ends a run from its listener."""


def _played(settings: Settings, clock: Clock) -> float:
    """Seconds of a round after the first."""
    ends: list[float] = []

    def listen(record: object) -> None:
        ends.append(clock())
        if len(ends) == ROUNDS:
            raise _Enough

    with suppress(_Enough):
        leanfed.run(settings, listen=listen)
    return (ends[-1] - ends[0]) / (ROUNDS - 1)


if __name__ == "__main__":
    asked = sys.argv[1:]
    main([name for name in asked if name != "--wall"], wall="--wall" in asked)
