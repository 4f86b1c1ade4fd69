"""Accuracy and loss over cumulative cost: every run's curve, the mean and band over seeds, the cost of targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from leanfed.charts.costs import reached
from leanfed.quantities import costs, rises, scores, spent
from leanfed.records import Floats
from leanfed.report.packing import floats, thinned
from leanfed.report.read import WITHHELD, Lacking, RunFiles

POINTS = 300  # at most, of a curve
GRID = 200  # points of a mean over seeds


@dataclass(frozen=True, eq=False)
class RunCurve:
    """One run at its evaluations: cumulative costs and scores."""

    spent: dict[str, Floats]  # axis -> cumulative cost
    value: dict[str, Floats]  # metric -> value

    @property
    def length(self) -> int:
        """How many evaluations there are."""
        return len(next(iter(self.value.values())))

    def packed(self) -> dict[str, Any]:
        """Thinned and packed for the page."""
        chosen = thinned(self.length, POINTS)
        return {name: floats(values[chosen]) for name, values in {**self.spent, **self.value}.items()}


def run_curve(run: RunFiles) -> RunCurve:
    """The evaluated rounds of one run."""
    tested = np.isfinite(run.column("rounds", run.main))
    if not tested.any() and run.withholds:
        raise Lacking(WITHHELD)
    if not tested.any():
        raise Lacking(f"{run.folder.table('rounds')} has no evaluated round yet (column {run.main!r} is empty)")
    passed = {}
    for axis, (quantity, cost) in costs().items():
        if run.whole("rounds", quantity.name):
            column = run.column("rounds", quantity.name)
            passed[axis] = (column + 1 if quantity.over_rounds == "count" else np.cumsum(column) / cost.scale)[tested]
    value = {name: run.column("rounds", name)[tested] for name in metrics() if run.has("rounds", name)}
    return RunCurve(passed, value)


def metrics() -> list[str]:
    """The scores that the page draws, by column."""
    return [name for name, (_, score) in scores().items() if score.title]


@dataclass(frozen=True, eq=False)
class Band:
    """Mean, lowest and highest value of several seeds over a cumulative cost."""

    x: Floats
    mean: Floats
    low: Floats
    high: Floats

    def packed(self) -> dict[str, Any]:
        """Packed for the page."""
        return {name: floats(getattr(self, name)) for name in ("x", "mean", "low", "high")}


def band(curves: Sequence[RunCurve], axis: str, metric: str) -> Band | None:
    """The band over seeds, from where the last seed begins to where the first one ends.

    If all seeds were evaluated at the same costs, their values are used as they are; else they are interpolated
    linearly on a common grid.
    """
    chosen = [curve for curve in curves if axis in curve.spent and metric in curve.value]
    if not chosen:
        return None
    places = [curve.spent[axis] for curve in chosen]
    if all(len(x) == len(places[0]) and np.array_equal(x, places[0]) for x in places):
        keep = thinned(len(places[0]), POINTS)
        x, values = places[0][keep], np.stack([curve.value[metric][keep] for curve in chosen])
    else:
        first, last = max(x[0] for x in places), min(x[-1] for x in places)
        if first > last:
            return None
        x = np.linspace(first, last, GRID)
        values = np.stack([np.interp(x, curve.spent[axis], curve.value[metric]) for curve in chosen])
    return Band(x, values.mean(axis=0), values.min(axis=0), values.max(axis=0))


def costs_of(
    curves: Sequence[RunCurve], target: float, *, first: bool = False, main: str = "accuracy"
) -> dict[str, list[float | None]]:
    """Every seed's cost of reaching a target for good (or for the first time), by axis; None where it is not."""

    def cost(curve: RunCurve, axis: str) -> float | None:
        if axis not in curve.spent or main not in curve.value:
            return None
        spent, values = curve.spent[axis].tolist(), curve.value[main].tolist()
        return reached(spent, values, target, rising=rises(main), first=first)

    return {axis: [cost(curve, axis) for curve in curves] for axis in costs()}


def mean_of(values: Sequence[float | None]) -> float | None:
    """The mean, or None if a seed has no value, since a target that was never reached has no time to average."""
    found = [value for value in values if value is not None]
    return float(np.mean(found)) if found and len(found) == len(values) else None


def final_values(run: RunFiles, curve: RunCurve | None) -> Mapping[str, float | None]:
    """The scores of a run's last evaluation, and its total costs."""
    last = {metric: float(values[-1]) for metric, values in curve.value.items()} if curve else {}
    total = {
        column: float(run.column("rounds", column).sum()) if run.whole("rounds", column) else None for column in spent()
    }
    guesses = {
        name: float(run.column("rounds", name)[-1]) if run.has("rounds", name) else None
        for name in ("majority_guess", "constant_guess")
    }
    return {**dict.fromkeys(metrics()), **last, **total, **guesses}
