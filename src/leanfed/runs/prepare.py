"""From settings to an experiment: its world, its planners, the engine that computes it."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from leanfed.errors import SettingsError
from leanfed.records import RoundPlan
from leanfed.rounds.adversary import flipped
from leanfed.rounds.backdoor import poisoned
from leanfed.rounds.costs import Accountant
from leanfed.rounds.cuts import CutChoice
from leanfed.rounds.engine import Engine
from leanfed.rounds.forms import AllocationSettings
from leanfed.rounds.planning import Planner
from leanfed.rounds.privacy import Ledger
from leanfed.rounds.ranks import ALONE, Ranks
from leanfed.rounds.switch import with_schedule
from leanfed.rounds.world import World, check_fit
from leanfed.runs.cuts import settled
from leanfed.runs.settings import Settings
from leanfed.runs.widths import with_widths
from leanfed.simulation.choose import choose_engine
from leanfed.simulation.devices import device_of
from leanfed.tasks.arrays import Rows
from leanfed.tasks.drawn import DrawnRows
from leanfed.tasks.task import Task, build_task


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
    _check_rates(settings.allocation, world)
    planner.plan(0)  # refuses now what would fail in the first round
    accountants = [Accountant(settings.radio, own) for _, own in world.later]
    later = tuple(Planner(settings.allocation, each, settings.rounds, settings.theory) for each in accountants)
    return Experiment(settings, world, planner, given, cut, later)


def _check_rates(allocation: AllocationSettings, world: World) -> None:
    """Refuse stated rates that leave a client nothing to upload; a planner may do so, and then its head is trained."""
    if allocation.rule == "own":
        for first, own in ((0, world), *world.later):
            _check_uploads(own, own.plan(first), "algorithm.k")
        return
    cohort = world.cohort(0)
    for name in ("first_k", "k_max"):
        if (k := getattr(allocation, name)) is not None:
            stated = RoundPlan(0, cohort, np.full(len(cohort), k), np.ones(len(cohort)))
            _check_uploads(world, stated, f"allocation.{name}")


def _check_uploads(world: World, plan: RoundPlan, stated: str) -> None:
    """Refuse keep rates so small that a client would upload nothing and learn nothing from the others."""
    size = world.split.shared_size
    empty = (world.entries(plan) == 0) & (plan.k > 0)
    if size and empty.any():
        place = int(empty.argmax())
        raise SettingsError(
            f"{stated} = {plan.k[place]:g} leaves none of the {size} shared values for client "
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
