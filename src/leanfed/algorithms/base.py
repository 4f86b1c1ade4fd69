"""The contract of a federated method: what a client does, what the server makes of it, what a client then owns."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

import numpy as np
import torch
from pydantic import BeforeValidator, Field
from torch import Tensor

from leanfed.errors import SettingsError
from leanfed.records import Floats, Ints, Section, kept_counts
from leanfed.registry import Registry
from leanfed.tasks.split import FlatModel, Split
from leanfed.tasks.task import Batch, Task

KeepRate = Annotated[float, Field(gt=0, le=1)]


def _keep_rates(value: Any) -> Any:
    """One keep rate, or one per client."""
    rates = value if isinstance(value, list | tuple) else (value,)
    if not rates or not all(isinstance(rate, int | float) and 0 < rate <= 1 for rate in rates):
        raise ValueError("a keep rate must be above 0 and at most 1 (one number, or a list with one per client)")
    return tuple(float(rate) for rate in rates) if isinstance(value, list | tuple) else float(value)


KeepRates = Annotated[float | tuple[float, ...], BeforeValidator(_keep_rates)]


class Training(Section):
    """How a client takes its local steps, the same for every method."""

    batch_size: int = Field(default=32, ge=1)
    """b, samples per step."""
    local_steps: int = Field(default=1, ge=1)
    """Steps per round; the paper's Algorithm 1 takes one."""
    local_epochs: int | None = Field(default=None, ge=1)
    """Passes over a client's data per round, instead of local_steps."""
    learning_rate: float = Field(default=0.1, gt=0)
    """eta in round 0."""
    learning_rate_decay: float = Field(default=1.0, gt=0, le=1)
    """eta is multiplied by this every round."""
    momentum: float = Field(default=0.0, ge=0, lt=1)
    """Of the server's step on the shared part and of the clients' steps on their private part."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Added to gradients as weight_decay x weights."""

    def rate(self, round_number: int) -> float:
        """eta of one round."""
        return self.learning_rate * self.learning_rate_decay**round_number


@dataclass(frozen=True)
class Job:
    """What one client is asked to do in one round."""

    client: int
    round: int
    seed: int
    training: Training
    batches: Iterable[Batch]
    k: float = 1.0  # keep rate of the shared gradient
    r: float = 1.0  # keep rate of the pruned weights

    @property
    def learning_rate(self) -> float:
        """eta of this round."""
        return self.training.rate(self.round)


@dataclass(frozen=True)
class ServerState:
    """What the server holds between rounds."""

    shared: Tensor
    memory: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class ClientState:
    """What never leaves a client: its private weights and the memories of its method, by name."""

    private: Tensor
    memory: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Upload:
    """What a client sends: values at increasing positions of the shared vector, or all of it (positions None)."""

    size: int  # length of the shared vector
    values: Tensor  # (entries,) float32, or bool for a mask
    positions: Tensor | None = None  # (entries,) int64
    statistics: Tensor | None = None  # running statistics of shared layers, where a task shares them

    @property
    def entries(self) -> int:
        """How many values travel."""
        return len(self.values)


@dataclass(frozen=True)
class ClientUpdate:
    """A client's answer to a job."""

    upload: Upload
    client: ClientState
    loss: float  # mean over the round's steps, on the weights that were trained
    samples: int  # samples processed


class Algorithm(Section):
    """A federated method: its settings, and a few verbs that a simulator or a single device can call."""

    def divide(self, split: Split) -> Split:
        """Which part of the model this method shares; by default the base."""
        return split

    def rates(self, clients: int) -> tuple[Floats, Floats]:
        """The method's own keep rates (k, r) for each client, where no allocator decides."""
        return np.ones(clients), np.ones(clients)

    def notes(self) -> tuple[str, ...]:
        """What a user should know of these settings before a run."""
        return ()

    @property
    def upload_form(self) -> Literal["dense", "sparse", "mask"]:
        """What travels: every value, values with their positions, or one bit per entry."""
        return "dense"

    @property
    def steps_of_head(self) -> int:
        """Steps that a client's private part takes on each batch."""
        return 1

    def computed_share(self, split: Split, r: Floats) -> Floats:
        """Share of the model's weights that takes part in a client's computation at keep rate r."""
        return np.ones_like(r)

    def entries(self, split: Split, k: Floats, r: Floats) -> Ints:
        """How many values clients upload at these keep rates, known before they train."""
        return kept_counts(k, split.shared_size)

    def start_server(self, task: Task) -> ServerState:
        """The state before the first round."""
        return ServerState(task.initial_shared(self.divide(task.split)))

    def start_client(self, task: Task, client: int) -> ClientState:
        """The state of a client before its first round."""
        return ClientState(task.initial_private(self.divide(task.split), client))

    @abstractmethod
    def client_update(self, shared: Tensor, client: ClientState, job: Job, model: FlatModel) -> ClientUpdate:
        """One client's round: from what the server sent to what it uploads and keeps."""

    def server_update(
        self, server: ServerState, uploads: Iterable[tuple[float, Upload]], training: Training, round_number: int
    ) -> ServerState:
        """Average the uploads by their weights gamma and step the shared part, Eq. (6)."""
        gradient = weighted_mean(len(server.shared), uploads)
        return descend(server, gradient, training, round_number)

    def trained_weights(self, shared: Tensor, client: ClientState, job: Job, model: FlatModel) -> Tensor:
        """The model that a job's first gradient is taken at: [shared | private], pruned where the method prunes."""
        return torch.cat([shared, client.private])

    def personal_weights(self, server: ServerState, client: ClientState, model: FlatModel) -> Tensor:
        """The model that a client uses: [shared | private]."""
        return torch.cat([server.shared, client.private])


ALGORITHMS: Final[Registry[type[Algorithm]]] = Registry("algorithm")


def weighted_mean(size: int, uploads: Iterable[tuple[float, Upload]]) -> Tensor:
    """sum of gamma_n g_n / sum of gamma_n over those who took part; what was not sent counts as zero.

    One upload is in memory at a time. Eq. (6) has the sum over all clients, where the gammas add to one.
    """
    total, weight = torch.zeros(size), 0.0
    for gamma, upload in uploads:
        weight += gamma
        if upload.positions is None:
            total.add_(upload.values, alpha=gamma)
        else:
            total.index_add_(0, upload.positions, upload.values, alpha=gamma)
    return total.div_(weight) if weight > 0 else total


def descend(server: ServerState, gradient: Tensor, training: Training, round_number: int) -> ServerState:
    """w - eta g, Eq. (6); with momentum w - eta v, v = momentum v + g."""
    memory = dict(server.memory)
    if training.momentum:
        gradient = gradient.add(memory.get("velocity", torch.zeros_like(gradient)), alpha=training.momentum)
        memory["velocity"] = gradient
    return ServerState(server.shared.sub(gradient, alpha=training.rate(round_number)), memory)


def per_client(value: float | Sequence[float], clients: int, name: str) -> Floats:
    """A rate for every client, from one number or a list with one number each."""
    rates = np.atleast_1d(np.asarray(value, dtype=np.float64))
    if len(rates) not in (1, clients):
        raise SettingsError(f"{name} lists {len(rates)} rates for {clients} clients. Give one number or {clients}.")
    return np.broadcast_to(rates, (clients,)).copy()
