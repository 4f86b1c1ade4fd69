"""Test results of the clients' own models on their own test sets."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from leanfed.algorithms.base import Algorithm
from leanfed.algorithms.contract import ClientState, ServerState, Training, Tuning
from leanfed.algorithms.learner import FlatLearner
from leanfed.records import Floats, Ints, Section
from leanfed.rounds.client_store import ClientStore
from leanfed.rounds.exchange import personal_model
from leanfed.rounds.nested import narrow_states
from leanfed.rounds.world import World
from leanfed.streams import stream_seed
from leanfed.tasks.guess import majority_label
from leanfed.tasks.losses import fit
from leanfed.tasks.split import FlatModel

BATCH = 200  # test samples per forward pass
MOST_LOSS = 700.0  # whose exp() a float can hold


class EvaluationSettings(Section):
    """When and what to evaluate."""

    every: int = Field(default=10, ge=1)
    """Rounds from one evaluation to the next; the last round is always evaluated."""
    clients: int | None = Field(default=None, ge=2)
    """Test only so many clients: a panel that is drawn once from the seed; its 95 % interval stands beside the means.
    None: all."""
    per_client: bool = False
    """Write each client's accuracy into the clients table."""
    tune_steps: int | None = Field(default=None, ge=0, le=10_000)
    """Before a test, steps of every client on a copy of its model, on its own training samples. None: as the method has
    it, which is none unless its paper adapts a model when it is used. They are not charged: they belong to that use."""
    tune_rate: float | None = Field(default=None, gt=0, le=1_000)
    """Learning rate of these steps. None: the method's, else training.learning_rate."""
    renew_statistics: int = Field(default=0, ge=0, le=10_000)
    """Before a test, renew running statistics on this many batches of the client's own training samples; 0: do not."""

    def tuning(self, algorithm: Algorithm, training: Training) -> Tuning:
        """What clients do with a copy of their models before a test."""
        steps, rate = algorithm.tuning(training)
        return Tuning(
            steps if self.tune_steps is None else self.tune_steps,
            self.tune_rate or rate or training.learning_rate,
        )


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
class ClientResult:
    """What one client's model scores on its own test set."""

    loss: float  # mean over its labels
    scores: Mapping[str, float]  # the loss's own scores: means of "accuracy", or of "mae" and "mse"
    hits: Hits


@dataclass(frozen=True)
class Results:
    """What the models of some clients score, in the order of the clients."""

    loss: Floats  # (clients,)
    scores: Mapping[str, Floats]  # name -> (clients,)
    hits: Hits  # of all of them

    @classmethod
    def of(cls, world: World, results: Iterable[ClientResult]) -> Results:
        """From the results of single clients."""
        found = list(results)
        scores = {name: np.array([result.scores[name] for result in found]) for name in world.task.loss.scores}
        hits = sum((result.hits for result in found), start=Hits(0, 0, 0))
        return cls(np.array([result.loss for result in found]), scores, hits)

    @classmethod
    def none(cls, world: World) -> Results:
        """Of no client."""
        return cls.of(world, ())


@dataclass(frozen=True)
class Evaluation:
    """Test results of every client, and the paper's weighted means over them."""

    accuracy_per_client: Floats  # empty where accuracy is no score of the task
    loss_per_client: Floats
    gamma: Floats
    hits: Hits | None = None  # None unless there are two classes
    errors: Mapping[str, Floats] = field(default_factory=dict)  # "mae", "mse" per client, where numbers are predicted
    perplexed: bool = False  # whether perplexity is a score of the task
    of_clients: int | None = None  # how many there are, where only a panel of them was tested

    @property
    def accuracy(self) -> float | None:
        """Accuracy weighted by gamma_n."""
        return float(self.gamma @ self.accuracy_per_client) if len(self.accuracy_per_client) else None

    @property
    def loss(self) -> float:
        """Mean loss weighted by gamma_n."""
        return float(self.gamma @ self.loss_per_client)

    @property
    def f1(self) -> float | None:
        """F1 of class 1, pooled over all clients' test samples; None unless there are two classes."""
        return None if self.hits is None else self.hits.f1

    @property
    def further(self) -> dict[str, float]:
        """Scores of tasks that are judged otherwise: mean absolute error, root mean square error, perplexity.

        All from means weighted by gamma_n: of |error|, of error^2 under the root, of the loss in exp(loss).
        """
        means = {name: float(self.gamma @ values) for name, values in self.errors.items()}
        found = {"mae": means["mae"], "rmse": math.sqrt(means["mse"])} if means else {}
        return found | ({"perplexity": math.exp(min(self.loss, MOST_LOSS))} if self.perplexed else {})

    @property
    def main(self) -> str:
        """What clients are judged by: accuracy, else the mean absolute error, else the loss."""
        return "accuracy" if len(self.accuracy_per_client) else "mae" if self.errors else "loss"

    @property
    def main_per_client(self) -> Floats:
        """Every client's value of the score that clients are judged by."""
        return {"accuracy": self.accuracy_per_client, "loss": self.loss_per_client, **self.errors}[self.main]

    @property
    def interval(self) -> float | None:
        """Half of the 95 % interval of the main score over draws of the panel; None where all were tested.

        1.96 sqrt((1 - M / N) sum of gamma_m^2 (score_m - mean)^2): the weighted mean of M of N clients.
        """
        if self.of_clients is None:
            return None
        values, share = self.main_per_client, len(self.gamma) / self.of_clients
        spread = self.gamma**2 @ (values - self.gamma @ values) ** 2
        return 1.96 * math.sqrt((1 - share) * float(spread))

    @property
    def worst_decile(self) -> float:
        """Mean accuracy (or error) of the worst tenth of the clients that count, rounded up to whole clients."""
        sign = 1.0 if self.main == "accuracy" else -1.0
        counted = sign * self.main_per_client[self.gamma > 0]
        return sign * float(np.sort(counted)[: math.ceil(len(counted) / 10)].mean())


