"""Test results of the clients' own models on their own test sets."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from pydantic import Field
from torch.nn import functional

from leanfed.algorithms.contract import ClientState, ServerState
from leanfed.algorithms.learner import FlatLearner
from leanfed.records import Floats, Ints, Section
from leanfed.rounds.client_store import ClientStore
from leanfed.rounds.exchange import personal_model
from leanfed.rounds.world import World
from leanfed.tasks.task import Task

BATCH = 200  # test samples per forward pass


class EvaluationSettings(Section):
    """When and what to evaluate."""

    every: int = Field(default=10, ge=1)
    """Rounds from one evaluation to the next; the last round is always evaluated."""
    per_client: bool = False
    """Write each client's accuracy into the clients table."""
    renew_statistics: int = Field(default=0, ge=0, le=10_000)
    """Before a test, renew running statistics on this many batches of the client's own training samples; 0: do not."""


@dataclass(frozen=True)
class Hits:
    """Counts for the F1 score of class 1, in a task with two classes."""

    true: int  # of class 1 and predicted as such
    named: int  # predicted as class 1
    present: int  # of class 1

    @property
    def f1(self) -> float:
        """2 TP / (2 TP + FP + FN); 0 if class 1 neither occurs nor is predicted."""
        return 2 * self.true / (self.named + self.present) if self.named + self.present else 0.0

    @classmethod
    def count(cls, answers: Ints, labels: Ints) -> Hits:
        """The counts of some predictions."""
        named, present = answers == 1, labels == 1
        return cls(int(np.sum(named & present)), int(np.sum(named)), int(np.sum(present)))

    def __add__(self, other: Hits) -> Hits:
        return Hits(self.true + other.true, self.named + other.named, self.present + other.present)


@dataclass(frozen=True)
class Evaluation:
    """Test results of every client, and the paper's weighted means over them."""

    accuracy_per_client: Floats
    loss_per_client: Floats
    gamma: Floats
    hits: Hits | None = None  # None unless there are two classes

    @property
    def accuracy(self) -> float:
        """Accuracy weighted by gamma_n."""
        return float(self.gamma @ self.accuracy_per_client)

    @property
    def loss(self) -> float:
        """Mean loss weighted by gamma_n."""
        return float(self.gamma @ self.loss_per_client)

    @property
    def f1(self) -> float | None:
        """F1 of class 1, pooled over all clients' test samples; None unless there are two classes."""
        return None if self.hits is None else self.hits.f1

    @property
    def worst_decile(self) -> float:
        """Mean accuracy of the worst tenth of the clients that count (rounded up to whole clients)."""
        counted = self.accuracy_per_client[self.gamma > 0]
        return float(np.sort(counted)[: math.ceil(len(counted) / 10)].mean())


def evaluate(world: World, server: ServerState, clients: ClientStore, learner: FlatLearner) -> Evaluation:
    """Test every client's model on its own test set."""
    results = [client_result(world, server, clients[client], learner, client) for client in range(world.task.clients)]
    return gathered(world, results)


def gathered(world: World, results: Iterable[tuple[float, float, Hits]]) -> Evaluation:
    """The evaluation from (accuracy, mean loss, hits) of every client."""
    accuracy, loss, hits = zip(*results, strict=True)
    pooled = sum(hits, start=Hits(0, 0, 0)) if world.task.classes == 2 else None
    return Evaluation(np.array(accuracy), np.array(loss), world.judged, pooled)


def client_result(
    world: World, server: ServerState, state: ClientState, learner: FlatLearner, client: int
) -> tuple[float, float, Hits]:
    """(accuracy, mean loss, hits) of one client's model on its own test set."""
    weights, model = personal_model(world.algorithm, server, state, learner), learner.model
    if world.renew_statistics:
        model.measure_statistics(weights, world.renewal(client))
    rows = world.task.partition.test[client]
    right, loss, hits = 0, 0.0, Hits(0, 0, 0)
    for start in range(0, len(rows), BATCH):
        batch = world.task.test.batch(rows[start : start + BATCH])
        logits = model.logits(weights, batch.inputs)
        answers = logits.argmax(dim=1)
        right += int(torch.sum(answers == batch.labels))
        hits += Hits.count(answers.numpy(), batch.labels.numpy())
        loss += float(functional.cross_entropy(logits, batch.labels, reduction="sum"))
    return right / len(rows), loss / len(rows), hits


def majority_f1(task: Task) -> float | None:
    """Pooled F1 if every client predicts its most frequent training label; None unless there are two classes."""
    if task.classes != 2:
        return None
    guesses = np.repeat(task.majority_labels, [len(rows) for rows in task.partition.test])
    return Hits.count(guesses, task.test.labels[np.concatenate(task.partition.test)]).f1
