"""SpaFL (Kim et al., NeurIPS 2024): only thresholds travel, one for each neuron or filter, which prune its weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, final

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from leanfed.algorithms.base import ALGORITHMS, Algorithm
from leanfed.algorithms.contract import ClientState, Cohort, Learner, ServerState, Updates, Weights
from leanfed.algorithms.local import local_steps
from leanfed.algorithms.objective import Objective
from leanfed.algorithms.uploads import Dense
from leanfed.records import Floats, Ints
from leanfed.tasks.batch import Batch
from leanfed.tasks.split import Split
from leanfed.tasks.task import Task


@final
@ALGORITHMS.register("spafl")
class SpaFl(Algorithm):
    """A row of a weight matrix (a neuron's or a filter's weights) is used while its mean |w| exceeds its threshold tau.

    Weights w_n stay with the client; both descend on F_n(w m(w, tau)) + penalty sum(exp(-tau)), m = 1(mean |w| > tau),
    with a derivative of one for the step function within a distance of one. Clients send their thresholds, the server
    averages them, and when a client receives new ones each of its weights moves by the mean change: w <- w - (tau' -
    tau) sign(sum of the row) / width of the row. Clients keep [w_n | tau as last received] and start from one model.

    Taken from the paper's public text and code, with these differences: the code divides a filter's change by the
    kernel's area in place of its width, lets no derivative through *within* the distance of one (which leaves the
    thresholds their penalty alone), clips gradients and resets layers that are pruned whole. Computation is charged as
    if nothing were pruned: how much is, nobody knows before the round.
    """

    name: Literal["spafl"] = "spafl"
    penalty: float = Field(default=0.002, ge=0, le=1e6)
    """Weight of sum(exp(-tau)), which lets thresholds grow (the public code's default)."""

    @override
    def divide(self, split: Split) -> Split:
        return split.all_private()

    @override
    def vector_size(self, split: Split) -> int:
        return rows_of(split).count

    @override
    def private_size(self, split: Split) -> int:
        return split.size + rows_of(split).count

    @override
    def entries(self, split: Split, k: Floats, r: Floats) -> Ints:
        """Every threshold."""
        return np.full(len(k), rows_of(split).count, dtype=np.int64)

    @override
    def stepped_sizes(self, split: Split) -> tuple[int, int]:
        """Thresholds and weights."""
        return rows_of(split).count, split.size

    @override
    def start_server(self, task: Task) -> ServerState:
        """Thresholds of zero prune nothing."""
        return ServerState(torch.zeros(self.vector_size(self.divide(task.split))))

    @override
    def start_client(self, task: Task, client: int) -> ClientState:
        model = task.initial_shared(task.split.all_shared())
        return ClientState(torch.cat([model, torch.zeros(self.vector_size(self.divide(task.split)))]))

    @override
    def client_update(self, shared: Tensor, cohort: Cohort, learner: Learner) -> Updates:
        moved = _received(shared, cohort.private, rows_of(learner.split))
        run = local_steps(shared, replace(cohort, private=moved), _Thresholded(learner, self.penalty))
        kept = torch.cat([run.private, shared.expand(len(moved), -1)], 1)
        return Updates(Dense(run.gradient, len(shared)), kept, run.memory, run.loss, run.samples)

    @override
    def trained_weights(self, shared: Tensor, cohort: Cohort, learner: Learner) -> Weights:
        return self._pruned(shared, cohort.private, learner)

    @override
    def personal_weights(self, server: ServerState, private: Tensor, learner: Learner) -> Weights:
        """A client's weights under the server's thresholds."""
        return self._pruned(server.shared, private, learner)

    def _pruned(self, thresholds: Tensor, private: Tensor, learner: Learner) -> Weights:
        rows = rows_of(learner.split)
        moved = _received(thresholds, private, rows)
        used = moved * rows.spread((rows.mean(moved.abs()) > thresholds).to(moved.dtype), 1.0)
        return Weights(used[:, :0], used)


@dataclass(frozen=True)
class Rows:
    """The rows of a model's matrices, in the flat vector of all parameters."""

    parts: tuple[tuple[int, int, int], ...]  # start, rows and width of each matrix
    of_entry: Tensor  # (d,) the row of each parameter; `count` for those of no matrix

    @property
    def count(self) -> int:
        """How many rows, and so thresholds, there are."""
        return sum(rows for _, rows, _ in self.parts)

    def mean(self, values: Tensor) -> Tensor:
        """(C, d) -> (C, rows), the mean over each row."""
        return self._reduced(values, lambda part: part.mean(1))

    def sum(self, values: Tensor) -> Tensor:
        """(C, d) -> (C, rows), the sum over each row."""
        return self._reduced(values, lambda part: part.sum(1))

    def spread(self, values: Tensor, elsewhere: float) -> Tensor:
        """(C, rows) -> (C, d): every parameter gets its row's value."""
        beside = torch.full((len(values), 1), elsewhere, device=values.device)
        return torch.cat([values, beside], 1)[:, self.of_entry.to(values.device)]

    def widths(self) -> Tensor:
        """(rows,) weights in each row."""
        return torch.cat([torch.full((rows,), float(width)) for _, rows, width in self.parts])

    def _reduced(self, values: Tensor, reduce: Callable[[Tensor], Tensor]) -> Tensor:
        """By client: how a reduction rounds must not depend on the other clients."""
        return torch.stack(
            [
                torch.cat([reduce(row[start : start + n * width].view(n, width)) for start, n, width in self.parts])
                for row in values
            ]
        )


def rows_of(split: Split) -> Rows:
    """The rows of all weight matrices and filters of a split, the last ones included."""
    return _rows(tuple(tuple(shape) for shape in split.shapes.values()))


@lru_cache(maxsize=8)
def _rows(shapes: tuple[tuple[int, ...], ...]) -> Rows:
    parts, of_entry, start, first = [], [], 0, 0
    count = sum(shape[0] for shape in shapes if len(shape) > 1)
    for shape in shapes:
        size, width = math.prod(shape), math.prod(shape[1:])
        if len(shape) > 1:
            parts.append((start, shape[0], width))
            of_entry.append(np.repeat(np.arange(first, first + shape[0]), width))
            first += shape[0]
        else:
            of_entry.append(np.full(size, count))
        start += size
    return Rows(tuple(parts), torch.from_numpy(np.concatenate(of_entry)))


def _received(thresholds: Tensor, private: Tensor, rows: Rows) -> Tensor:
    """The clients' weights (C, d) after they have heard of new thresholds (rows,)."""
    weights, before = private[:, : -rows.count], private[:, -rows.count :]
    change = (thresholds - before) * torch.sign(rows.sum(weights)) / rows.widths().to(weights.device)
    return weights - rows.spread(change, 0.0)


class _Thresholded(Objective):
    """Weights [tau | w]: gradients of the pruned model's loss, straight through the step function."""

    def __init__(self, learner: Learner, penalty: float) -> None:
        super().__init__(learner)
        self.penalty = penalty

    @override
    def loss_and_gradient(self, weights: Weights, batch: Batch) -> tuple[Tensor, Tensor]:
        thresholds, own = weights
        rows = rows_of(self.split)
        above = rows.mean(own.abs()) - thresholds
        mask = rows.spread((above > 0).to(own.dtype), 1.0)
        loss, gradient = self.learner.loss_and_gradient(Weights(own[:, :0], own * mask), batch)
        slope = gradient.clone()
        through = rows.sum(slope * own) * (above.abs() <= 1)  # dF/dm
        decay = torch.stack([torch.exp(-row) for row in thresholds])  # by row: see `Rows`
        by_mean = rows.spread(through / rows.widths().to(through.device), 0.0) * torch.sign(own)
        return loss, torch.cat([-through - self.penalty * decay, slope * mask + by_mean], 1)
