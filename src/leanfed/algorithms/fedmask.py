"""FedMask (Li et al. 2021): weights stay frozen; clients train binary masks over them and upload only those bits."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal, final

import torch
from pydantic import Field
from torch import Tensor

from leanfed.algorithms.base import (
    ALGORITHMS,
    Algorithm,
    ClientState,
    ClientUpdate,
    Job,
    ServerState,
    Training,
    Upload,
    weighted_mean,
)
from leanfed.algorithms.local import refuse_divergence
from leanfed.streams import stream
from leanfed.tasks.split import FlatModel, Split
from leanfed.tasks.task import Task

ADAPTER = 0.05  # size of a matrix that starts at zero, of what it would have as a layer of its own


@final
@ALGORITHMS.register("fedmask")
class FedMask(Algorithm):
    """Scores on every weight matrix but the first layer's; a weight is used where sigmoid(score) exceeds 0.5.

    Clients upload one bit per masked weight and the server sends back the mean of each bit. A client takes that mean
    as its new score for the entries it shares, those it uses itself, and has its own score elsewhere. (The mean over
    those alone who use an entry would always be one, so it is taken over all participants.)
    """

    name: Literal["fedmask"] = "fedmask"
    score_rate: float = Field(default=30.0, gt=0)
    """Scores step with score_rate x learning rate: their gradients are that much smaller than those of weights."""
    confidence: float = Field(default=0.75, gt=0.5, lt=1)
    """A mean counts as at most this sure, so that even a unanimous entry can change its mind."""

    def divide(self, split: Split) -> Split:
        """Masked: all weight matrices behind the first layer. The rest (first layer, biases) stays as it started."""
        first = next(iter(split.shapes)).rpartition(".")[0]
        masked = {n: s for n, s in split.shapes.items() if len(s) > 1 and not n.startswith(f"{first}.")}
        return Split(shared=masked, private={n: s for n, s in split.shapes.items() if n not in masked})

    @property
    def upload_form(self) -> Literal["dense", "sparse", "mask"]:
        """One bit per masked weight."""
        return "mask"

    def start_server(self, task: Task) -> ServerState:
        """Nobody has voted yet: an even mean everywhere."""
        return ServerState(torch.full((self.divide(task.split).shared_size,), 0.5))

    def start_client(self, task: Task, client: int) -> ClientState:
        """Every client starts from the same small scores, half of them positive."""
        size = self.divide(task.split).shared_size
        scores = stream(task.seed, "scores").uniform(-0.1, 0.1, size)
        return ClientState(torch.from_numpy(scores).to(torch.float32))

    def client_update(self, shared: Tensor, client: ClientState, job: Job, model: FlatModel) -> ClientUpdate:
        """Take over the means, step the scores straight through the mask, upload its bits."""
        frozen = frozen_weights(model)
        scores = self._first_scores(shared, client, job)
        losses, samples = [], 0
        for batch in job.batches:
            loss, gradient = model.loss_and_gradient(masked_weights(frozen, scores), batch.inputs, batch.labels)
            refuse_divergence(loss, job)
            scores.sub_(score_gradient(gradient, frozen, scores), alpha=job.learning_rate * self.score_rate)
            losses.append(loss)
            samples += len(batch.labels)
        upload = Upload(len(scores), scores > 0)
        return ClientUpdate(upload, ClientState(scores), math.fsum(losses) / len(losses), samples)

    def server_update(
        self, server: ServerState, uploads: Iterable[tuple[float, Upload]], training: Training, round_number: int
    ) -> ServerState:
        """The mean of every bit over the round's participants."""
        votes = ((gamma, Upload(bits.size, bits.values.to(server.shared.dtype))) for gamma, bits in uploads)
        return ServerState(weighted_mean(len(server.shared), votes))

    def trained_weights(self, shared: Tensor, client: ClientState, job: Job, model: FlatModel) -> Tensor:
        """The frozen weights under the mask that the job begins with."""
        return masked_weights(frozen_weights(model), self._first_scores(shared, client, job))

    def personal_weights(self, server: ServerState, client: ClientState, model: FlatModel) -> Tensor:
        """The frozen weights under the client's own mask."""
        return masked_weights(frozen_weights(model), client.private)

    def _first_scores(self, shared: Tensor, client: ClientState, job: Job) -> Tensor:
        """What the client has heard; its own scores before anybody has voted."""
        return self.heard(shared, client.private) if job.round else client.private.clone()

    def heard(self, mean: Tensor, own: Tensor) -> Tensor:
        """Where the client uses an entry: the score whose sigmoid is the mean; elsewhere its own score."""
        return torch.where(own > 0, torch.logit(mean.clamp(1 - self.confidence, self.confidence)), own)


def frozen_weights(model: FlatModel) -> Tensor:
    """Signed constants sqrt(2 / fan-in), with twice the variance where a mask drops about half.

    Biases are zero; scales of normalisation layers stay as they started.
    """
    parts, start = [], 0
    for name, shape in model.split.shapes.items():
        end = start + math.prod(shape)
        start, initial = end, model.initial[start:end]
        if len(shape) > 1:
            share = 0.5 if name in model.split.shared else 1.0
            parts.append(_signs(initial) * math.sqrt(2 / (share * math.prod(shape[1:]))))
        else:
            parts.append(initial.clone() if name.endswith("weight") else torch.zeros_like(initial))
    return torch.cat(parts)


def _signs(initial: Tensor) -> Tensor:
    """Signs of initial weights. A matrix that starts at zero, the second of a low-rank adapter, has none to mask: its
    signs are drawn once for all and made small, so that the adapter begins as a small change of the frozen model.
    """
    if torch.any(initial):
        return torch.sign(initial)
    drawn = stream(0, "signs", len(initial)).choice([-ADAPTER, ADAPTER], len(initial))
    return torch.from_numpy(drawn).to(initial.dtype)


def masked_weights(frozen: Tensor, scores: Tensor) -> Tensor:
    """The frozen weights where sigmoid(score) > 0.5, that is score > 0; the unmasked rest whole."""
    weights = frozen.clone()
    weights[: len(scores)].mul_(scores > 0)
    return weights


def score_gradient(gradient: Tensor, frozen: Tensor, scores: Tensor) -> Tensor:
    """Straight through the threshold: dL/ds = dL/dw x w x sigmoid'(s)."""
    slope = torch.sigmoid(scores)
    return gradient[: len(scores)] * frozen[: len(scores)] * slope * (1 - slope)
