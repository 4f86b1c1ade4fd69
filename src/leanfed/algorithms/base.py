"""The interface of a federated method: what clients compute, how the server updates, which model a client then uses."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, Self

import numpy as np
import torch
from pydantic import BeforeValidator, Field
from torch import Tensor

from leanfed.algorithms.contract import (
    ClientState,
    Cohort,
    Learner,
    ServerState,
    Training,
    Tuning,
    Updates,
    Weights,
    Work,
)
from leanfed.algorithms.optimizers import VELOCITY
from leanfed.algorithms.stepping import optimizer_memories
from leanfed.errors import SettingsError
from leanfed.records import Floats, Ints, Section, kept_counts
from leanfed.registry import Registry
from leanfed.tasks.split import Split
from leanfed.tasks.task import Task

KeepRate = Annotated[float, Field(gt=0, le=1)]
UploadForm = Literal["dense", "sparse", "common", "mask"]


def _keep_rates(value: Any) -> Any:
    """One keep rate, or one per client."""
    rates = value if isinstance(value, list | tuple) else (value,)
    if not rates or not all(isinstance(rate, int | float) and 0 < rate <= 1 for rate in rates):
        raise ValueError("a keep rate must be above 0 and at most 1 (one number, or a list with one per client)")
    return tuple(float(rate) for rate in rates) if isinstance(value, list | tuple) else float(value)


KeepRates = Annotated[float | tuple[float, ...], BeforeValidator(_keep_rates)]


class Algorithm(Section):
    """A federated method: its settings, and the functions that a simulator or a single device calls.

    A method is written once, for C clients at a time; engines choose C, a device has C = 1. A toy method with the loss
    |w - sample|^2 / 2 at w = [shared | private], where both parts are single numbers:

    >>> from leanfed.algorithms.local import local_steps
    >>> from leanfed.algorithms.uploads import Dense
    >>> from leanfed.tasks.batch import Batch
    >>> class Whole(Algorithm):
    ...     def client_update(self, shared, cohort, learner):
    ...         run = local_steps(shared, cohort, learner)
    ...         return Updates(Dense(run.gradient, len(shared)), run.private, {}, run.loss, run.samples)
    >>> class Toy:
    ...     def loss_and_gradient(self, weights, batch):
    ...         gap = torch.cat([weights.shared.expand(2, -1), weights.private], 1) - batch.inputs[:, 0]
    ...         return gap.square().sum(1) / 2, gap
    >>> samples = Batch(torch.tensor([[[1.0, 2.0]], [[3.0, 4.0]]]), torch.zeros(2, 1))
    >>> whole, heads = np.ones(2), torch.zeros(2, 1)
    >>> cohort = Cohort((4, 7), 0, 0, Training(learning_rate=0.5), whole, whole, heads, {}, [samples], steps=1)
    >>> updates = Whole().client_update(torch.zeros(1), cohort, Toy())
    >>> updates.private.tolist(), [upload.values.tolist() for upload in updates.uploads]
    ([[1.0], [2.0]], [[-1.0], [-3.0]])
    """

    def divide(self, split: Split) -> Split:
        """Which part of the model this method shares; by default the base."""
        return split

    def misfit(self, split: Split) -> str | None:
        """Why the method cannot train a model that it divides like this, as a clause; None if it can."""
        return None

    def rates(self, clients: int) -> tuple[Floats, Floats]:
        """The method's own keep rates (k, r) for each client, where no allocator decides."""
        return np.ones(clients), np.ones(clients)

    def notes(self) -> tuple[str, ...]:
        """Warnings about these settings, shown before a run."""
        return ()

    @property
    def upload_form(self) -> UploadForm:
        """What an upload contains: every value, values with their positions, values at the positions that all clients
        send and the server knows (common), or one bit per entry."""
        return "dense"

    def work(self, batches: Floats | float) -> Work:
        """What a client computes on each sample, in a round of so many batches; latency, energy and plans follow."""
        return Work()

    def preparation(self) -> int:
        """Samples of whole steps that every client takes before round 0, in which they are charged."""
        return 0

    def shortened(self, steps: int) -> Self:
        """The same method with at most so many of each kind of step that settings can multiply, for a trial."""
        return self

    def prunable(self, split: Split) -> int:
        """How many weights the keep rate r applies to: that share of them takes part in a client's computation."""
        return 0

    @property
    def prunes_units(self) -> bool:
        """Whether r applies to whole units of the private part, which clients then get as `Cohort.units`."""
        return False

    def pruned_layers(self, split: Split) -> tuple[str, ...]:
        """The parameters that r applies to, of a method that prunes whole rows of some layers; else none."""
        return ()

    def vector_size(self, split: Split) -> int:
        """Entries of the server's vector and of an upload: d_shared, unless the method sends something along."""
        return split.shared_size

    def private_size(self, split: Split) -> int:
        """Values in a client's private part: weights, or the scores of a method that trains masks."""
        return split.private_size

    def entries(self, split: Split, k: Floats, r: Floats) -> Ints:
        """How many values clients upload at these keep rates, known before they train."""
        return kept_counts(k, split.shared_size)

    def holds(self, split: Split, training: Training) -> dict[str, int]:
        """The memories that a client keeps besides its private part: name -> size.

        They start as zeros, are passed to `client_update` in `Cohort.memory` and returned in `Updates.memory`.
        """
        return optimizer_memories(training, *self.stepped_sizes(split))

    def stepped_sizes(self, split: Split) -> tuple[int, int]:
        """Values of the shared and of the private part that a client's local steps move."""
        return split.shared_size, self.private_size(split)

    def optimizer_misfit(self, split: Split, training: Training) -> str | None:
        """Why local steps cannot follow another optimiser than SGD, as a clause with the way out; None if they can."""
        _, private = self.stepped_sizes(split)
        if training.optimizer_part == "private" and not private:
            return "it has no private part; set training.optimizer_part = 'all'"
        if training.optimizer_part == "all" and self.upload_form in ("sparse", "common"):
            return (
                "it sends chosen entries of a gradient, and an optimiser changes which are the largest; set "
                "training.optimizer_part = 'private' or training.optimizer = 'sgd'"
            )
        return None

    def start_server(self, task: Task) -> ServerState:
        """The server's state before the first round."""
        return ServerState(task.initial_shared(self.divide(task.split)))

    def start_client(self, task: Task, client: int) -> ClientState:
        """The state of a client before its first round."""
        return ClientState(task.initial_private(self.divide(task.split), client))

    @abstractmethod
    def client_update(self, shared: Tensor, cohort: Cohort, learner: Learner) -> Updates:
        """Train a cohort's clients from the server's shared part (d_shared,); returns what they upload and keep."""

    def step(
        self, server: ServerState, mean: Tensor, training: Training, round_number: int, taken: float = 1.0
    ) -> ServerState:
        """Move the shared part along the aggregated uploads, Eq. (6); `taken` is the participants' sum of gamma_n."""
        return descend(server, mean, training, round_number)

    def trained_weights(self, shared: Tensor, cohort: Cohort, learner: Learner) -> Weights:
        """The models at which the first gradients are taken, pruned where the method prunes.

        It may read the cohort's first batch, which is then gone.
        """
        return Weights(shared.unsqueeze(0), cohort.private)

    def tuning(self, training: Training) -> Tuning:
        """Steps by which a client adapts its model when it is used, in methods that leave this to the end."""
        return Tuning()

    def personal_weights(self, server: ServerState, private: Tensor, learner: Learner) -> Weights:
        """The models that clients predict with, given their private parts (C, d_private)."""
        return Weights(server.shared.unsqueeze(0), private)


ALGORITHMS: Final[Registry[type[Algorithm]]] = Registry("algorithm", group="leanfed.methods")


def descend(server: ServerState, gradient: Tensor, training: Training, round_number: int) -> ServerState:
    """w - eta g, Eq. (6); with momentum w - eta v, v = momentum v + g."""
    memory = dict(server.memory)
    if momentum := training.server_momentum:
        gradient = gradient.add(memory.get(VELOCITY, torch.zeros_like(gradient)), alpha=momentum)
        memory[VELOCITY] = gradient
    return ServerState(server.shared.sub(gradient, alpha=training.rate(round_number)), memory)


def per_client(value: float | Sequence[float], clients: int, name: str) -> Floats:
    """(clients,) rates from one number, or from a list with one number per client."""
    rates = np.atleast_1d(np.asarray(value, dtype=np.float64))
    if len(rates) not in (1, clients):
        raise SettingsError(f"{name} lists {len(rates)} rates for {clients} clients. Give one number or {clients}.")
    return np.broadcast_to(rates, (clients,)).copy()
