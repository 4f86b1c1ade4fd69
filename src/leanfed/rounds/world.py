"""A world: the task, the method that learns it, how clients train, and who takes part in which round."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from torch import Tensor

from leanfed.algorithms.base import Algorithm, Job, Training
from leanfed.records import Floats, RoundPlan
from leanfed.rounds.client_store import ClientStore
from leanfed.rounds.selection import Moment, select
from leanfed.rounds.selection import Participation as Participation
from leanfed.streams import stream
from leanfed.tasks.chain import Chain, tail_share
from leanfed.tasks.models import MODELS
from leanfed.tasks.split import FlatModel, Split
from leanfed.tasks.task import Task, draw_rows


@dataclass(frozen=True)
class World:
    """All that stays the same over the rounds of a run."""

    task: Task
    algorithm: Algorithm
    training: Training
    participation: Participation
    renew_statistics: int = 0  # batches on which a client renews its running statistics before a test
    scratch: Path | None = None  # folder for client states that do not fit into memory

    @cached_property
    def split(self) -> Split:
        """What this method shares and what it keeps private."""
        return self.algorithm.divide(self.task.split)

    def new_model(self) -> FlatModel:
        """A model to compute with, laid out for this method."""
        model = self.task.new_model("base")
        return FlatModel(model, self.split, share_statistics=self.task.settings.statistics == "shared")

    @cached_property
    def statistics_size(self) -> int:
        """How many running statistics a client uploads beside its gradient; none unless the task shares them."""
        return len(self.new_model().statistics.places) if self.task.settings.statistics == "shared" else 0

    @cached_property
    def head_step_share(self) -> float:
        """Multiply-adds of one more step of the private part, as a share of a step of the whole model.

        It goes on from features that are there already; where a model cannot be cut, it takes the whole way again.
        """
        model, shape = self.task.new_model("base"), MODELS[self.task.settings.model].input_shape
        if not isinstance(model, Chain) or shape is None:
            return 1.0
        return tail_share(model, self.split.private, shape)

    def new_clients(self) -> ClientStore:
        """The clients before their first round."""
        algorithm, task = self.algorithm, self.task
        return ClientStore(task.clients, lambda client: algorithm.start_client(task, client), scratch=self.scratch)

    def cohort(self, round_number: int) -> tuple[int, ...]:
        """The clients asked in a round, increasing; they follow from seed and round alone."""
        return select(self.participation, Moment(round_number, self.task.seed, self.task.clients))

    def plan(self, round_number: int) -> RoundPlan:
        """The round's participants with the method's own keep rates."""
        cohort = self.cohort(round_number)
        k, r = self.algorithm.rates(self.task.clients)
        chosen = np.array(cohort)
        return RoundPlan(round_number, cohort, k[chosen], r[chosen])

    def samples(self, clients: tuple[int, ...]) -> Floats:
        """How many samples each of these clients goes through in a round."""
        if self.training.local_epochs is None:
            return np.full(len(clients), float(self.training.batch_size * self.training.local_steps))
        return self.training.local_epochs * self.task.partition.sizes[list(clients)].astype(float)

    def renewal(self, client: int) -> Iterator[Tensor]:
        """Batches of a client's own training inputs, the same at every test."""
        rows, rng = self.task.partition.train[client], stream(self.task.seed, "renewal", client)
        for _ in range(self.renew_statistics):
            yield self.task.train.batch(draw_rows(rows, self.training.batch_size, rng)).inputs

    def job(self, client: int, round_number: int, k: float, r: float) -> Job:
        """One client's part of a plan."""
        settings = self.training
        batches = self.task.batches(
            client, round_number, settings.batch_size, steps=settings.local_steps, epochs=settings.local_epochs
        )
        return Job(client, round_number, self.task.seed, settings, batches, k, r)
