"""FedMask (Li et al. 2021): weights stay frozen; clients train binary masks over them and upload only those bits."""

from __future__ import annotations

import math
from typing import Literal, final
from weakref import WeakKeyDictionary

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from leanfed.algorithms.base import ALGORITHMS, Algorithm
from leanfed.algorithms.contract import ClientState, Cohort, Learner, ServerState, Training, Updates, Weights
from leanfed.algorithms.local import mean_loss
from leanfed.algorithms.uploads import Dense
from leanfed.streams import stream
from leanfed.tasks.split import Split
from leanfed.tasks.task import Task

_FROZEN: WeakKeyDictionary[Learner, Tensor] = WeakKeyDictionary()  # one vector per learner in use
ADAPTER = 0.05  # scale of a matrix that starts at zero, relative to an ordinary layer


@final
@ALGORITHMS.register("fedmask")
class FedMask(Algorithm):
    """Scores on every weight matrix but the first layer's; a weight is used where sigmoid(score) exceeds 0.5.

    Clients upload one bit per masked weight and the server sends back the mean of each bit. A client takes that mean
    as its new score for the entries that it uses itself, and keeps its own score for the others. (A mean over only the
    clients that use an entry would always be one, so it is taken over all participants.)
    """

    name: Literal["fedmask"] = "fedmask"
    score_rate: float = Field(default=30.0, gt=0, le=1e6)
    """Scores step with score_rate x learning rate: their gradients are that much smaller than those of weights."""
    confidence: float = Field(default=0.75, gt=0.5, lt=1)
    """Means are clipped to [1 - confidence, confidence], so that even a unanimous entry can still change."""

    @override
    def divide(self, split: Split) -> Split:
        """Share (mask) all weight matrices after the first layer. The rest (first layer, biases) is never trained."""
        first = next(iter(split.shapes)).rpartition(".")[0]
        masked = {n: s for n, s in split.shapes.items() if len(s) > 1 and not n.startswith(f"{first}.")}
        return Split(shared=masked, private={n: s for n, s in split.shapes.items() if n not in masked})

    @property
    @override
    def upload_form(self) -> Literal["dense", "sparse", "mask"]:
        return "mask"

    @override
    def start_server(self, task: Task) -> ServerState:
        """A mean of one half for every bit."""
        return ServerState(torch.full((self.divide(task.split).shared_size,), 0.5))

    @override
    def start_client(self, task: Task, client: int) -> ClientState:
        """Every client starts from the same small scores, half of them positive."""
        size = self.divide(task.split).shared_size
        scores = stream(task.seed, "scores").uniform(-0.1, 0.1, size)
        return ClientState(torch.from_numpy(scores).to(torch.float32))

    @override
    def holds(self, split: Split, training: Training) -> dict[str, int]:
        """Scores have no momentum."""
        return {}

    @override
    def client_update(self, shared: Tensor, cohort: Cohort, learner: Learner) -> Updates:
        """Adopt the means, train the scores by straight-through gradients, upload the mask's bits."""
        frozen, rest = frozen_parts(learner)
        scores, losses, samples = self._first_scores(shared, cohort), [], 0
        for batch in cohort.batches:
            loss, gradient = learner.loss_and_gradient(Weights(frozen * (scores > 0), rest), batch)
            losses.append(loss)
            samples += batch.labels.shape[1]
            slope = torch.stack([torch.sigmoid(row) for row in scores])  # by row: no other client changes a bit
            # Straight through the threshold: dL/ds = dL/dw x w x sigmoid'(s).
            step = gradient[:, : len(shared)].mul_(frozen).mul_(slope).mul_(1 - slope)
            scores = scores.sub(step, alpha=cohort.rate * self.score_rate)
        counts = np.full(len(cohort.clients), samples, dtype=np.int64)
        return Updates(Dense(scores > 0, len(shared)), scores, {}, mean_loss(losses, cohort), counts)

    @override
    def step(self, server: ServerState, mean: Tensor, training: Training, round_number: int) -> ServerState:
        """The new state is the mean of every bit over the round's participants."""
        return ServerState(mean)

    @override
    def trained_weights(self, shared: Tensor, cohort: Cohort, learner: Learner) -> Weights:
        """The frozen weights under the clients' masks at the start of the round."""
        frozen, rest = frozen_parts(learner)
        return Weights(frozen * (self._first_scores(shared, cohort) > 0), rest)

    @override
    def personal_weights(self, server: ServerState, private: Tensor, learner: Learner) -> Weights:
        """The frozen weights under each client's own mask."""
        frozen, rest = frozen_parts(learner)
        return Weights(frozen * (private > 0), rest)

    def _first_scores(self, shared: Tensor, cohort: Cohort) -> Tensor:
        """(C, d_shared): scores after adopting the means; in round 0 the clients' own."""
        return self.adopted(shared, cohort.private) if cohort.round else cohort.private

    def adopted(self, mean: Tensor, own: Tensor) -> Tensor:
        """New scores: logit(mean) for the entries that a client uses, its own score for the others."""
        return torch.where(own > 0, torch.logit(mean.clamp(1 - self.confidence, self.confidence)), own)


def frozen_parts(learner: Learner) -> tuple[Tensor, Tensor]:
    """The weights that are never trained: (d_shared,) under the masks, and (1, d_private) the rest."""
    if learner not in _FROZEN:
        _FROZEN[learner] = frozen_weights(learner.split, learner.initial)
    whole, cut = _FROZEN[learner], learner.split.shared_size
    return whole[:cut], whole[cut:].unsqueeze(0)


def frozen_weights(split: Split, initial: Tensor) -> Tensor:
    """Signed constants sqrt(2 / fan-in), with twice the variance where a mask drops about half.

    Biases are zero; scales of normalisation layers keep their initial values.
    """
    parts, start = [], 0
    for name, shape in split.shapes.items():
        end = start + math.prod(shape)
        start, part = end, initial[start:end]
        if len(shape) > 1:
            share = 0.5 if name in split.shared else 1.0
            parts.append(_signs(part) * math.sqrt(2 / (share * math.prod(shape[1:]))))
        else:
            parts.append(part.clone() if name.endswith("weight") else torch.zeros_like(part))
    return torch.cat(parts)


def _signs(initial: Tensor) -> Tensor:
    """Signs of initial weights. A matrix that starts at zero, the second of a low-rank adapter, has none: its signs
    are drawn with a fixed seed and scaled down, so that the adapter starts as a small change of the frozen model.
    """
    if torch.any(initial):
        return torch.sign(initial)
    drawn = stream(0, "signs", len(initial)).choice([-ADAPTER, ADAPTER], len(initial))
    return torch.from_numpy(drawn).to(initial.dtype)
