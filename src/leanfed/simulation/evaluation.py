"""How good the clients' own models are on their own test sets."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from pydantic import Field
from torch.nn import functional

from leanfed.algorithms.base import ClientState, ServerState
from leanfed.algorithms.exchange import personal_model
from leanfed.records import Floats, Section
from leanfed.simulation.clients import ClientStore
from leanfed.simulation.world import World
from leanfed.tasks.split import FlatModel

BATCH = 200  # test samples per forward pass


class EvaluationSettings(Section):
    """When and what to evaluate."""

    every: int = Field(default=10, ge=1)
    """Evaluate after every so many rounds, and after the last."""
    per_client: bool = False
    """Write each client's accuracy into the clients table."""
    renew_statistics: int = Field(default=0, ge=0)
    """Before a test, renew running statistics on so many batches of the client's own training samples; 0: as kept."""


@dataclass(frozen=True)
class Evaluation:
    """Test results of every client, and the paper's weighted means over them."""

    accuracy_per_client: Floats
    loss_per_client: Floats
    gamma: Floats

    @property
    def accuracy(self) -> float:
        """Accuracy weighted by gamma_n."""
        return float(self.gamma @ self.accuracy_per_client)

    @property
    def loss(self) -> float:
        """Mean loss weighted by gamma_n."""
        return float(self.gamma @ self.loss_per_client)

    @property
    def worst_decile(self) -> float:
        """Mean accuracy of the worst tenth of the clients (rounded up to whole clients)."""
        count = math.ceil(len(self.accuracy_per_client) / 10)
        return float(np.sort(self.accuracy_per_client)[:count].mean())


def evaluate(world: World, server: ServerState, clients: ClientStore, model: FlatModel) -> Evaluation:
    """Every client's model on its own test set."""
    results = [client_result(world, server, clients[client], model, client) for client in range(world.task.clients)]
    accuracy, loss = np.array(results).T
    return Evaluation(accuracy, loss, world.task.gamma)


def client_result(
    world: World, server: ServerState, state: ClientState, model: FlatModel, client: int
) -> tuple[float, float]:
    """(accuracy, mean loss) of one client's model on its own test set."""
    weights = personal_model(world.algorithm, server, state, model)
    if world.renew_statistics:
        model.measure_statistics(weights, world.renewal(client))
    rows = world.task.partition.test[client]
    right, loss = 0, 0.0
    for start in range(0, len(rows), BATCH):
        batch = world.task.test.batch(rows[start : start + BATCH])
        logits = model.logits(weights, batch.inputs)
        right += int(torch.sum(logits.argmax(dim=1) == batch.labels))
        loss += float(functional.cross_entropy(logits, batch.labels, reduction="sum"))
    return right / len(rows), loss / len(rows)
