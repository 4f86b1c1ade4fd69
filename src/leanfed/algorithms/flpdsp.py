"""FLPDSP, the paper's Algorithm 1: a shared base with sparsified gradients, a private head that is pruned."""

from __future__ import annotations

from typing import Literal, final

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from leanfed.algorithms.base import ALGORITHMS, Algorithm, ClientState, ClientUpdate, Job, KeepRates, Upload, per_client
from leanfed.algorithms.local import LocalRun, local_steps
from leanfed.compression.prune import Pruning, keep_mask
from leanfed.compression.sparsify import Sparsification, sparsify, unsent
from leanfed.records import Floats
from leanfed.streams import stream
from leanfed.tasks.split import FlatModel, Split


@final
@ALGORITHMS.register("flpdsp")
class Flpdsp(Algorithm):
    """Algorithm 1: prune the head, take gradients, send the largest of the base's, update the head."""

    name: Literal["flpdsp"] = "flpdsp"
    k: KeepRates = 0.74
    """Keep rate of the base gradient; one number, or one per client (the paper's average at 10 MHz)."""
    r: KeepRates = 0.82
    """Keep rate of the head; one number, or one per client (the paper's average at 10 MHz)."""
    head_steps: int = Field(default=1, ge=1)
    """Steps of the head on each batch, the first with the base's gradient (Algorithm 1 takes one). The others need no
    base: they go on from the features that it gave."""
    sparsify: Sparsification = Field(default_factory=Sparsification)
    """How gradient entries are chosen."""
    prune: Pruning = Field(default_factory=Pruning)
    """How heads are pruned."""

    def rates(self, clients: int) -> tuple[Floats, Floats]:
        """The fixed keep rates of the settings."""
        return per_client(self.k, clients, "algorithm.k"), per_client(self.r, clients, "algorithm.r")

    def notes(self) -> tuple[str, ...]:
        """What a user should know of these settings before a run."""
        return self.prune.notes()

    @property
    def upload_form(self) -> Literal["dense", "sparse", "mask"]:
        """Values with their positions."""
        return "sparse"

    @property
    def steps_of_head(self) -> int:
        """As set."""
        return self.head_steps

    def computed_share(self, split: Split, r: Floats) -> Floats:
        """(d_B + r d_P) / d, the share in Eq. (12), of one step of both parts."""
        return np.asarray((split.shared_size + r * split.private_size) / split.size)

    def client_update(self, shared: Tensor, client: ClientState, job: Job, model: FlatModel) -> ClientUpdate:
        """The client's part of Algorithm 1, line by line."""
        head = client.private
        mask = self._head_mask(client, job)  # r_n,t
        run = local_steps(  # w-hat = w x r, Eq. (3); gradients at w-hat; head step, Eq. (4)
            model,
            shared,
            head,
            job,
            mask=torch.cat([torch.ones_like(shared), mask]),
            discard=self.prune.head_memory == "discard",
            masked_gradient=self.prune.masked_gradient,
            velocity=client.memory.get("velocity"),
            head_steps=self.head_steps,
        )
        upload, residual = self._sparsify(run.gradient[: len(shared)], client, job)  # Eq. (5)
        memory = self._remember(run, residual, len(shared))
        return ClientUpdate(upload, ClientState(run.private, memory), run.loss, run.samples)

    def trained_weights(self, shared: Tensor, client: ClientState, job: Job, model: FlatModel) -> Tensor:
        """The base and the pruned head, w-hat of Eq. (3)."""
        return torch.cat([shared, client.private * self._head_mask(client, job)])

    def _head_mask(self, client: ClientState, job: Job) -> Tensor:
        """The pruning indicator as zeros and ones, (d_P,)."""
        last = client.memory.get("head_gradient")
        labels = (job.client, job.round) if self.prune.score == "random-redrawn" else (job.client,)
        mask = keep_mask(
            client.private.numpy(),
            job.r,
            self.prune,
            last_gradient=None if last is None else last.numpy(),
            rng=stream(job.seed, "prune", *labels),
        )
        return torch.from_numpy(mask).to(client.private.dtype)

    def _sparsify(self, gradient: Tensor, client: ClientState, job: Job) -> tuple[Upload, Tensor | None]:
        """The upload, and what error feedback remembers."""
        return sparse_upload(gradient, client.memory.get("residual"), job, self.sparsify)

    def _remember(self, run: LocalRun, residual: Tensor | None, cut: int) -> dict[str, Tensor]:
        """The memories that the settings ask for."""
        wanted = {
            "residual": residual,
            "velocity": run.velocity,
            "head_gradient": run.gradient[cut:].clone() if self.prune.score == "importance" else None,
        }
        return {name: tensor for name, tensor in wanted.items() if tensor is not None}


def sparse_upload(
    gradient: Tensor, residual: Tensor | None, job: Job, settings: Sparsification
) -> tuple[Upload, Tensor | None]:
    """Choose what to send of a gradient (plus the memory of what was not sent before)."""
    corrected = gradient if residual is None else gradient + residual
    values = corrected.numpy()
    positions, sent = sparsify(values, job.k, settings, stream(job.seed, "sparsify", job.round, job.client))
    whole = len(positions) == len(values)  # a full gradient needs no positions
    upload = Upload(len(values), torch.from_numpy(sent), None if whole else torch.from_numpy(positions))
    return upload, torch.from_numpy(unsent(values, positions)) if settings.error_feedback else None
