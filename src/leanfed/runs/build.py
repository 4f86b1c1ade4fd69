"""From settings to a run: build the world, play the rounds, keep the folder whole."""

from __future__ import annotations

import hashlib
import math
import os
import platform
import shlex
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import polars as pl

from leanfed.algorithms.contract import Training
from leanfed.algorithms.learner import one_thread
from leanfed.algorithms.local import DivergedError
from leanfed.errors import SettingsError, StorageError
from leanfed.files import read_json, sha256_of, write_json, write_text
from leanfed.quantities import Quantity, summarised
from leanfed.records import RoundPlan
from leanfed.results import (
    FORMAT,
    TABLES,
    RunFolder,
    check_free,
    check_resumable,
    joined,
    new_run_folder,
    write_summary,
    write_table,
)
from leanfed.rounds.adversary import flipped
from leanfed.rounds.backdoor import poisoned
from leanfed.rounds.budget import Budget
from leanfed.rounds.checkpoint import Checkpoints
from leanfed.rounds.costs import Accountant
from leanfed.rounds.cuts import CutChoice
from leanfed.rounds.engine import Engine
from leanfed.rounds.evaluation import majority_f1
from leanfed.rounds.loop import Progress, RoundRecord, play, start
from leanfed.rounds.planning import Planner
from leanfed.rounds.privacy import Ledger
from leanfed.rounds.ranks import ALONE, Ranks
from leanfed.rounds.switch import switched, with_schedule
from leanfed.rounds.weights import write_weights
from leanfed.rounds.world import World, check_fit
from leanfed.runs.cuts import settled
from leanfed.runs.describe import describe_world, write_devices
from leanfed.runs.outcome import Run
from leanfed.runs.read import read
from leanfed.runs.settings import Settings
from leanfed.runs.trackers import check_trackers, tracking
from leanfed.runs.watching import Listener, round_bar, somebody_looks
from leanfed.runs.widths import with_widths
from leanfed.simulation.choose import choose_engine
from leanfed.simulation.devices import device_of, name_of
from leanfed.tasks.arrays import Rows
from leanfed.tasks.drawn import DrawnRows
from leanfed.tasks.task import Task, build_task
from leanfed.theory.recorded import with_bounds

Notify = Callable[[str], None]
EXPLODED, LEAST_LOSS = 1e6, 1e-3  # a loss this many times the first, which counts as no less than that
SECRET = ("--token",)  # options whose value stays out of the folder
TRACKED = ("leanfed", "torch", "numpy", "polars", "safetensors")


@dataclass
class Experiment:
    """What a run is made of, built once; `planner` is live: it remembers the plans that later ones depend on."""

    settings: Settings  # with as many rounds as the privacy budget allows
    world: World
    planner: Planner
    given: Settings  # as they were asked for, but for a cut that was left to the program
    cut: CutChoice | None = None  # how the program chose it
    later: tuple[Planner, ...] = ()  # of the later worlds of `world`, whose models are cut elsewhere

    @property
    def phases(self) -> list[tuple[int, Planner]]:
        """(round, planner): who plans from that round on, in the planner's world."""
        firsts = (first for first, _ in self.world.later)
        return [(0, self.planner), *zip(firsts, self.later, strict=True)]

    def planner_at(self, number: int) -> Planner:
        """The planner of a round, for those who ask for one round after another."""
        begun = [planner for first, planner in self.phases if first <= number]
        if number and number in (first for first, _ in self.phases):
            begun[-1].follow(begun[-2], number)
        return begun[-1]


