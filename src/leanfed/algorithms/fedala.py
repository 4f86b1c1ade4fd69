"""FedALA (Zhang et al., AAAI 2023): clients learn, weight by weight, how much of the shared model to start from."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import chain
from typing import Literal, Self, final

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from leanfed.algorithms.base import ALGORITHMS
from leanfed.algorithms.contract import Cohort, Learner, Training, Updates, Weights, Work
from leanfed.algorithms.decoupled import WithModel
from leanfed.algorithms.local import local_steps
from leanfed.algorithms.objective import Objective, whole
from leanfed.algorithms.uploads import sparsified
from leanfed.records import Floats
from leanfed.tasks.batch import Batch
from leanfed.tasks.split import Split, modules_of

REFUSED = "refused"  # 1 - A, the part of the shared model that a client does not take; zero before its first round


@final
@ALGORITHMS.register("fedala")
class FedAla(WithModel):
    """Local steps start at theta_n + A_n (w_t - theta_n) in the last layers, at w_t in the others; the end is averaged.

    theta_n is the client's model after its last round, by which it predicts, and A_n in [0, 1] is learned per weight:
    A <- clip(A - rate g_n(start) (w_t - theta_n)), from A = 1. The paper does so on a random part of the client's
    samples, once per round and in the first one until it converges; here it is `mixing_steps` steps on the first batch
    of every round, each a gradient. Before a client's first round theta_n is the initial model.
    """

    name: Literal["fedala"] = "fedala"
    layers: int = Field(default=1, ge=1, le=10_000)
    """p, how many of the last layers are mixed; the paper's choice."""
    mixing_steps: int = Field(default=1, ge=0, le=10_000)
    """Steps on A_n at the start of a round (assumed)."""
    mixing_rate: float = Field(default=1.0, gt=0, le=1e6)
    """Step size of A_n; the paper's choice."""

    @override
    def shortened(self, steps: int) -> Self:
        return self.model_copy(update={"mixing_steps": min(self.mixing_steps, steps)})

    @override
    def work(self, batches: Floats | float) -> Work:
        return Work(passes=1.0 + self.mixing_steps / batches)

    @override
    def stepped_sizes(self, split: Split) -> tuple[int, int]:
        """A model that the client keeps."""
        return 0, split.size

    @override
    def holds(self, split: Split, training: Training) -> dict[str, int]:
        return {**super().holds(split, training), REFUSED: self._mixed(split)}

    @override
    def client_update(self, shared: Tensor, cohort: Cohort, learner: Learner) -> Updates:
        batches = iter(cohort.batches)
        first = next(batches)
        begin, refused = self._start(shared, cohort, learner, first)
        again = replace(cohort, private=begin, batches=chain([first], batches))
        run = local_steps(shared[:0], again, _Own(learner))
        moved = (shared - run.private) / cohort.rate
        uploads, unsent = sparsified(moved, len(shared), cohort, learner.picks, self.sparsify)
        return Updates(uploads, run.private, {**run.memory, **unsent, REFUSED: refused}, run.loss, run.samples)

    @override
    def trained_weights(self, shared: Tensor, cohort: Cohort, learner: Learner) -> Weights:
        return whole(self._start(shared, cohort, learner, next(iter(cohort.batches)))[0])

    def _start(self, shared: Tensor, cohort: Cohort, learner: Learner, batch: Batch) -> tuple[Tensor, Tensor]:
        """Where local steps start (C, d), and 1 - A after the steps on A."""
        cut = len(shared) - self._mixed(learner.split)
        old, taken = cohort.private[:, cut:], 1 - cohort.memory[REFUSED]
        taught, gap = shared[:cut].expand(len(old), -1), shared[cut:] - old
        for _ in range(self.mixing_steps):
            slope = learner.loss_and_gradient(whole(torch.cat([taught, old + taken * gap], 1)), batch)[1]
            taken = (taken - self.mixing_rate * slope[:, cut:] * gap).clamp_(0, 1)
        return torch.cat([taught, old + taken * gap], 1), 1 - taken

    def _mixed(self, split: Split) -> int:
        """How many weights the last layers have."""
        order = list(dict.fromkeys(name.rpartition(".")[0] for name in split.shapes))
        last = set(order[-self.layers :])
        return sum(math.prod(shape) for name, shape in split.shapes.items() if modules_of([name]) <= last)


class _Own(Objective):
    """Weights [nothing | model]: every client steps on a whole model of its own."""

    @override
    def loss_and_gradient(self, weights: Weights, batch: Batch) -> tuple[Tensor, Tensor]:
        return self.learner.loss_and_gradient(whole(weights.private), batch)
