"""The rounds of an experiment: in memory, or in a folder that goes on after any stop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from typing import Any

import polars as pl

from leanfed.algorithms.contract import Training
from leanfed.algorithms.learner import one_thread
from leanfed.algorithms.local import DivergedError
from leanfed.errors import StorageError
from leanfed.results import TABLES, RunFolder, joined
from leanfed.rounds.budget import Budget
from leanfed.rounds.checkpoint import Checkpoints
from leanfed.rounds.engine import Engine
from leanfed.rounds.loop import Progress, RoundRecord, play, start
from leanfed.rounds.ranks import ALONE, Ranks
from leanfed.rounds.switch import switched
from leanfed.rounds.world import World
from leanfed.runs.finish import summarise, with_theory
from leanfed.runs.outcome import Run
from leanfed.runs.prepare import Experiment, engine_of, fingerprint
from leanfed.runs.settings import Settings
from leanfed.runs.watching import Listener
from leanfed.simulation.devices import name_of

Notify = Callable[[str], None]
EXPLODED, LEAST_LOSS = 1e6, 1e-3  # a loss this many times the first, which counts as no less than that


def _rounds(
    experiment: Experiment,
    engines: Callable[[World], Engine],
    progress: Progress,
    earlier: pl.DataFrame | None = None,
) -> Iterator[RoundRecord]:
    """The rounds that are left, charged by the settings' radio; `earlier` holds the rows of those before.

    `engines` gives what computes a world's rounds; it is asked again where the cut moves.
    """
    records = _phases(experiment, engines, progress, [] if earlier is None else earlier.to_dicts())
    losses = [] if earlier is None else earlier["train_loss"].drop_nulls().to_list()
    return _watched(records, experiment.settings.training, losses)


def _phases(
    experiment: Experiment, engines: Callable[[World], Engine], progress: Progress, earlier: list[dict[str, Any]]
) -> Iterator[RoundRecord]:
    """The rounds that are left, one cut after another."""
    settings, phases = experiment.settings, experiment.phases
    budget = spent_by(settings, earlier)
    for place, (first, planner) in enumerate(phases):
        until = phases[place + 1][0] if place + 1 < len(phases) else settings.rounds
        if place:
            planner.follow(phases[place - 1][1], first)
        for row in earlier:
            if first <= row["round"] < until:
                planner.observe(row)
        if progress.round >= until:
            continue
        if len(progress.server.shared) != planner.world.vector_size:
            progress = switched(progress, phases[place - 1][1].world, planner.world)
        for record in play(
            planner.world,
            engines(planner.world),
            planner.accountant,
            planner,
            progress,
            rounds=settings.rounds,
            evaluation=settings.evaluation,
            theory=settings.theory,
            budget=budget,
            until=until,
        ):
            progress = record.progress
            yield record
            if record.ends:
                return


def _watched(records: Iterator[RoundRecord], training: Training, losses: list[float]) -> Iterator[RoundRecord]:
    """The rounds, until their training loss explodes: what comes after is of no use, even where it stays finite."""
    first = losses[0] if losses else None
    for record in records:
        loss = record.row["train_loss"]
        first = loss if first is None else first
        if loss is not None and first is not None and loss > EXPLODED * max(first, LEAST_LOSS):
            number = record.row["round"]
            raise DivergedError(
                f"The training loss of round {number} is {loss:.3g}, but that of the first was {first:.3g}: the run "
                f"diverges at learning rate {training.rate(number):g}. Lower training.learning_rate and start again."
            )
        if record.row["loss"] is not None and not math.isfinite(record.row["loss"]):
            raise DivergedError(
                f"After round {record.row['round']} the test loss is {record.row['loss']}: the server's step led out "
                "of all numbers. Lower training.learning_rate, or look for an extreme value in [algorithm]."
            )
        yield record


def play_in_memory(experiment: Experiment, listen: Listener) -> Run:
    """All rounds, nothing written."""
    settings, world = experiment.settings, experiment.world
    progress = start(world)
    rounds: list[pl.DataFrame] = []
    clients: list[pl.DataFrame] = []
    with one_thread():
        for record in _rounds(experiment, lambda own: engine_of(settings, own), progress):
            rounds.append(record.rounds)
            clients.append(record.clients)
            listen(record)
            if record.ends or arrived(settings, record.rounds):
                break
    table = with_theory(settings, pl.concat(rounds))
    return Run(settings, summarise(settings, world, table), table, pl.concat(clients))


def play_in_folder(
    experiment: Experiment,
    folder: RunFolder,
    listen: Listener,
    notify: Notify = lambda text: None,
    ranks: Ranks = ALONE,
) -> tuple[Checkpoints, Progress]:
    """The rounds that are left, with a checkpoint every `run.checkpoint_every` of them and after the last."""
    settings, world = experiment.settings, experiment.world
    checkpoints = Checkpoints(folder.checkpoint, fingerprint(world.task), ranks)
    progress = _load(checkpoints, experiment, folder, notify)
    done = checkpoints.tables()["rounds"] if progress.round else None
    if done is not None and (arrived(settings, done) or spent_by(settings, done.iter_rows(named=True)).reached):
        return checkpoints, progress
    rows: list[dict[str, pl.DataFrame]] = []
    clock = time.perf_counter()

    def engine_for(own: World) -> Engine:
        engine = engine_of(settings, own, ranks, _engine_before(folder) if progress.round else None)
        if progress.round in (first for first, _ in world.later):
            folder.log("note", text=f"from round {progress.round} on the base ends with {own.task.settings.split!r}.")
        folder.log("engine", name=engine.name, reason=engine.reason, device=name_of(world.device))
        return engine

    with one_thread(), closing(checkpoints):
        earlier = checkpoints.tables()["rounds"] if progress.round else None
        for record in _rounds(experiment, engine_for, progress, earlier):
            progress = record.progress
            rows.append(record.tables)
            last = record.ends or arrived(settings, record.rounds)
            if last or progress.round % settings.run.checkpoint_every == 0:
                checkpoints.save(progress, {name: joined(each[name] for each in rows) for name in TABLES})
                rows = []
            _log_round(folder, record, -clock + (clock := time.perf_counter()))
            listen(record)
            if last:
                break
    return checkpoints, progress


def _engine_before(folder: RunFolder) -> str | None:
    """The engine that computed the rounds so far, by the folder's events."""
    names = [event.get("name") for event in folder.read_events() if event.get("event") == "engine"]
    return names[-1] if names and isinstance(names[-1], str) else None


