"""Runs side by side: final scores and worst decile, the cost of reaching a target, and curves over every cost."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import polars as pl

from leanfed.charts.costs import reached, score_at
from leanfed.charts.curves import Curve, Panel, draw_panels
from leanfed.errors import LeanfedError, StorageError
from leanfed.quantities import FURTHER, MAIN, SCHEMA, Cost, Quantity, costs, guess_of, main_score, rises, scores
from leanfed.results import RunFolder
from leanfed.runs.statistics import Spread

NOT_THE_EXPERIMENT = ("name", "seed", "run")  # settings in which runs of one experiment may differ


@dataclass(frozen=True)
class ComparedRun:
    """One run's evaluated rounds: what had been spent by then, and how good it was."""

    name: str
    algorithm: str
    spent: dict[str, list[float]]  # axis -> cumulative cost at each evaluation
    accuracy: list[float]
    loss: list[float]
    worst_decile: list[float]
    majority_guess: (
        float  # by the score the run is judged by, the best constant guess; NaN where a folder does not tell
    )
    f1: list[float] = field(default_factory=list)  # pooled over clients; empty where there are more than two classes
    further: dict[str, list[float]] = field(default_factory=dict)  # mae and `FURTHER`, where a run has them
    experiment: str = ""  # the same for runs that differ in their seeds only; empty: the run stands for itself
    seed: int | None = None

    @property
    def main(self) -> str:
        """The score that the run is judged by."""
        return main_score({name for name in ("accuracy", "loss") if getattr(self, name)} | set(self.further))

    def score(self, name: str) -> list[float]:
        """A score at every evaluation; empty where the run has none of it."""
        own = {"accuracy": self.accuracy, "loss": self.loss, "worst_decile": self.worst_decile, "f1": self.f1}
        return {**own, **self.further}.get(name, [])

    @property
    def judged(self) -> list[float]:
        """The score that the run is judged by, at every evaluation."""
        return self.score(self.main)

    def cost_of(self, target: float) -> dict[str, float] | None:
        """ToA@target: every cost at the first crossing of a target; nothing if it is not reached."""
        return self._crossed(target, first=True)

    def sustained_cost_of(self, target: float) -> dict[str, float] | None:
        """Every cost at the crossing after which the target is kept; nothing if it is not."""
        return self._crossed(target, first=False)

    def _crossed(self, target: float, *, first: bool) -> dict[str, float] | None:
        values, up = self.judged, rises(self.main)
        costs = {axis: reached(spent, values, target, rising=up, first=first) for axis, spent in self.spent.items()}
        return {axis: cost for axis, cost in costs.items() if cost is not None} or None

    def row(self, targets: Sequence[float]) -> dict[str, object]:
        """The run as plain values."""
        main, best = self.main, max if rises(self.main) else min
        return {
            "name": self.name,
            "algorithm": self.algorithm,
            "rounds": self.spent["rounds"][-1],
            main: self.judged[-1],
            f"best_{main}": best(self.judged),
            "worst_decile": self.worst_decile[-1] if self.worst_decile else None,
            guess_of(main): None if math.isnan(self.majority_guess) else self.majority_guess,
            **({"f1": self.f1[-1]} if self.f1 else {}),
            **{name: values[-1] for name, values in self.further.items()},
            "sustained_time_to_accuracy": {f"{target:g}": self.sustained_cost_of(target) for target in targets},
            "time_to_accuracy": {f"{target:g}": self.cost_of(target) for target in targets},
        }


@dataclass(frozen=True)
class ComparedGroup:
    """Runs of one experiment with different seeds, or a single run."""

    runs: tuple[ComparedRun, ...]

    @property
    def name(self) -> str:
        """The name of the first run; runs of a group have the same one unless their names tell the seeds."""
        return self.runs[0].name

    def final(self, name: str) -> list[float]:
        """Every seed's last value of a score, or of the best constant guess."""
        if name == guess_of(self.runs[0].main):
            return [run.majority_guess for run in self.runs if not math.isnan(run.majority_guess)]
        return [run.score(name)[-1] for run in self.runs if run.score(name)]

    def row(self) -> dict[str, object]:
        """Mean, deviation and 95 % interval of the main score over seeds, and the costs at the end."""
        main = self.runs[0].main
        spread = Spread.of(self.final(main))
        seeded = {"deviation": spread.deviation, "half_interval_95": spread.half} if spread.count > 1 else {}
        return {"name": self.name, "seeds": [run.seed for run in self.runs], main: {"mean": spread.mean, **seeded}}


def grouped(runs: Sequence[ComparedRun]) -> list[ComparedGroup]:
    """Runs that differ in their seeds only, together; in the order of their first ones. A seed comes once."""
    groups: dict[str, list[ComparedRun]] = {}
    for place, run in enumerate(runs):
        members = groups.setdefault(run.experiment or f"run {place}", [])
        if run.seed in {other.seed for other in members}:
            groups[f"{run.experiment} {place}"] = [run]
        else:
            members.append(run)
    return [ComparedGroup(tuple(members)) for members in groups.values()]