def run(
    settings: Settings,
    out: str | Path | None = None,
    *,
    data_dir: str | Path | None = None,
    given: str | None = None,
    listen: Listener | None = None,
    notify: Notify = warnings.warn,
    progress: bool | None = None,
) -> Run:
    """Train from the first round; with `out` everything is kept in a run folder that can be resumed.

    `listen` is called after every round. `notify` hears what a user should know, for example that a tracker was lost.
    `progress` shows a bar: by default where somebody looks (a terminal, a notebook) and nothing listens; False: never.

    >>> import leanfed
    >>> leanfed.run(leanfed.Settings(rounds=2)).rounds.height  # doctest: +SKIP
    2
    """
    if not isinstance(settings, Settings):
        raise SettingsError(
            f"leanfed.run takes leanfed.Settings, not a {type(settings).__name__}. Write Settings.from_values(...) for "
            "tables of settings, or Settings.from_toml(...) for a file."
        )
    if out is None:
        experiment = prepare(settings, data_dir)
        with heard(experiment.given, listen, progress, notify) as hear:
            return _play_in_memory(experiment, hear)
    check_free(Path(out))
    check_trackers(settings.run.track)
    experiment = prepare(settings, data_dir, scratch=Path(out))
    with new_run_folder(Path(out)) as folder, heard(experiment.given, listen, progress, notify, folder) as hear:
        begin(folder, experiment, given)
        return finished(experiment, folder, *play_in_folder(experiment, folder, hear))


@contextmanager
def heard(
    settings: Settings,
    listen: Listener | None,
    progress: bool | None,
    notify: Notify,
    folder: RunFolder | None = None,
    *,
    resumed: bool = False,
) -> Iterator[Listener]:
    """What is called after every round: the trackers of the settings, and a bar, the listener, or both.

    A tracker that is lost is noted in the folder, and `notify` hears of it.
    """

    def tell(text: str) -> None:
        if folder is not None:
            folder.log("note", text=text)
        notify(text)

    show = listen is None and somebody_looks() if progress is None else progress
    bars = round_bar(settings.name, settings.rounds) if show else nullcontext(_ignore)
    place = None if folder is None else folder.path
    with tracking(settings, place, resumed, tell) as track, bars as bar:

        def hear(record: RoundRecord) -> None:
            track(record)
            bar(record)
            if listen is not None:
                listen(record)

        yield hear


def _ignore(record: RoundRecord) -> None:
    pass


def describe(folder: RunFolder, experiment: Experiment) -> None:
    """Write what a folder says of its run before the first round.

    The settings come first: from then on a run that is killed can be resumed, and what is missing is written then. But
    how their cut was chosen is known to nobody once they name it.
    """
    settings = experiment.settings
    if experiment.cut is not None:
        write_json(folder.cuts, experiment.cut.to_json())
    if not folder.settings.is_file():
        write_json(folder.settings, settings.resolved())
    if not folder.environment.is_file():
        write_json(folder.environment, environment())
    if not folder.world.is_file():
        write_json(folder.world, describe_world(settings, experiment.world))
    if not folder.fleet.is_file():
        write_devices(folder.fleet, experiment.planner.accountant.fleet, settings.rounds)


def begin(folder: RunFolder, experiment: Experiment, given: str | None = None) -> None:
    """What is written before the first round; `given` is the settings file as it stands."""
    if given is not None:
        write_text(folder.given, given)
    describe(folder, experiment)
    _log_start(folder, experiment)


def go_on(folder: RunFolder, experiment: Experiment) -> None:
    """What is written before a run goes on: what a stop may have left out, and that it does."""
    describe(folder, experiment)
    if not any(folder.read_events()):  # killed before its first word
        _log_start(folder, experiment)
    folder.log("resume")


def _log_start(folder: RunFolder, experiment: Experiment) -> None:
    folder.log("start")
    if experiment.cut is not None:
        folder.log("cut", chosen=experiment.cut.chosen, why=experiment.cut.why)
    settings, rounds = experiment.given, experiment.settings.rounds
    for note in settings.notes():
        folder.log("note", text=note)
    if rounds != settings.rounds:
        folder.log("note", text=f"the privacy budget ends after {rounds} of the {settings.rounds} rounds.")


