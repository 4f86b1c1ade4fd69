"""Runs side by side: final accuracy and worst decile, the cost of reaching a target, and curves over every cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from leanfed.charts.costs import first_crossing, score_at, sustained_crossing
from leanfed.charts.curves import Curve, Panel, draw_panels
from leanfed.errors import LeanfedError, StorageError
from leanfed.quantities import Cost, Quantity, costs, scores
from leanfed.results import RunFolder


@dataclass(frozen=True)
class ComparedRun:
    """One run's evaluated rounds: what had been spent by then, and how good it was."""

    name: str
    algorithm: str
    spent: dict[str, list[float]]  # axis -> cumulative cost at each evaluation
    accuracy: list[float]
    loss: list[float]
    worst_decile: list[float]
    majority_guess: float  # NaN where a folder does not tell
    f1: list[float] = field(default_factory=list)  # pooled over clients; empty where there are more than two classes

    def cost_of(self, target: float) -> dict[str, float] | None:
        """ToA@target: every cost at the first crossing of a target accuracy; nothing if it is not reached."""
        return self._crossed(first_crossing, target)

    def sustained_cost_of(self, target: float) -> dict[str, float] | None:
        """Every cost at the crossing after which the target accuracy is kept; nothing if it is not."""
        return self._crossed(sustained_crossing, target)

    def _crossed(self, crossing: Callable[..., float | None], target: float) -> dict[str, float] | None:
        reached = {axis: crossing(spent, self.accuracy, target) for axis, spent in self.spent.items()}
        return {axis: cost for axis, cost in reached.items() if cost is not None} or None

    def row(self, targets: Sequence[float]) -> dict[str, object]:
        """The run as plain values."""
        return {
            "name": self.name,
            "algorithm": self.algorithm,
            "rounds": self.spent["rounds"][-1],
            "accuracy": self.accuracy[-1],
            "best_accuracy": max(self.accuracy),
            "worst_decile": self.worst_decile[-1] if self.worst_decile else None,
            "majority_guess": None if math.isnan(self.majority_guess) else self.majority_guess,
            **({"f1": self.f1[-1]} if self.f1 else {}),
            "sustained_time_to_accuracy": {f"{target:g}": self.sustained_cost_of(target) for target in targets},
            "time_to_accuracy": {f"{target:g}": self.cost_of(target) for target in targets},
        }


def ends_at_equal_cost(runs: Sequence[ComparedRun]) -> dict[str, dict[str, object]]:
    """By axis: the cost at which the first of the runs ends, and every run's accuracy there.

    Runs of as many rounds may have spent very different seconds and joules. Nothing is told of a run that had not been
    evaluated by then, and no axis that a run lacks.
    """
    ends: dict[str, dict[str, object]] = {}
    for axis in costs():
        if runs and all(axis in run.spent for run in runs):
            moment = min(run.spent[axis][-1] for run in runs)
            ends[axis] = {"at": moment, "accuracy": [score_at(run.spent[axis], run.accuracy, moment) for run in runs]}
    return ends


def read_run(folder: RunFolder) -> ComparedRun:
    """The evaluated rounds of one folder, finished or not."""
    settings = folder.read_settings()
    found = compared(settings["name"], settings["algorithm"]["name"], folder.read_table("rounds"))
    if not found.accuracy:
        raise StorageError(f"{folder.path} has no evaluated round yet. Let it run on, or lower evaluation.every.")
    return found


def read_runs(folders: Sequence[RunFolder]) -> tuple[list[ComparedRun], list[str]]:
    """The runs that can be read, and why each of the others is left out; refused where none is left."""
    runs, left_out = [], []
    for folder in folders:
        try:
            runs.append(read_run(folder))
        except LeanfedError as error:
            left_out.append(f"{folder.path} is left out: {error}")
        except Exception as error:  # libraries answer damaged bytes with errors of any kind
            left_out.append(f"{folder.path} is left out: it cannot be read ({type(error).__name__}: {error}).")
    if not runs:
        raise StorageError("No run can be compared.\n" + "\n".join(left_out))
    return runs, left_out


def compared(name: str, algorithm: str, rounds: pl.DataFrame) -> ComparedRun:
    """The evaluated rounds of a table of rounds; a cost that rows of an older version lack has no axis."""
    tested = rounds["accuracy"].is_not_null()

    def found(column: str) -> list[float]:
        values = rounds[column].filter(tested).to_list() if column in rounds.columns else []
        return [] if None in values else values

    spent = {axis: spent_so_far(rounds, quantity, cost) for axis, (quantity, cost) in costs().items()}
    return ComparedRun(
        name=name,
        algorithm=algorithm,
        spent={axis: values.filter(tested).to_list() for axis, values in spent.items() if values is not None},
        accuracy=found("accuracy"),
        loss=found("loss"),
        worst_decile=found("worst_decile"),
        majority_guess=next(iter(found("majority_guess")), math.nan),
        f1=found("f1"),
    )


def spent_so_far(rounds: pl.DataFrame, quantity: Quantity, cost: Cost) -> pl.Series | None:
    """A cost after every round, in the unit that is shown; nothing where a round's is unknown."""
    if quantity.name not in rounds.columns or rounds[quantity.name].null_count():
        return None
    column = rounds[quantity.name]
    return column + 1 if quantity.over_rounds == "count" else column.cum_sum() / cost.scale


def draw_comparison(
    runs: Sequence[ComparedRun], path: Path, axes: Sequence[str] | None = None, *, loss: bool = True
) -> None:
    """Accuracy (and loss) against every cost that is plotted; the floor is drawn where all runs share it."""
    floors = {round(run.majority_guess, 6) for run in runs}
    floor = floors.pop() if len(floors) == 1 and not any(map(math.isnan, floors)) else None
    known = {axis: cost.picture for axis, (_, cost) in costs(plotted=True).items()}
    axes = [axis for axis in axes or known if any(axis in run.spent for run in runs)]
    wanted = ["accuracy", *(["loss"] if loss else []), *(["f1"] if all(run.f1 for run in runs) else [])]
    panels = []
    for score in wanted:
        lines = [(run, getattr(run, score)) for run in runs if getattr(run, score)]
        for axis in axes:
            curves = [Curve(run.name, run.spent[axis], values) for run, values in lines if axis in run.spent]
            label = scores()[score][1].picture
            panels.append(Panel(curves, known[axis], label, floor if score == "accuracy" else None))
    draw_panels(path, panels, title="The clients' own models on their own test sets", columns=len(axes))
