"""Planning for real devices: the simulator's planner over what the nodes report."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from typing_extensions import override

from leanfed.deployment.learning.reported_fleet import ReportedFleet
from leanfed.records import Floats
from leanfed.rounds.costs import Accountant
from leanfed.rounds.planning import Planned, Planner
from leanfed.rounds.world import World, check_fit
from leanfed.runs.settings import Settings
from leanfed.streams import stream
from leanfed.tasks.datasets import DATASETS
from leanfed.tasks.hub_sets import add_hub_set, is_hub_set
from leanfed.tasks.models import MODELS
from leanfed.tasks.partition import Partition
from leanfed.tasks.task import Images, Task


@dataclass(frozen=True)
class FarTask(Task):
    """A task whose samples are on the devices: the server knows only how many each client has."""

    guesses: Floats = field(default_factory=lambda: np.zeros(0))

    @override
    def constant_guess(self, clients: Iterable[int]) -> Floats:  # as the clients report it
        return self.guesses[list(clients)]


@dataclass(frozen=True)
class FarWorld(World):
    """A world whose clients are reached over a network: a round may ask more of them than it needs."""

    over_selection: float = 0.0

    @override
    def cohort(self, round_number: int, reachable: Collection[int] | None = None) -> tuple[int, ...]:
        """The settings' own cohort, and of the others that can be reached some more, drawn anew each round."""
        asked = super().cohort(round_number, reachable)
        others = sorted(set(reachable or ()) - set(asked))
        if not self.over_selection or not others:
            return asked
        wanted = math.ceil((1 + self.over_selection) * len(super().cohort(round_number)))  # absent ones are made up for
        more = min(wanted - len(asked), len(others))
        drawn = stream(self.task.seed, "over-selection", round_number).choice(others, more, replace=False)
        return tuple(sorted((*asked, *drawn.tolist())))


def far_world(
    settings: Settings, samples: Mapping[int, int], guesses: Mapping[int, float], over_selection: float = 0.0
) -> World:
    """The server's world: clients with their reported sample counts, zero for a client that has not reported."""
    clients = settings.task.partition.counted()
    counts = [samples.get(client, 0) for client in range(clients)]
    rows = tuple(np.broadcast_to(np.int64(0), count) for count in counts)  # no memory, whatever a node says to have
    task = FarTask(
        settings.task,
        settings.seed,
        _no_images(settings),
        _no_images(settings),
        Partition(rows, rows),
        guesses=np.array([guesses.get(client, 0.0) for client in range(clients)]),
    )
    rule = settings.aggregation
    given = (task, settings.algorithm, settings.training, settings.participation)
    reports = settings.allocation.measures
    metrics = settings.privacy.metrics
    world = FarWorld(*given, aggregation=rule, over_selection=over_selection, reports=reports, metrics=metrics)
    check_fit(world)
    return world


def _no_images(settings: Settings) -> Images:
    if is_hub_set(settings.task.dataset):
        add_hub_set(settings.task.dataset, settings.task.hub)
    spec = DATASETS[settings.task.dataset]
    shape = (0, *(MODELS[settings.task.model].input_shape or ()))  # nothing is looked at, of pictures or of texts
    mean, deviation = (torch.tensor(values).reshape(-1, 1, 1) for values in (spec.mean, spec.deviation))
    return Images(np.zeros(shape, dtype=np.uint8), np.zeros(0, dtype=np.int64), mean, deviation)


class FleetPlanner:
    """The planner of a run, its world and its cost model; a round that is repeated is planned from the same memory."""

    def __init__(self, settings: Settings, world: World, *, measured: bool) -> None:
        self.world = world
        self.available: frozenset[int] = frozenset()  # who could be reached when the last plan was made
        self.accountant = Accountant(settings.radio, world)
        self.reports = ReportedFleet(settings.radio, world, self.accountant.fleet) if measured else None
        if self.reports is not None:
            self.accountant.fleet = self.reports
        # The server has no samples to measure the theory's constants on: the given prices stand for them.
        allocation = settings.allocation.model_copy(update={"theta": "given"})
        self.planner = Planner(allocation, self.accountant, settings.rounds)
        self._before = self.planner.memory()

    def plan(self, number: int, available: Collection[int]) -> Planned | None:
        """The plan of a round for the available clients; None where none of its cohort is available."""
        self.available = frozenset(available)
        if not self.world.cohort(number, self.available):
            return None
        if self.reports is not None:
            self.reports.renew(number)
        self._before = self.planner.memory()
        return self.planner.plan(number, self.available)

    def undo(self) -> None:
        """Forget the last plan: its round had no quorum."""
        self.planner.remember(self._before)

    def done(self, number: int, accepted: Collection[int]) -> None:
        """Count who really took part."""
        absent = np.array(self._before["absent"]) + 1
        absent[list(accepted)] = 0
        self.planner.remember({**self.planner.memory(), "next": number + 1, "absent": absent.tolist()})