def resume(
    out: str | Path,
    *,
    data_dir: str | Path | None = None,
    listen: Listener | None = None,
    notify: Notify = lambda text: None,
    progress: bool | None = None,
) -> Run:
    """Go on after a stop, bit for bit as if it had not happened; a finished run is read back, as by `leanfed.read`.

    `notify` hears what a user should know, for example that an earlier checkpoint stood in for a damaged one.
    """
    folder = RunFolder(Path(out))
    check_resumable(folder)
    settings = Settings.from_values(folder.read_settings(), str(folder.settings))
    with folder.hold():
        if folder.finished:
            if all(event.get("event") != "finish" for event in folder.read_events()):  # killed before its last word
                folder.log("finish", accuracy=read_json(folder.summary).get("accuracy"))
            return read(folder.path)
        experiment = prepare(settings, data_dir, scratch=folder.path)
        go_on(folder, experiment)
        with heard(settings, listen, progress, notify, folder, resumed=True) as hear:
            return finished(experiment, folder, *play_in_folder(experiment, folder, hear, notify))


def prepare(
    settings: Settings, data_dir: str | Path | None = None, *, scratch: Path | None = None, sketched: bool = False
) -> Experiment:
    """The experiment of the settings; rates, cohorts, devices or limits that do not fit its clients are refused.

    A `sketched` one is for a dry run (`build_task`).
    """
    settings, cut = settled(settings, data_dir)
    world = build_world(settings, data_dir, scratch, sketched=sketched)
    given, settings = settings, within_budget(settings, world.ledger)
    accountant = Accountant(settings.radio, world)
    planner = Planner(settings.allocation, accountant, settings.rounds, settings.theory)
    _check_uploads(world, planner.plan(0).plan)  # refuses now what would fail in the first round
    for first, own in world.later if settings.allocation.rule == "own" else ():
        _check_uploads(own, own.plan(first))
    accountants = [Accountant(settings.radio, own) for _, own in world.later]
    later = tuple(Planner(settings.allocation, each, settings.rounds, settings.theory) for each in accountants)
    return Experiment(settings, world, planner, given, cut, later)


def _check_uploads(world: World, plan: RoundPlan) -> None:
    """Refuse keep rates so small that a client would upload nothing and learn nothing from the others."""
    size = world.split.shared_size
    empty = (world.entries(plan) == 0) & (plan.k > 0)
    if size and empty.any():
        place = int(empty.argmax())
        raise SettingsError(
            f"algorithm.k = {plan.k[place]:g} leaves none of the {size} shared values for client "
            f"{plan.participants[place]} to upload. Set it to {1 / size:.2g} or more."
        )


def build_world(
    settings: Settings, data_dir: str | Path | None = None, scratch: Path | None = None, *, sketched: bool = False
) -> World:
    """The task and method of the settings; `scratch` is a folder for client states that do not fit into memory."""
    root = None if data_dir is None else Path(data_dir)
    task = build_task(settings.task, settings.seed, root, sketched=sketched)
    if settings.adversary.kind == "label-flip":
        task = flipped(task, settings.adversary.liars(task.clients, task.seed))
    if settings.adversary.kind == "backdoor":
        task = poisoned(task, settings.adversary)
    world = World(
        task=task,
        algorithm=settings.algorithm,
        training=settings.training,
        participation=settings.participation,
        renew_statistics=settings.evaluation.renew_statistics,
        tuning=settings.evaluation.tuning(settings.algorithm, settings.training),
        scratch=scratch,
        aggregation=settings.aggregation,
        adversary=settings.adversary,
        ledger=_ledger(settings, task),
        metrics=settings.privacy.metrics,
        values=settings.radio.values or "float32",
        differences=settings.radio.differences,
        device=device_of(settings.run.device),
        precision=settings.run.precision,
        reports=settings.allocation.measures,
        panel=settings.evaluation.clients,
    )
    world = with_schedule(with_widths(world, settings))
    check_fit(world)
    return world


def _ledger(settings: Settings, task: Task) -> Ledger | None:
    """The privacy of a run; its divisor is the number of clients that a round expects, which is public."""
    if settings.privacy.unit == "none":
        return None
    who, clients = settings.participation, task.clients
    poisson = who.selection == "poisson"
    asked = who.fraction * clients if poisson else max(1, round(who.fraction * clients))
    return Ledger(settings.privacy, who.fraction if poisson else 1.0, asked, clients, settings.rounds, task.seed)


