"""Runs side by side: final accuracy and worst decile, the cost of reaching a target, and curves over every cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from leanfed.charts.costs import AXES, first_crossing
from leanfed.charts.curves import Curve, Panel, draw_panels
from leanfed.errors import StorageError
from leanfed.results import RunFolder

DRAWN = ("latency_s", "energy_j", "gigabits", "rounds")


@dataclass(frozen=True)
class ComparedRun:
    """One run's evaluated rounds: what had been spent by then, and how good it was."""

    name: str
    algorithm: str
    spent: dict[str, list[float]]  # axis -> cumulative cost at each evaluation
    accuracy: list[float]
    loss: list[float]
    worst_decile: list[float]
    majority_guess: float
    f1: list[float] = field(default_factory=list)  # pooled over clients; empty where there are more than two classes

    def cost_of(self, target: float) -> dict[str, float] | None:
        """ToA@target: every cost at the first crossing of a target accuracy; nothing if it is not reached."""
        reached = {axis: first_crossing(spent, self.accuracy, target) for axis, spent in self.spent.items()}
        return {axis: cost for axis, cost in reached.items() if cost is not None} or None

    def row(self, targets: Sequence[float]) -> dict[str, object]:
        """The run as plain values."""
        return {
            "name": self.name,
            "algorithm": self.algorithm,
            "rounds": self.spent["rounds"][-1],
            "accuracy": self.accuracy[-1],
            "best_accuracy": max(self.accuracy),
            "worst_decile": self.worst_decile[-1],
            "majority_guess": self.majority_guess,
            **({"f1": self.f1[-1]} if self.f1 else {}),
            "time_to_accuracy": {f"{target:g}": self.cost_of(target) for target in targets},
        }


def read_run(folder: RunFolder) -> ComparedRun:
    """The evaluated rounds of one folder, finished or not."""
    settings = folder.read_settings()
    found = compared(settings["name"], settings["algorithm"]["name"], folder.read_table("rounds"))
    if not found.accuracy:
        raise StorageError(f"{folder.path} has no evaluated round yet. Let it run on, or lower evaluation.every.")
    return found


def compared(name: str, algorithm: str, rounds: pl.DataFrame) -> ComparedRun:
    """The evaluated rounds of a table of rounds."""
    summed = [
        (pl.col("round") + 1 if column is None else pl.col(column).cum_sum() / unit).alias(f"spent {axis}")
        for axis, (column, unit, _) in AXES.items()
    ]
    tested = rounds.with_columns(summed).filter(pl.col("accuracy").is_not_null())
    return ComparedRun(
        name=name,
        algorithm=algorithm,
        spent={axis: tested[f"spent {axis}"].to_list() for axis in AXES},
        accuracy=tested["accuracy"].to_list(),
        loss=tested["loss"].to_list(),
        worst_decile=tested["worst_decile"].to_list(),
        majority_guess=rounds["majority_guess"][0],
        f1=tested["f1"].drop_nulls().to_list() if "f1" in tested.columns else [],
    )


def draw_comparison(runs: Sequence[ComparedRun], path: Path, axes: Sequence[str] = DRAWN, *, loss: bool = True) -> None:
    """Accuracy (and loss) against every cost; the floor is drawn where all runs share it."""
    floors = {round(run.majority_guess, 6) for run in runs}
    floor = floors.pop() if len(floors) == 1 else None
    panels = [
        Panel([Curve(run.name, run.spent[axis], run.accuracy) for run in runs], AXES[axis][2], "test accuracy", floor)
        for axis in axes
    ]
    if loss:
        panels += [
            Panel([Curve(run.name, run.spent[axis], run.loss) for run in runs], AXES[axis][2], "test loss")
            for axis in axes
        ]
    if all(run.f1 for run in runs):
        panels += [
            Panel([Curve(run.name, run.spent[axis], run.f1) for run in runs], AXES[axis][2], "pooled F1")
            for axis in axes
        ]
    draw_panels(path, panels, title="The clients' own models on their own test sets", columns=len(axes))
