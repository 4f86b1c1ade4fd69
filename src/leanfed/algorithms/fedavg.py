"""FedAvg (McMahan et al. 2017) and its two compressed settings: FedAvg-S (sparsified) and FedAvg-P (pruned)."""

from __future__ import annotations

from typing import Literal, final

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from leanfed.algorithms.base import (
    ALGORITHMS,
    Algorithm,
    ClientState,
    ClientUpdate,
    Job,
    KeepRate,
    ServerState,
    Upload,
)
from leanfed.algorithms.flpdsp import sparse_upload
from leanfed.algorithms.local import local_steps
from leanfed.compression.prune import Pruning, keep_mask
from leanfed.compression.sparsify import Sparsification
from leanfed.records import Floats, Ints, kept_counts
from leanfed.streams import stream
from leanfed.tasks.split import FlatModel, Split

MAGNITUDE = Pruning(score="magnitude")


@final
@ALGORITHMS.register("fedavg")
class FedAvg(Algorithm):
    """One model for all, its gradient averaged whole."""

    name: Literal["fedavg"] = "fedavg"

    def divide(self, split: Split) -> Split:
        """Nothing is private."""
        return split.all_shared()

    def client_update(self, shared: Tensor, client: ClientState, job: Job, model: FlatModel) -> ClientUpdate:
        """Upload the gradient of the whole model."""
        run = local_steps(model, shared, client.private, job)
        return ClientUpdate(Upload(len(shared), run.gradient), client, run.loss, run.samples)


@final
@ALGORITHMS.register("fedavg-s")
class FedAvgS(Algorithm):
    """FedAvg with global sparsification: only the largest entries of the whole gradient travel."""

    name: Literal["fedavg-s"] = "fedavg-s"
    k: KeepRate = 0.05
    """Keep rate of the gradient, as in the paper."""
    sparsify: Sparsification = Field(default_factory=Sparsification)
    """How gradient entries are chosen."""

    def divide(self, split: Split) -> Split:
        """Nothing is private."""
        return split.all_shared()

    @property
    def upload_form(self) -> Literal["dense", "sparse", "mask"]:
        """Values with their positions."""
        return "sparse"

    def rates(self, clients: int) -> tuple[Floats, Floats]:
        """k for every client; nothing is pruned."""
        return np.full(clients, self.k), np.ones(clients)

    def client_update(self, shared: Tensor, client: ClientState, job: Job, model: FlatModel) -> ClientUpdate:
        """Upload the chosen entries of the gradient of the whole model."""
        run = local_steps(model, shared, client.private, job)
        upload, residual = sparse_upload(run.gradient, client.memory.get("residual"), job, self.sparsify)
        memory = {} if residual is None else {"residual": residual}
        return ClientUpdate(upload, ClientState(client.private, memory), run.loss, run.samples)


@final
@ALGORITHMS.register("fedavg-p")
class FedAvgP(Algorithm):
    """FedAvg with global pruning: clients train the largest weights of the shared model and send those gradients."""

    name: Literal["fedavg-p"] = "fedavg-p"
    r: KeepRate = 0.5
    """Keep rate of the weights, as in the paper."""

    def divide(self, split: Split) -> Split:
        """Nothing is private."""
        return split.all_shared()

    @property
    def upload_form(self) -> Literal["dense", "sparse", "mask"]:
        """Values with their positions."""
        return "sparse"

    def computed_share(self, split: Split, r: Floats) -> Floats:
        """The share of the weights that survive."""
        return r

    def entries(self, split: Split, k: Floats, r: Floats) -> Ints:
        """The surviving weights' gradients travel."""
        return kept_counts(r, split.shared_size)

    def rates(self, clients: int) -> tuple[Floats, Floats]:
        """r for every client; what is left of the gradient travels whole."""
        return np.ones(clients), np.full(clients, self.r)

    def client_update(self, shared: Tensor, client: ClientState, job: Job, model: FlatModel) -> ClientUpdate:
        """Upload the gradient of the weights that survive the pruning."""
        mask = _global_mask(shared, job.r)
        run = local_steps(model, shared, client.private, job, mask=mask.to(shared.dtype), masked_gradient=True)
        positions = torch.nonzero(mask).flatten()
        return ClientUpdate(Upload(len(shared), run.gradient[positions], positions), client, run.loss, run.samples)

    def trained_weights(self, shared: Tensor, client: ClientState, job: Job, model: FlatModel) -> Tensor:
        """The pruned model."""
        return shared * _global_mask(shared, job.r)

    def personal_weights(self, server: ServerState, client: ClientState, model: FlatModel) -> Tensor:
        """The pruned model, as it is trained."""
        return server.shared * _global_mask(server.shared, self.r)


def _global_mask(weights: Tensor, rate: float) -> Tensor:
    """The largest weights of the whole model."""
    mask = keep_mask(weights.numpy(), rate, MAGNITUDE, last_gradient=None, rng=stream(0, "unused"))
    return torch.from_numpy(mask)