def _load(checkpoints: Checkpoints, experiment: Experiment, folder: RunFolder, notify: Notify) -> Progress:
    """Where the run stands: its newest whole checkpoint, or the beginning where none can have been saved."""
    progress = checkpoints.load(experiment.world, fall_back=True)
    if progress is None:
        logged = (event.get("round") for event in folder.read_events() if event.get("event") == "round")
        rounds = [number for number in logged if isinstance(number, int)]
        saves = (max(rounds, default=-1) + 1) // experiment.settings.run.checkpoint_every
        if saves > 1:  # all but the last are on disk when a round is logged
            raise StorageError(
                f"{folder.checkpoint} has no manifest.json, although {max(rounds) + 1} rounds have ended. Restore the "
                f"folder from a copy, or begin again: leanfed run {folder.settings} --out {folder.path}-again"
            )
        return start(experiment.world)
    if checkpoints.troubles:
        text = f"{' '.join(checkpoints.troubles)} The run goes on from the checkpoint before, round {progress.round}."
        folder.log("checkpoint", text=text, round=progress.round)
        notify(text)
    return progress


def _log_round(folder: RunFolder, record: RoundRecord, total_s: float) -> None:
    """The events of a finished round: its plan, where there was something to decide, and where the time went."""
    number, planned = record.progress.round - 1, record.planned
    if planned.reasons:
        folder.log(
            "plan",
            round=number,
            seconds=round(planned.seconds, 6),
            participants=len(planned.plan.participants),
            **planned.reasons,
        )
    seconds = {"total": total_s, **record.seconds}
    folder.log(
        "round",
        round=number,
        accuracy=record.row["accuracy"],
        **({"mae": record.row["mae"]} if record.row.get("mae") is not None else {}),
        seconds={name: round(value, 5) for name, value in seconds.items()},
    )


def spent_by(settings: Settings, earlier: Iterable[Mapping[str, Any]]) -> Budget:
    """What a run may spend, less what its earlier rounds have spent."""
    budget = Budget(settings.run.limits())
    for row in earlier:
        budget.spend(row)
    return budget


def arrived(settings: Settings, rounds: pl.DataFrame) -> bool:
    """Whether these rounds reach the accuracy at which the run is to end."""
    target = settings.run.stop_at_accuracy
    return target is not None and rounds.filter(pl.col("accuracy") >= target).height > 0
