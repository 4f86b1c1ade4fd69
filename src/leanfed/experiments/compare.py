"""Runs side by side: a table with the worst decile, and accuracy against rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from leanfed.charts.curves import Curve, draw_curves
from leanfed.errors import StorageError
from leanfed.results import RunFolder


@dataclass(frozen=True)
class ComparedRun:
    """One row of the comparison."""

    name: str
    algorithm: str
    rounds: int
    accuracy: float
    best_accuracy: float
    worst_decile: float
    majority_guess: float
    rounds_to: dict[str, float | None]  # target accuracy -> rounds, by linear interpolation; None if never reached
    curve: Curve


def rounds_to_accuracy(rounds: Sequence[float], accuracy: Sequence[float], target: float) -> float | None:
    """The first crossing of a target accuracy, by linear interpolation between evaluations."""
    before: tuple[float, float] | None = None
    for here, value in zip(rounds, accuracy, strict=True):
        if value >= target:
            if before is None or value == before[1]:
                return float(here)
            return float(before[0] + (here - before[0]) * (target - before[1]) / (value - before[1]))
        before = (here, value)
    return None


def read_run(folder: RunFolder, targets: Sequence[float]) -> ComparedRun:
    """The evaluated rounds of one folder, finished or not."""
    settings = folder.read_settings()
    tested = folder.read_table("rounds").filter(pl.col("accuracy").is_not_null())
    if tested.is_empty():
        raise StorageError(f"{folder.path} has no evaluated round yet. Let it run on, or lower evaluation.every.")
    last = tested.row(-1, named=True)
    done = (tested["round"] + 1).to_list()
    accuracy = tested["accuracy"].to_list()
    return ComparedRun(
        name=settings["name"],
        algorithm=settings["algorithm"]["name"],
        rounds=done[-1],
        accuracy=last["accuracy"],
        best_accuracy=max(accuracy),
        worst_decile=last["worst_decile"],
        majority_guess=last["majority_guess"],
        rounds_to={f"{target:.0%}": rounds_to_accuracy(done, accuracy, target) for target in targets},
        curve=Curve(settings["name"], done, accuracy),
    )


def draw_comparison(
    runs: Sequence[ComparedRun], path: Path, title: str = "Test accuracy of the clients' own models"
) -> None:
    """Accuracy against rounds; the floor is drawn where all runs share it."""
    floors = {round(run.majority_guess, 6) for run in runs}
    draw_curves(
        path,
        [run.curve for run in runs],
        title=title,
        x_label="rounds",
        y_label="accuracy (weighted over clients)",
        floor=floors.pop() if len(floors) == 1 else None,
    )
