"""The final files of a run, and its result in a few numbers."""

from __future__ import annotations

import math
from typing import Any

import polars as pl

from leanfed.files import sha256_of
from leanfed.quantities import Quantity, summarised
from leanfed.results import RunFolder, write_summary, write_table
from leanfed.rounds.evaluation import majority_f1
from leanfed.rounds.loop import Progress
from leanfed.rounds.weights import write_weights
from leanfed.rounds.world import World
from leanfed.runs.outcome import Run
from leanfed.runs.settings import Settings
from leanfed.theory.recorded import with_bounds


def finish_folder(
    settings: Settings, world: World, folder: RunFolder, tables: dict[str, pl.DataFrame], progress: Progress
) -> Run:
    """Write the tables, the weights and, last, the summary."""
    tables = {**tables, "rounds": with_theory(settings, tables["rounds"])}
    tables = {name: table for name, table in tables.items() if table.width}  # rows of older folders lack some
    for name, table in tables.items():
        write_table(folder.table(name), table)
    files = [folder.table(name) for name in tables]
    if settings.run.keep_weights:
        tested = world.tested.tolist() if progress.clients.clients else ()  # a fleet's server holds no client
        write_weights(folder.weights, progress, tested)
        files.append(folder.weights)
    sums = {path.name: sha256_of(path) for path in files}
    summary = {**summarise(settings, world, tables["rounds"]), "sha256": sums}
    write_summary(folder, summary)
    folder.log("finish", accuracy=summary["accuracy"])
    return Run(settings, summary, tables["rounds"], tables["clients"], folder.path)


def with_theory(settings: Settings, rounds: pl.DataFrame) -> pl.DataFrame:
    """The bound of Theorem 1 beside what was measured, where anything was."""
    return with_bounds(rounds) if settings.theory.every else rounds


def summarise(settings: Settings, world: World, rounds: pl.DataFrame) -> dict[str, Any]:
    """The result in a few numbers."""
    tested = rounds.filter(pl.col("loss").is_not_null())
    last = (tested if tested.height else rounds).row(-1, named=True)
    summary = {
        "name": settings.name,
        "algorithm": settings.algorithm.model_dump()["name"],
        "dataset": settings.task.dataset,
        "partition": settings.task.partition.label(),
        "clients": world.task.clients,
        "rounds": rounds.height,
        "seed": settings.seed,
        "shared_size": world.split.shared_size,
        "private_size": world.split.private_size,
        **{quantity.name: last.get(quantity.name) for quantity in summarised("last")},
        "majority_f1": majority_f1(world) if world.metrics == "shown" else None,
        "best_accuracy": tested["accuracy"].max(),
        **{quantity.name: _over_rounds(quantity, rounds) for quantity in summarised("sum", "max", "mean")},
        **(_last_bounds(rounds) if settings.theory.every else {}),
    }
    # JSON knows no infinity; a cost without end, of a folder that an older version filled, is left empty.
    infinite = {name for name, value in summary.items() if isinstance(value, float) and not math.isfinite(value)}
    return {name: None if name in infinite else value for name, value in summary.items()}


def _over_rounds(quantity: Quantity, rounds: pl.DataFrame) -> float | None:
    """A run's value of a column; empty where rows of an older version lack it."""
    if quantity.name not in rounds.columns or rounds[quantity.name].null_count():
        return None
    return float(getattr(rounds[quantity.name], quantity.over_rounds)())


def _last_bounds(rounds: pl.DataFrame) -> dict[str, Any]:
    """What Theorem 1 said at its last measurement."""
    names = ("gradient_norm_sq_mean", "bound_corrected", "bound_paper")
    return rounds.filter(pl.col("gradient_norm_sq").is_not_null()).select(names).row(-1, named=True)
