"""Ditto (Li et al., ICML 2021): beside FedAvg's model every client trains one of its own, held near the shared one."""

from __future__ import annotations

from typing import Literal, final

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from leanfed.algorithms.base import ALGORITHMS
from leanfed.algorithms.contract import Cohort, Learner, Weights, Work
from leanfed.algorithms.decoupled import WithModel
from leanfed.algorithms.local import LocalRun, local_steps
from leanfed.algorithms.objective import Objective, whole
from leanfed.records import Floats
from leanfed.tasks.batch import Batch


@final
@ALGORITHMS.register("ditto")
class Ditto(WithModel):
    """w <- w - eta g_n(w) as in FedAvg; v_n <- v_n - eta (g_n(v_n) + lambda (v_n - w_t)) stays, and predicts.

    Both take their steps on the same batches, so a step is two gradients. Running statistics of normalisation layers
    see both models.
    """

    name: Literal["ditto"] = "ditto"
    proximal: float = Field(default=0.1, ge=0, le=1e6)
    """lambda, weight of the squared distance of a client's model from the round's shared one."""

    @override
    def work(self, batches: Floats | float) -> Work:
        return Work(passes=2.0)

    @override
    def train(self, shared: Tensor, cohort: Cohort, learner: Learner) -> LocalRun:
        return local_steps(shared, cohort, _SharedAndOwn(learner, shared, self.proximal))


class _SharedAndOwn(Objective):
    """Weights [w | v]: gradients of F_n(w) and of F_n(v) + lambda/2 |v - w_t|^2."""

    def __init__(self, learner: Learner, start: Tensor, proximal: float) -> None:
        super().__init__(learner)
        self.start, self.proximal = start, proximal

    @override
    def loss_and_gradient(self, weights: Weights, batch: Batch) -> tuple[Tensor, Tensor]:
        loss, gradient = self.learner.loss_and_gradient(whole(weights.shared), batch)
        shared = gradient.clone()
        own = self.learner.loss_and_gradient(whole(weights.private), batch)[1]
        return loss, torch.cat([shared, own.add(weights.private - self.start, alpha=self.proximal)], 1)