def evaluate(world: World, server: ServerState, clients: ClientStore, learner: FlatLearner) -> Evaluation:
    """Test the models of the tested clients, each on its own test set."""
    return gathered(world, results_of(world, server, clients, learner, world.tested.tolist()))


def results_of(
    world: World, server: ServerState, clients: ClientStore, learner: FlatLearner, some: Iterable[int]
) -> Results:
    """Test the models of some clients, one after another."""
    return Results.of(world, (client_result(world, server, clients[client], learner, client) for client in some))


def gathered(world: World, tests: Results) -> Evaluation:
    """The evaluation from the tests of every client."""
    scores, task = dict(tests.scores), world.task
    pooled = tests.hits if task.classes == 2 else None
    accuracy = scores.pop("accuracy", np.empty(0))
    count = task.clients if world.sampled else None
    return Evaluation(accuracy, tests.loss, world.judged, pooled, scores, task.loss.perplexity, count)


def client_result(
    world: World, server: ServerState, state: ClientState, learner: FlatLearner, client: int
) -> ClientResult:
    """The scores of one client's model on its own test set."""
    world, server, state, learner = at_own_width(world, server, state, learner, client)
    weights = used_weights(world, server, state, learner, client)
    return scored(world, client, lambda inputs: learner.model.logits(weights, inputs))


def at_own_width(
    world: World, server: ServerState, state: ClientState, learner: FlatLearner, client: int
) -> tuple[World, ServerState, ClientState, FlatLearner]:
    """What a client's model is made of: the same, or the part that a narrower one has, in a world of that width."""
    nest = world.nest(client)
    if nest is None:
        return world, server, state, learner
    return world.inner(nest.width)[0], *narrow_states(nest, server, state), learner.nested[nest.width]


def used_weights(world: World, server: ServerState, state: ClientState, learner: FlatLearner, client: int) -> Tensor:
    """The weights (d,) that a client predicts with, after its tuning; its statistics are in the learner's model."""
    weights, model = torch.cat(personal_model(world.algorithm, server, state, learner)), learner.model
    if world.tuning.steps:
        weights = _tuned(world, weights, model, client)
    if world.renew_statistics:
        renewal = world.own_batches("renewal", client, world.renew_statistics)
        model.measure_statistics(weights, (batch.inputs for batch in renewal))
    return weights


def scored(world: World, client: int, predict: Callable[[Tensor], Tensor]) -> ClientResult:
    """The scores of a function from inputs to outputs on a client's own test set."""
    rows, spec = world.task.partition.test[client], world.task.loss
    loss, count, hits, sums = 0.0, 0, Hits(0, 0, 0), dict.fromkeys(spec.scores, 0.0)
    for start in range(0, len(rows), BATCH):
        batch = world.task.test.batch(rows[start : start + BATCH])
        outputs = fit(predict(batch.inputs).cpu(), batch.labels)
        for name, score in spec.scores.items():
            sums[name] += float(score(outputs, batch.labels).sum())
        if world.task.classes == 2:
            hits += Hits.count(outputs.argmax(dim=1).numpy(), batch.labels.numpy())
        loss += spec.summed(outputs, batch.labels)
        count += batch.labels.numel()
    return ClientResult(loss / count, {name: total / count for name, total in sums.items()}, hits)


def _tuned(world: World, weights: Tensor, model: FlatModel, client: int) -> Tensor:
    """A client's weights (d,) after its tuning; the model's running statistics go along."""
    random = torch.random.fork_rng(devices=[]) if model.random else nullcontext()
    with random:
        if model.random:
            torch.manual_seed(stream_seed(world.task.seed, "tuning", client) % 2**63)
        for batch in world.own_batches("tuning", client, world.tuning.steps):
            here = batch.to(model.device)
            _, gradient = model.step(weights, here.inputs, here.labels)
            weights = weights.sub(gradient, alpha=world.tuning.rate)
    return weights


def majority_f1(world: World) -> float | None:
    """Pooled F1 if every tested client predicts its most frequent training label; None unless there are two classes."""
    task = world.task
    if task.classes != 2:
        return None
    tests = [task.test.labels[task.partition.test[client]] for client in world.tested]
    guessed = [majority_label(task.train.labels[task.partition.train[client]]) for client in world.tested]
    guesses = np.repeat(guessed, [labels.size for labels in tests])
    return Hits.count(guesses, np.concatenate([labels.reshape(-1) for labels in tests])).f1
