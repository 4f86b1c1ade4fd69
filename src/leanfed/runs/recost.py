"""Charge a finished run again: another radio, another split of the band, the same learning.

With rates of its own (`allocation.rule = "own"`) a method learns the same whatever the radio is like; only seconds,
joules and bits change. The new folder equals, table for table, the one that training under the new settings would have
made, in a second instead of minutes.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from leanfed.errors import InputError
from leanfed.files import sha256_of
from leanfed.records import RoundPlan
from leanfed.results import RunFolder, new_run_folder, write_summary, write_table
from leanfed.rounds.costs import Accountant
from leanfed.rounds.engine import RoundOutcome, empty_outcome
from leanfed.rounds.loop import shares_of, typed_frame
from leanfed.runs.carry_out import describe
from leanfed.runs.finish import summarise
from leanfed.runs.outcome import Run
from leanfed.runs.prepare import Experiment, prepare
from leanfed.runs.settings import Settings

FREE = ("name", "radio", "allocation", "run")  # sections that cannot change what a method with its own rates learns
COSTLY = ("wire", "value_bits", "values", "broadcast", "k_down", "values_down")  # keys of the radio that can


def recost(source: str | Path, settings: Settings, out: str | Path, *, data_dir: str | Path | None = None) -> Run:
    """The run in `source` as it would have been charged under `settings`, in a folder of its own."""
    kept = RunFolder(Path(source))
    before = check_same_learning(kept, settings)
    experiment = prepare(settings, data_dir)
    told = kept.read_table("clients") if kept.table("clients").is_file() else None
    parts = _charged(experiment, told, kept.read_table("rounds"), Accountant(before.radio, experiment.world))
    rounds, clients = (pl.concat(tables, rechunk=True) for tables in parts)  # a sum follows its chunks
    with new_run_folder(Path(out)) as folder:
        describe(folder, experiment)
        folder.log("recost", source=str(source))
        tables = {"rounds": rounds} if told is None else {"rounds": rounds, "clients": clients}
        for name, table in tables.items():
            write_table(folder.table(name), table)
        learned = [
            path for path in (kept.table("evaluations"), kept.weights) if path.is_file()
        ]  # old folders lack some
        for path in learned:
            shutil.copyfile(path, folder.path / path.name)
        made = [*map(folder.table, tables), *(folder.path / path.name for path in learned)]
        sums = {path.name: sha256_of(path) for path in made}
        summary = {**summarise(settings, experiment.world, rounds), "sha256": sums}
        write_summary(folder, summary)
        return Run(settings, summary, rounds, clients, folder.path)


def check_same_learning(kept: RunFolder, settings: Settings) -> Settings:
    """The settings of a run, completed; one that is not finished or would have learned otherwise is refused."""
    if not kept.finished:
        raise InputError(f"{kept.path} has not ended; `leanfed resume` it first.")
    values = kept.read_settings()
    if values.get("privacy", {}).get("metrics", "shown") != "shown":
        raise InputError("privacy.metrics keeps back the clients' rows that a new account needs; train the run anew.")
    if any(one["allocation"]["rule"] != "own" for one in (values, settings.resolved())):
        raise InputError("allocation.rule = 'joint' plans rates by the radio; such a run must be trained anew.")
    # Today's defaults complete the settings of an older folder.
    completed = Settings.from_values({**values, "allocation": {"rule": "own"}}, str(kept.settings))
    before, after = learning_part(completed.resolved()), learning_part(settings.resolved())
    changed = [name for name in after if before.get(name) != after[name]]
    if changed:
        raise InputError(f"{kept.path} was trained with another {changed[0]}; only radio and bandwidth may change.")
    return completed


def learning_part(values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that decide what a method with its own rates learns."""
    rest = {name: section for name, section in values.items() if name not in FREE}
    rest["run.precision"] = values["run"].get("precision", "float32")
    if values["width"]["by"] == "speed":  # then the radio's devices decide on widths
        return rest | {"radio": values["radio"]}
    return rest | {f"radio.{key}": values["radio"][key] for key in COSTLY}


def _charged(
    experiment: Experiment, clients: pl.DataFrame | None, rounds: pl.DataFrame, before: Accountant
) -> tuple[list[pl.DataFrame], list[pl.DataFrame]]:
    """The rows of both tables with the columns of the new account in place of the old, round by round."""
    groups = {} if clients is None else clients.partition_by("round", as_dict=True)
    round_parts, client_parts = [], [pl.DataFrame() if clients is None else clients.clear()]
    for number in rounds["round"].to_list():
        planner, rows, one = experiment.planner_at(number), groups.get((number,)), rounds.filter(round=number)
        plan = planner.plan(number).plan
        outcome = _as_planned(before, plan, one) if clients is None else _as_told(plan, rows)
        bill = planner.accountant.bill(plan, outcome)
        if rows is not None:
            client_parts.append(_replaced(rows, {"share": shares_of(plan), **bill.client_columns()}))
        round_parts.append(_replaced(one, {name: [value] for name, value in bill.round_row().items()}))
    return round_parts, client_parts


def _as_told(plan: RoundPlan, rows: pl.DataFrame | None) -> RoundOutcome:
    """What the participants of a round did, by their rows."""
    if plan.participants != tuple([] if rows is None else rows["client"].to_list()):
        raise InputError(f"Others take part in round {plan.round} under this radio; such a run must be trained anew.")
    if rows is None:
        return empty_outcome(None)  # type: ignore[arg-type]  # an account needs no server
    loss, samples, entries = (rows[name].to_numpy() for name in ("loss", "samples", "entries"))
    coded = None if rows["coded_bits"].null_count() else rows["coded_bits"].to_numpy()
    return RoundOutcome(None, loss, samples, entries, coded)  # type: ignore[arg-type]


def _as_planned(before: Accountant, plan: RoundPlan, one: pl.DataFrame) -> RoundOutcome:
    """What they did where their rows are not kept: what was planned, if the old account comes out of it."""
    samples = before.world.samples(plan.participants).astype(np.int64)
    outcome = RoundOutcome(None, samples * np.nan, samples, before.world.entries(plan))  # type: ignore[arg-type]
    found = before.bill(plan, outcome).round_row()
    if any(found[name] != one[name][0] for name in ("upload_bits", "flops")):
        raise InputError(
            f"What clients did in round {plan.round} cannot be told without their rows; train such a run anew."
        )
    return outcome


def _replaced(table: pl.DataFrame, columns: dict[str, Any]) -> pl.DataFrame:
    """Some columns given new values, types and order as before."""
    return table.with_columns(typed_frame(columns))
