"""Runs read from their folders, finished or not; nothing is trained and nothing is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl

from leanfed.errors import StorageError
from leanfed.files import read_json
from leanfed.quantities import summarised
from leanfed.results import RunFolder, find_runs
from leanfed.runs.outcome import Run
from leanfed.runs.settings import Settings


def read(folder: str | Path) -> Run:
    """A run from its folder; one that is not finished has the rounds of its newest checkpoint.

    Its methods and rules must be known by name, but neither its data nor its model is needed.
    """
    place = RunFolder(Path(folder))
    settings = Settings.from_values(place.read_settings(), str(place.settings))
    try:
        rounds, clients = place.read_table("rounds"), place.read_table("clients")
    except StorageError:
        if place.finished:
            raise
        rounds, clients = pl.DataFrame(), pl.DataFrame()  # no round has ended yet
    summary = read_json(place.summary) if place.finished else _so_far(settings, rounds)
    return Run(settings, summary, rounds, clients, place.path, place.finished)


def runs(folder: str | Path) -> list[Run]:
    """All runs in a folder, by name; a run folder itself is the only one of its list."""
    return [read(found.path) for found in find_runs([Path(folder)])]


def _so_far(settings: Settings, rounds: pl.DataFrame) -> dict[str, Any]:
    """The summary of rounds so far."""
    tested = rounds.filter(pl.col("loss").is_not_null()) if "loss" in rounds.columns else rounds
    rows = tested if tested.height else rounds
    last = rows.row(-1, named=True) if rows.height else {}
    sums = {quantity.name for quantity in summarised("sum")} & set(rounds.columns)
    return {
        "name": settings.name,
        "algorithm": settings.algorithm.model_dump()["name"],
        "dataset": settings.task.dataset,
        "partition": settings.task.partition.label(),
        "rounds": rounds.height,
        "seed": settings.seed,
        **{quantity.name: last.get(quantity.name) for quantity in summarised("last")},
        **{name: float(rounds[name].sum()) for name in sorted(sums)},
    }
