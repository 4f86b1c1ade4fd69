"""APFL (Deng et al. 2020): a client predicts with a mixture of its own model and the shared one."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, final

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from leanfed.algorithms.base import ALGORITHMS
from leanfed.algorithms.contract import ClientState, Cohort, Learner, ServerState, Weights, Work
from leanfed.algorithms.decoupled import Whole
from leanfed.algorithms.local import LocalRun, local_steps
from leanfed.algorithms.objective import Objective, whole
from leanfed.records import Floats
from leanfed.tasks.batch import Batch
from leanfed.tasks.split import Split
from leanfed.tasks.task import Task


@final
@ALGORITHMS.register("apfl")
class Apfl(Whole):
    """w <- w - eta g_n(w), and v_n <- v_n - eta alpha_n g_n(u), with the mixture u = alpha_n v_n + (1 - alpha_n) w.

    If it adapts, alpha_n <- alpha_n - eta <v_n - w, g_n(u)>, kept within [0, 1]. A step is two gradients. A client
    keeps [v_n | alpha_n] and predicts with the mixture of v_n and the server's model. Weight decay and momentum are
    those of all private values, alpha_n among them.
    """

    name: Literal["apfl"] = "apfl"
    mixing: float = Field(default=0.5, ge=0, le=1)
    """alpha in round 0, the weight of a client's own model."""
    adaptive: bool = True
    """Learn alpha_n by gradient steps, in place of the same alpha for all."""

    @override
    def private_size(self, split: Split) -> int:
        return split.size + 1

    @override
    def start_client(self, task: Task, client: int) -> ClientState:
        model = task.initial_shared(self.divide(task.split))
        return ClientState(torch.cat([model, torch.tensor([self.mixing])]))

    @override
    def work(self, batches: Floats | float) -> Work:
        return Work(passes=2.0)

    @override
    def train(self, shared: Tensor, cohort: Cohort, learner: Learner) -> LocalRun:
        run = local_steps(shared, cohort, _Mixing(learner, self.adaptive))
        share = run.private[:, -1:].clamp(0, 1) if self.adaptive else cohort.private[:, -1:]
        return replace(run, private=torch.cat([run.private[:, :-1], share], 1))

    @override
    def personal_weights(self, server: ServerState, private: Tensor, learner: Learner) -> Weights:
        return whole(_mixture(server.shared, private))


def _mixture(shared: Tensor, private: Tensor) -> Tensor:
    """alpha v + (1 - alpha) w, (C, d)."""
    share = private[:, -1:].clamp(0, 1)
    return share * private[:, :-1] + (1 - share) * shared


class _Mixing(Objective):
    """Weights [w | v, alpha]: gradients of F_n(w), and of F_n(u) with respect to v and alpha."""

    def __init__(self, learner: Learner, adaptive: bool) -> None:
        super().__init__(learner)
        self.adaptive = adaptive

    @override
    def loss_and_gradient(self, weights: Weights, batch: Batch) -> tuple[Tensor, Tensor]:
        shared, own, share = weights.shared, weights.private[:, :-1], weights.private[:, -1:].clamp(0, 1)
        loss, gradient = self.learner.loss_and_gradient(whole(shared), batch)
        first = gradient.clone()
        slope = self.learner.loss_and_gradient(whole(_mixture(shared, weights.private)), batch)[1]
        along = [row.sum() for row in slope * (own - shared)]  # by row: no other client changes a bit
        towards = torch.stack(along).unsqueeze(1) * float(self.adaptive)
        return loss, torch.cat([first, slope * share, towards], 1)