def within_budget(settings: Settings, ledger: Ledger | None) -> Settings:
    """The settings with as many rounds as the privacy budget allows."""
    if ledger is None or ledger.affordable == settings.rounds:
        return settings
    if not ledger.affordable:
        raise SettingsError(
            f"privacy.epsilon = {settings.privacy.epsilon:g} does not allow a single round at noise_multiplier = "
            f"{ledger.noise:g}: it costs {ledger.epsilon(1):.3g}. Raise one of the two."
        )
    return settings.model_copy(update={"rounds": ledger.affordable})


def engine_of(settings: Settings, world: World, ranks: Ranks = ALONE, begun: str | None = None) -> Engine:
    """What computes the rounds, as before in a run that was `begun` on it; ranks on one machine share its cores."""
    wire = settings.radio.wire_type if settings.radio.wire else None
    threads = settings.run.threads
    if ranks.size > 1:
        threads = max(1, min(threads, (os.cpu_count() or 1) // ranks.on_host))
    return choose_engine(world, settings.run.engine, threads, wire=wire, ranks=ranks, begun=begun)


def fingerprint(task: Task) -> str:
    """A digest of the data as dealt to clients: a run goes on only with the data it began with."""
    content = hashlib.sha256(task.train.labels.tobytes() + task.test.labels.tobytes())
    for part in (task.train, task.test):
        if isinstance(part, Rows):  # files are known by their checksums, arrays only by what they hold
            content.update(part.digest())
    for rows in (task.partition.train, task.partition.test):
        for each in [rows.digest()] if isinstance(rows, DrawnRows) else (own.tobytes() for own in rows):
            content.update(each)
    return content.hexdigest()


def environment() -> dict[str, Any]:
    """Versions and machine, for later readers of the results."""
    return {
        "format": FORMAT,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": dict(_versions()),
        "commit": _commit(),
        "command": _command(sys.argv),
    }


@cache
def _versions() -> dict[str, str]:
    """Of the packages that results may depend on; reading them takes a tenth of a short run."""
    return {name: version(name) for name in TRACKED}


def _command(arguments: Sequence[str]) -> str:
    """The command line as it can be given again, without the values of secrets: the folder may be shown to anyone."""
    program = Path(arguments[0])
    own = program.parts[-3:-1] == ("leanfed", "cli")  # python -m leanfed.cli
    words = ["leanfed" if own else program.name, *arguments[1:]]
    for place, word in enumerate(words):
        option, equals, _ = word.partition("=")
        if option in SECRET and equals:
            words[place] = f"{option}=..."
        elif option in SECRET and place + 1 < len(words):
            words[place + 1] = "..."
    return shlex.join(words)


def _commit() -> str | None:
    """The commit of the source tree, when leanfed runs from one."""
    here = Path(__file__).resolve().parent
    try:
        found = subprocess.run(
            ["git", "-C", str(here), "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip()


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


def _play_in_memory(experiment: Experiment, listen: Listener) -> Run:
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
    table = _with_theory(settings, pl.concat(rounds))
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


def finished(experiment: Experiment, folder: RunFolder, checkpoints: Checkpoints, progress: Progress) -> Run:
    """The final files of a run whose last round is saved."""
    checkpoints.complete(progress.clients)
    return finish_folder(experiment.settings, experiment.world, folder, checkpoints.tables(), progress)


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


def finish_folder(
    settings: Settings, world: World, folder: RunFolder, tables: dict[str, pl.DataFrame], progress: Progress
) -> Run:
    """Write the tables, the weights and, last, the summary."""
    tables = {**tables, "rounds": _with_theory(settings, tables["rounds"])}
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


def _with_theory(settings: Settings, rounds: pl.DataFrame) -> pl.DataFrame:
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
