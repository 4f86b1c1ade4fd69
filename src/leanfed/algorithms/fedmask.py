"""FedMask (Li et al., SenSys 2021): weights stay frozen; each client trains a binary mask within rows of its own."""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any, Literal, Self, final
from weakref import WeakKeyDictionary

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor
from typing_extensions import override

from leanfed.algorithms.base import ALGORITHMS, Algorithm, KeepRates, UploadForm, per_client
from leanfed.algorithms.contract import ClientState, Cohort, Learner, ServerState, Training, Updates, Weights
from leanfed.algorithms.learner import FlatLearner, one_thread
from leanfed.algorithms.local import mean_loss
from leanfed.algorithms.row_structure import structure_of
from leanfed.algorithms.uploads import Dense
from leanfed.records import Floats, Ints
from leanfed.streams import stream, stream_seed
from leanfed.tasks.batch import Batch
from leanfed.tasks.split import FlatModel, Split
from leanfed.tasks.task import Task

_FROZEN: WeakKeyDictionary[Learner, tuple[str, Tensor]] = WeakKeyDictionary()  # one vector per learner in use
ADAPTER = 0.05  # scale of a matrix that starts at zero, relative to an ordinary layer
PRUNING_BATCH = 32  # samples of a step before round 0


@final
@ALGORITHMS.register("fedmask")
class FedMask(Algorithm):
    """A score for each weight of the matrices behind the first layer; a weight is used where its score is positive.

    Before round 0 every client trains the scores on its own samples and keeps the rows with the largest mean scores
    (one-shot pruning). From then on it trains and sends mask bits within these rows only. The server's mean of a bit is
    over the clients whose rows hold it, and pulls their scores: s + pull (mean - bit). An entry with one owner has
    its owner's bit as its mean and is left alone.

    Public text gives the outline: frozen weights, one bit a weight, masks pruned once to a sparse structure of each
    device's own, aggregation where structures overlap. It does not give the criterion and the length of the pruning,
    the rate r, the score's step, or what a device does with a mean. Those are choices made here: see the settings. If a
    mean replaces the score, Class-2 clients lose what they learned: most bits of most clients never change, so the
    majority is the initial mask.
    """

    name: Literal["fedmask"] = "fedmask"
    r: KeepRates = 0.5
    """Share of the rows of each matrix but the last that a client keeps; one number, or one per client (assumed)."""
    pruning_steps: int = Field(default=20, ge=0, le=100_000)
    """Steps of 32 samples on the scores before a client's rows are chosen (assumed)."""
    pruning_rate: float = Field(default=30.0, gt=0, le=1e6)
    """Step size of the scores before a client's rows are chosen (estimated)."""
    score_rate: float = Field(default=300.0, gt=0, le=1e6)
    """From round 0 on scores step with score_rate x learning rate: their gradients are that much smaller than those of
    weights (estimated)."""
    pull: float = Field(default=0.01, ge=0, le=1e3)
    """How far a score moves towards the mean over the owners, per unit of its distance from the client's bit (assumed;
    scores start between 0.09 and 0.1)."""
    scale: Literal["he", "initial"] = "he"
    """he: every matrix of initial weights is multiplied by one number that makes its mean square 2 / fan-in; initial:
    the weights are as the model starts, with which masks learn several times slower."""

    @model_validator(mode="before")
    @classmethod
    def _older_tables(cls, values: Any) -> Any:
        """Refuse the key of version 0.1.0, but for the whole table of a run folder: finished ones are read back."""
        if not isinstance(values, dict) or "confidence" not in values:
            return values
        if values.keys() != {"name", "score_rate", "confidence"}:
            raise ValueError("confidence is gone: set pull, how strongly means over the owners move a client's scores")
        return {name: value for name, value in values.items() if name == "name"}

    @override
    def preparation(self) -> int:
        return self.pruning_steps * PRUNING_BATCH

    @override
    def shortened(self, steps: int) -> Self:
        return self.model_copy(update={"pruning_steps": min(self.pruning_steps, steps)})

    @override
    def divide(self, split: Split) -> Split:
        """Share (mask) all weight matrices after the first layer. The rest (first layer, biases) is never trained."""
        first = next(iter(split.shapes)).rpartition(".")[0]
        masked = {n: s for n, s in split.shapes.items() if len(s) > 1 and not n.startswith(f"{first}.")}
        return Split(shared=masked, private={n: s for n, s in split.shapes.items() if n not in masked})

    @override
    def rates(self, clients: int) -> tuple[Floats, Floats]:
        return np.ones(clients), per_client(self.r, clients, "algorithm.r")

    @property
    @override
    def upload_form(self) -> UploadForm:
        return "mask"

    @override
    def vector_size(self, split: Split) -> int:
        """Masked entries and one flag for each row."""
        return structure_of(split).size

    @override
    def private_size(self, split: Split) -> int:
        """Scores and one flag for each row."""
        return structure_of(split).size

    @override
    def prunable(self, split: Split) -> int:
        return structure_of(split).prunable

    @override
    def pruned_layers(self, split: Split) -> tuple[str, ...]:
        return tuple(split.shared)[:-1]

    @override
    def entries(self, split: Split, k: Floats, r: Floats) -> Ints:
        """The bits of a client's rows, and every row's flag."""
        return structure_of(split).sent(r)

    @override
    def start_server(self, task: Task) -> ServerState:
        """No row has an owner yet."""
        return ServerState(torch.zeros(self.vector_size(self.divide(task.split))))

    @override
    def start_client(self, task: Task, client: int) -> ClientState:
        """Scores after the steps before round 0, from the same start for all, and the rows that they choose."""
        split, (_, r) = self.divide(task.split), self.rates(task.clients)
        rows = structure_of(split)
        drawn = stream(task.seed, "scores").uniform(0.09, 0.1, rows.entries)
        start = torch.cat([torch.from_numpy(drawn).to(torch.float32), torch.ones(rows.rows)]).unsqueeze(0)
        learner = FlatLearner(FlatModel(task.new_model("base"), split))
        with one_thread(), torch.random.fork_rng(devices=[]) if learner.model.random else nullcontext():
            if learner.model.random:
                torch.manual_seed(stream_seed(task.seed, "pruning", client) % 2**63)
            for batch in task.batches(client, -1, PRUNING_BATCH, steps=self.pruning_steps, epochs=None):
                start = self._stepped(start, learner, batch.alone(), self.pruning_rate)[0]
        scores, _ = rows.parts(start[0])
        return ClientState(torch.cat([scores, rows.best_rows(scores, float(r[client]))]))

    @override
    def stepped_sizes(self, split: Split) -> tuple[int, int]:
        """Scores take steps of their own, without momentum."""
        return 0, 0

    @override
    def optimizer_misfit(self, split: Split, training: Training) -> str | None:
        return "it trains scores by steps of their own; set training.optimizer = 'sgd'"

    @override
    def client_update(self, shared: Tensor, cohort: Cohort, learner: Learner) -> Updates:
        """Follow the means, train the scores by straight-through gradients, send the bits of the client's rows."""
        rows, state = structure_of(learner.split), self._pulled(shared, cohort.private, learner)
        losses, samples = [], 0
        for batch in cohort.batches:
            state, loss = self._stepped(state, learner, batch, cohort.rate * self.score_rate)
            losses.append(loss)
            samples += batch.labels.shape[1]
        (scores, flags), counts = rows.parts(state), np.full(len(cohort.clients), samples, dtype=np.int64)
        held = rows.held_entries(flags) > 0
        bits, sent = torch.cat([(scores > 0) & held, flags > 0], 1), torch.cat([held, torch.ones_like(flags) > 0], 1)
        return Updates(Dense(bits, rows.size, sent), state, {}, mean_loss(losses, cohort), counts)

    @override
    def step(
        self, server: ServerState, mean: Tensor, training: Training, round_number: int, taken: float = 1.0
    ) -> ServerState:
        """The sums of bits and of owners over the participants, as shares; clients divide one by the other."""
        return ServerState(mean)

    @override
    def trained_weights(self, shared: Tensor, cohort: Cohort, learner: Learner) -> Weights:
        """The frozen weights under the clients' masks at the start of the round."""
        return self._masked(self._pulled(shared, cohort.private, learner), learner)

    @override
    def personal_weights(self, server: ServerState, private: Tensor, learner: Learner) -> Weights:
        """The frozen weights under each client's own mask."""
        return self._masked(private, learner)

    def _pulled(self, shared: Tensor, own: Tensor, learner: Learner) -> Tensor:
        """(C, size): scores after the pull of the means over the owners, where a client and a mean hold the entry."""
        rows = structure_of(learner.split)
        (scores, flags), (bits, owners) = rows.parts(own), rows.parts(shared)
        owned = rows.held_entries(owners)
        mean = (bits / owned).clamp(0.0, 1.0)  # 0 / 0 without owners, where nothing is pulled
        pulled = scores + self.pull * (mean - (scores > 0).to(torch.float32))
        return torch.cat([torch.where((owned > 0) & (rows.held_entries(flags) > 0), pulled, scores), flags], 1)

    def _stepped(self, state: Tensor, learner: Learner, batch: Batch, rate: float) -> tuple[Tensor, Tensor]:
        """The states (C, size) after a step on the scores of the clients' rows, and the losses (C,)."""
        rows = structure_of(learner.split)
        scores, flags = rows.parts(state)
        loss, gradient = learner.loss_and_gradient(self._masked(state, learner), batch)
        slope = torch.stack([torch.sigmoid(row) for row in scores])  # by row: no other client changes a bit
        # Straight through the threshold: dL/ds = dL/dw x w x sigmoid'(s).
        step = gradient[:, : rows.entries].mul_(self._frozen(learner)[: rows.entries]).mul_(slope).mul_(1 - slope)
        return torch.cat([scores.sub(step.mul_(rows.held_entries(flags)), alpha=rate), flags], 1), loss

    def _masked(self, state: Tensor, learner: Learner) -> Weights:
        """The frozen weights that the states' masks leave; biases go with their rows."""
        rows, frozen = structure_of(learner.split), self._frozen(learner)
        scores, flags = rows.parts(state)
        used = (scores > 0) * rows.held_entries(flags)
        return Weights(frozen[: rows.entries] * used, frozen[rows.entries :] * rows.held_private(flags))

    def _frozen(self, learner: Learner) -> Tensor:
        """(d,) the weights that are never trained."""
        if learner not in _FROZEN or _FROZEN[learner][0] != self.scale:
            _FROZEN[learner] = self.scale, frozen_weights(learner.split, learner.initial, self.scale)
        return _FROZEN[learner][1]


def frozen_weights(split: Split, initial: Tensor, scale: Literal["he", "initial"] = "he") -> Tensor:
    """The initial weights; each matrix by one factor to He's mean square 2 / fan-in if `scale` says so.

    A matrix that starts at zero, the second of a low-rank adapter, has nothing to mask: it gets signs drawn with a
    fixed seed and scaled down, so that the adapter starts as a small change of the frozen model.
    """
    parts, shapes = [], list(split.shapes.values())
    for shape, part in zip(shapes, torch.split(initial, [math.prod(shape) for shape in shapes]), strict=True):
        he = math.sqrt(2 / math.prod(shape[1:]))
        if len(shape) == 1:
            parts.append(part)
        elif not torch.any(part):
            drawn = stream(0, "signs", len(part)).choice([-ADAPTER * he, ADAPTER * he], len(part))
            parts.append(torch.from_numpy(drawn).to(part.dtype).to(part.device))
        else:
            parts.append(part * (he / math.sqrt(float(part.double().square().mean()))) if scale == "he" else part)
    return torch.cat(parts)
