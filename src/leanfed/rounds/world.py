"""A world: the task, the method, how clients train, and who takes part in which round."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from leanfed.algorithms.base import Algorithm
from leanfed.algorithms.contract import PRIVATE, ClientState, Cohort, Training, Tuning
from leanfed.algorithms.learner import FlatLearner
from leanfed.compression.selection import common
from leanfed.errors import SettingsError
from leanfed.records import Floats, Ints, RoundPlan
from leanfed.rounds.adversary import Adversary
from leanfed.rounds.aggregation import Aggregation, WeightedMean
from leanfed.rounds.broadcast import Differences
from leanfed.rounds.client_store import ClientStore
from leanfed.rounds.nested import STATISTICS, coverage, why_whole
from leanfed.rounds.privacy import Ledger, Metrics
from leanfed.rounds.selection import Moment, Participation, select
from leanfed.streams import stream
from leanfed.tasks.batch import CPU, Batch
from leanfed.tasks.chain import Chain, LayerWork, layer_work, stage_share, tail_share
from leanfed.tasks.models import MODELS, narrow_builder
from leanfed.tasks.nest import Nest, places_of
from leanfed.tasks.split import FlatModel, Precision, Split
from leanfed.tasks.statistics import Statistics
from leanfed.tasks.task import Task, draw_rows
from leanfed.tasks.units import Units, find_units

HANDED = "handed"  # the server's memory of layers that became private (`rounds.switch`), as they were then


@dataclass(frozen=True)
class World:
    """Everything that stays the same over the rounds of a run."""

    task: Task
    algorithm: Algorithm
    training: Training
    participation: Participation
    renew_statistics: int = 0  # batches on which a client renews its running statistics before a test
    tuning: Tuning = field(default_factory=Tuning)  # of a copy of a client's model, before a test
    scratch: Path | None = None  # folder for client states that do not fit into memory
    aggregation: Aggregation = field(default_factory=WeightedMean)
    adversary: Adversary = field(default_factory=Adversary)
    ledger: Ledger | None = None  # of a private run
    metrics: Metrics = "shown"  # what is told of the clients' data beside the shared part
    values: str = "float32"  # what uploaded values travel as
    differences: Differences | None = None  # how differences are sent down; None: the shared part itself is
    device: torch.device = CPU  # where clients' models are trained and tested
    precision: Precision = "float32"  # of forward passes
    reports: bool = False  # whether clients say what the planner measures progress by
    panel: int | None = None  # how many clients are tested; None: all
    widths: tuple[float, ...] | None = None  # share of the channels of each client's model; None: all are whole
    later: tuple[tuple[int, World], ...] = ()  # (round, world): from that round on the model is cut elsewhere

    @cached_property
    def liars(self) -> frozenset[int]:
        """The clients that lie."""
        return self.adversary.liars(self.task.clients, self.task.seed)

    @property
    def tamperers(self) -> frozenset[int]:
        """Those of them that change their uploads, for which they must be seen one by one."""
        return self.liars if self.adversary.tampers else frozenset()

    @cached_property
    def tested(self) -> Ints:
        """The clients whose models are tested, increasing: all, or a panel that is drawn once."""
        if self.panel is None or self.panel >= self.task.clients:
            return np.arange(self.task.clients)
        return np.sort(stream(self.task.seed, "panel").choice(self.task.clients, self.panel, replace=False))

    @property
    def sampled(self) -> bool:
        """Whether only a panel of the clients is tested."""
        return len(self.tested) < self.task.clients

    @cached_property
    def judged(self) -> Floats:
        """gamma of the tested clients, normalised over those whose results count: without those that lie."""
        if not self.liars and not self.sampled:
            return self.task.gamma
        gamma = self.task.gamma[self.tested]
        gamma[np.isin(self.tested, list(self.liars))] = 0.0
        if not gamma.any():
            raise SettingsError(f"All {len(gamma)} tested clients lie. Raise evaluation.clients or the honest share.")
        return np.asarray(gamma / gamma.sum())

    @cached_property
    def guess(self) -> float:
        """The score of the best constant guess, as the tested clients are judged."""
        return float(self.judged @ self.task.constant_guess(self.tested))

    @cached_property
    def split(self) -> Split:
        """What this method shares and what it keeps private."""
        return self.algorithm.divide(self.task.split)

    def at(self, round_number: int) -> World:
        """The world of a round."""
        return ([self] + [world for first, world in self.later if first <= round_number])[-1]

    def laid_out(self, size: int) -> World:
        """The world whose shared part has so many values, as a state that was kept has them."""
        return next((world for _, world in self.later if world.vector_size == size), self)

    @cached_property
    def _inner(self) -> dict[float, tuple[World, Nest]]:
        return {}

    def inner(self, width: float) -> tuple[World, Nest]:
        """The world in which all models have this share of the channels, and where their values are in this one's."""
        if width not in self._inner:
            small = replace(self, task=replace(self.task, width=width), widths=None)
            own, whole = (Statistics(world.task.example_model).shapes for world in (small, self))
            shared = places_of(small.split.shared, self.split.shared)
            private = places_of(small.split.private, self.split.private)
            nest = Nest(width, shared, private, places_of(own, whole), self.split)
            self._inner[width] = small, nest
        return self._inner[width]

    def nest(self, client: int) -> Nest | None:
        """Where the values of a client's model are in the whole one's; None if it has all of them."""
        width = 1.0 if self.widths is None else self.widths[client]
        return None if width == 1.0 else self.inner(width)[1]

    def by_width(self, clients: Sequence[int]) -> Iterator[tuple[World, Ints]]:
        """(world, places): which of the clients have models of the same width, and the world in which all have."""
        if self.widths is None:
            yield self, np.arange(len(clients))
            return
        own = np.array([self.widths[client] for client in clients])
        for width in np.unique(own).tolist():
            yield self if width == 1.0 else self.inner(width)[0], np.flatnonzero(own == width)

    def coverage(self, participants: Sequence[int], gamma: Floats) -> Tensor:
        """(d_shared,) float64: the sum of gamma_n over the participants whose models have each entry."""
        return coverage([self.nest(client) for client in participants], gamma, self.vector_size)

    def entries(self, plan: RoundPlan) -> Ints:
        """How many values each participant of a plan uploads."""
        found = np.zeros(len(plan.participants), dtype=np.int64)
        for world, places in self.by_width(plan.participants):
            found[places] = self.algorithm.entries(world.split, plan.k[places], plan.r[places])
        return found

    @cached_property
    def private_size(self) -> int:
        """Values in a client's private part: weights, or the scores of a method that trains masks."""
        return self.algorithm.private_size(self.split)

    @cached_property
    def vector_size(self) -> int:
        """Entries of the server's vector and of an upload."""
        return self.algorithm.vector_size(self.split)

    @cached_property
    def holds(self) -> dict[str, int]:
        """The memories of a client by name, with the size of each."""
        return self.algorithm.holds(self.split, self.training)

    def support(self, round_number: int, entries: int) -> Ints | None:
        """The positions of so many values that all clients send in a round; None where each chooses its own."""
        if self.algorithm.upload_form != "common" or entries == self.vector_size:
            return None
        return common(self.vector_size, entries, self.task.seed, round_number)

    def new_learner(self, device: torch.device | None = None) -> FlatLearner:
        """A model to compute with, laid out for this method, on the world's device unless another is named."""
        model = self.task.new_model("base").to(self.device if device is None else device)
        shared, loss = self.task.settings.statistics == "shared", self.task.loss.compute
        flat = FlatModel(model, self.split, share_statistics=shared, loss=loss, precision=self.precision)
        narrower = sorted(set(self.widths or ()) - {1.0})
        # Built here and not in a worker: torch has one generator for all threads, which clients' heads are drawn from.
        return FlatLearner(flat, {width: self.inner(width)[0].new_learner(device) for width in narrower})

    @cached_property
    def statistics_size(self) -> int:
        """How many running statistics a client uploads with its gradient; zero unless the task shares them."""
        return len(self.new_learner().model.statistics.places) if self.task.settings.statistics == "shared" else 0

    @cached_property
    def units(self) -> Units | None:
        """The units of the private part, for a method that prunes them; refuses a model that has none."""
        return find_units(self.task.new_model("base"), self.split) if self.algorithm.prunes_units else None

    def unit_shares(self, r: float) -> tuple[float, float] | None:
        """Multiply-adds of (a step, a further step of the head) with the share r of the units, over a whole step's.

        None where they are not known: units are not pruned, or the model takes samples of any shape.
        """
        shape = MODELS[self.task.settings.model].input_shape
        if self.units is None or shape is None:
            return None
        count = {name: work.multiply_adds for name, work in self._layer_work.items()}
        head = {name: value for name, value in count.items() if f"{name}.weight" in self.split.private}
        whole, total = self.units.operations(count, r), sum(count.values())
        further = self.units.operations(head, r) if isinstance(self.units.model, Chain) else whole
        return whole / total, further / total

    @cached_property
    def step_time(self) -> float | None:
        """A step's time on a sample, counted in multiply-adds; None where the model takes samples of any shape."""
        if MODELS[self.task.settings.model].input_shape is None:
            return None
        return sum(work.time for work in self._layer_work.values())

    @cached_property
    def _layer_work(self) -> dict[str, LayerWork]:
        shape = MODELS[self.task.settings.model].input_shape
        assert shape is not None
        return layer_work(self.task.new_model("base"), shape)

    @cached_property
    def head_step_share(self) -> float:
        """Multiply-adds of a further step of the private part, as a share of a step of the whole model.

        Such a step reuses the features of the shared part; for a model that cannot be cut it is a whole step.
        """
        model, shape = self.task.new_model("base"), MODELS[self.task.settings.model].input_shape
        if not isinstance(model, Chain) or shape is None:
            return 1.0
        return tail_share(model, self.split.private, shape)

    @cached_property
    def pruned_operations(self) -> float:
        """Multiply-adds of the layers whose rows the method prunes, as a share of the whole model's.

        For a model that cannot be cut it is their share of the weights.
        """
        names, shape = self.algorithm.pruned_layers(self.split), MODELS[self.task.settings.model].input_shape
        model = self.task.new_model("base")
        if not isinstance(model, Chain) or shape is None:
            return self.algorithm.prunable(self.split) / self.split.size
        return stage_share(model, names, shape)

    def new_clients(self, handed: Tensor | None = None) -> ClientStore:
        """The clients before their first round; `handed` are values of layers that were shared before (`HANDED`)."""
        algorithm, task = self.algorithm, self.task

        def start(client: int) -> ClientState:
            state = algorithm.start_client(task, client)
            return (
                state if handed is None else replace(state, private=torch.cat([handed, state.private[len(handed) :]]))
            )

        return ClientStore(task.clients, start, scratch=self.scratch)

    def cohort(self, round_number: int, reachable: Collection[int] | None = None) -> tuple[int, ...]:
        """The clients asked in a round, increasing; of a fleet only those that can be reached."""
        now = Moment(round_number, self.task.seed, self.task.clients, reachable)
        asked = select(self.participation, now)
        return asked if reachable is None else tuple(client for client in asked if client in reachable)

    def plan(self, round_number: int, reachable: Collection[int] | None = None) -> RoundPlan:
        """The round's participants with the method's own keep rates."""
        cohort = self.cohort(round_number, reachable)
        k, r = self.algorithm.rates(self.task.clients)
        chosen = np.array(cohort, dtype=np.int64)
        return RoundPlan(round_number, cohort, k[chosen], r[chosen])

    def samples(self, clients: tuple[int, ...]) -> Floats:
        """How many samples each of these clients processes in a round."""
        if self.training.local_epochs is None:
            return np.full(len(clients), float(self.training.batch_size * self.training.local_steps))
        return self.training.local_epochs * self.task.partition.sizes[list(clients)].astype(float)

    def batches(self, clients: tuple[int, ...]) -> Floats:
        """How many batches each of these clients trains on in a round."""
        settings = self.training
        if settings.local_epochs is None:
            return np.full(len(clients), float(settings.local_steps))
        return settings.local_epochs * np.ceil(self.task.partition.sizes[list(clients)] / settings.batch_size)

    def own_batches(self, purpose: str, client: int, count: int) -> Iterator[Batch]:
        """Batches of a client's own training samples for its test, the same at every test."""
        rows, rng = self.task.partition.train[client], stream(self.task.seed, purpose, client)
        for _ in range(count):
            yield self.task.train.batch(draw_rows(rows, self.training.batch_size, rng))

    def alone(
        self, state: ClientState, client: int, number: int, k: float, r: float, head_steps: int | None = None
    ) -> Cohort:
        """One client's part of a round, as a cohort of one."""
        settings, rows = self.training, self.task.partition.train[client]
        drawn = self.task.batches(
            client, number, settings.batch_size, steps=settings.local_steps, epochs=settings.local_epochs
        )
        passes, batches = settings.local_epochs, -(-len(rows) // settings.batch_size)
        memory = {name: state.memory.get(name, torch.zeros(size)) for name, size in self.holds.items()}
        if STATISTICS in state.memory:
            memory[STATISTICS] = state.memory[STATISTICS]
        return Cohort(
            clients=(client,),
            round=number,
            seed=self.task.seed,
            training=settings,
            k=np.array([k]),
            r=np.array([r]),
            private=state.private.unsqueeze(0),
            memory={name: rows.unsqueeze(0) for name, rows in memory.items()},
            batches=(batch.alone() for batch in drawn),
            steps=settings.local_steps if passes is None else passes * batches,
            values=self.values,
            head_steps=head_steps,
            report=self.reports,
            units=self.units,
            nest=self.nest(client),
        )


def check_fit(world: World) -> None:
    """Refuse a method that cannot train the task's model, prune its units, or not with this optimiser or width."""
    _ = world.units
    _check_widths(world)
    method, model, optimizer = world.algorithm.model_dump()["name"], world.task.settings.model, world.training.optimizer
    if optimizer != "sgd" and (reason := world.algorithm.optimizer_misfit(world.split, world.training)):
        raise SettingsError(f"training.optimizer = {optimizer!r} does not fit algorithm.name = {method!r}: {reason}.")
    if reason := world.algorithm.misfit(world.split):
        raise SettingsError(
            f"algorithm.name = {method!r} does not fit task.model = {model!r}: {reason}. Change one of the two."
        )


def _check_widths(world: World) -> None:
    """Refuse widths that the model or the method cannot have."""
    if world.widths is None:
        return
    narrow_builder(world.task.settings.model)
    for width in sorted(set(world.widths) - {1.0}):
        small, nest = world.inner(width)
        if reason := why_whole(world.algorithm, nest, _sizes(small), _sizes(world)):
            method = world.algorithm.model_dump()["name"]
            raise SettingsError(
                f"[width] does not fit algorithm.name = {method!r}: {reason}. Leave [width] out, or choose fedper."
            )


def _sizes(world: World) -> dict[str, int]:
    """Sizes of the server's vector and of what a client keeps, by name."""
    return {"shared": world.vector_size, PRIVATE: world.private_size, **world.holds}