def ends_at_equal_cost(runs: Sequence[ComparedRun]) -> dict[str, dict[str, object]]:
    """By axis: the cost at which the first of the runs ends, and every run's score there.

    Runs of as many rounds may have spent very different seconds and joules. Nothing is told of a run that had not been
    evaluated by then, and no axis that a run lacks.
    """
    ends: dict[str, dict[str, object]] = {}
    for axis in costs():
        if runs and all(axis in run.spent for run in runs):
            moment = min(run.spent[axis][-1] for run in runs)
            ends[axis] = {
                "at": moment,
                runs[0].main: [score_at(run.spent[axis], run.judged, moment) for run in runs],
            }
    return ends


def read_run(folder: RunFolder) -> ComparedRun:
    """The evaluated rounds of one folder, finished or not."""
    settings = folder.read_settings()
    found = compared(settings["name"], settings["algorithm"]["name"], folder.read_table("rounds"))
    content = {key: value for key, value in settings.items() if key not in NOT_THE_EXPERIMENT}
    found = replace(found, experiment=json.dumps(content, sort_keys=True), seed=settings.get("seed"))
    if not found.judged and settings.get("privacy", {}).get("metrics") == "off":
        raise StorageError(f"{folder.path} reports no scores to compare: its settings have privacy.metrics = 'off'.")
    if not found.judged:
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
    main = runs[0].main
    for run in runs:
        if run.main != main:
            left_out.append(f"{run.name!r} is left out: it is judged by {run.main}, the first run by {main}.")
    return [run for run in runs if run.main == main], left_out


def compared(name: str, algorithm: str, rounds: pl.DataFrame) -> ComparedRun:
    """The evaluated rounds of a table of rounds; a cost that rows of an older version lack has no axis."""
    tested = rounds["loss" if "loss" in rounds.columns else "accuracy"].is_not_null()

    def found(column: str) -> list[float]:
        values = rounds[column].filter(tested).to_list() if column in rounds.columns else []
        return [] if None in values else values

    spent = {axis: spent_so_far(rounds, quantity, cost) for axis, (quantity, cost) in costs().items()}
    further = {column: values for column in ("mae", *FURTHER) if (values := found(column))}
    known = {column for column in MAIN if found(column)}
    return ComparedRun(
        name=name,
        algorithm=algorithm,
        spent={axis: values.filter(tested).to_list() for axis, values in spent.items() if values is not None},
        accuracy=found("accuracy"),
        loss=found("loss"),
        worst_decile=found("worst_decile"),
        majority_guess=next(iter(found(guess_of(main_score(known)))), math.nan),
        f1=found("f1"),
        further=further,
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
    """The main score (and the loss) against every cost that is plotted: means over seeds with bands, and the guess."""
    floors = [run.majority_guess for run in runs if not math.isnan(run.majority_guess)]
    floor = (min(floors), max(floors)) if floors else None
    known = {axis: cost.picture for axis, (_, cost) in costs(plotted=True).items()}
    axes = [axis for axis in axes or known if any(axis in run.spent for run in runs)]
    main, groups = runs[0].main, grouped(runs)
    more = [name for name in ("f1", *FURTHER) if all(run.score(name) for run in runs)]
    wanted = list(dict.fromkeys([main, *(["loss"] if loss else []), *more]))
    panels = []
    for score in wanted:
        for axis in axes:
            curves = [curve for group in groups if (curve := _group_curve(group, score, axis)) is not None]
            label = scores()[score][1].picture
            guess = SCHEMA[guess_of(main)].label
            panels.append(Panel(curves, known[axis], label, floor if score == main else None, floor_label=guess))
    draw_panels(path, panels, title="The clients' own models on their own test sets", columns=len(axes))


def _group_curve(group: ComparedGroup, score: str, axis: str) -> Curve | None:
    """The mean over seeds of a score at the first seed's costs, as far as all seeds go, in a band of all of them."""
    members = [(run.spent[axis], run.score(score)) for run in group.runs if axis in run.spent and run.score(score)]
    if not members:
        return None
    label = group.name if len(members) == 1 else f"{group.name} ({len(members)} seeds)"
    if len(members) == 1:
        return Curve(label, *members[0])
    rows = [(x, [score_at(spent, values, x) for spent, values in members]) for x in members[0][0]]
    whole = [(x, [value for value in row if value is not None]) for x, row in rows if None not in row]
    if not whole:
        return Curve(label, *members[0])
    x, values = [x for x, _ in whole], [row for _, row in whole]
    mean = [sum(row) / len(row) for row in values]
    return Curve(label, x, mean, low=[min(row) for row in values], high=[max(row) for row in values])
