"""FedBABU (Oh et al., ICLR 2022): the base learns under a head that is never trained; clients tune their own heads."""

from __future__ import annotations

from typing import Literal, final

import torch
from torch import Tensor
from typing_extensions import override

from leanfed.algorithms.base import ALGORITHMS
from leanfed.algorithms.contract import ClientState, Cohort, Learner, Weights, Work
from leanfed.algorithms.decoupled import WithHead
from leanfed.algorithms.local import LocalRun, local_steps
from leanfed.algorithms.objective import Objective
from leanfed.records import Floats
from leanfed.tasks.batch import Batch
from leanfed.tasks.task import Task


@final
@ALGORITHMS.register("fedbabu")
class FedBabu(WithHead):
    """b <- b - eta grad_b F_n(b, h_0) with the initial head h_0 of all clients; h_n <- h_n - eta grad_h F_n(b, h_n).

    The paper tunes a client's head once, after the last round. Runs are tested on the way, so here a client's head
    h_n, which starts as h_0, takes its `head_steps` steps in the rounds, on the base's features; the base never sees
    it, and its steps are charged.
    """

    name: Literal["fedbabu"] = "fedbabu"

    @override
    def start_client(self, task: Task, client: int) -> ClientState:
        """The head of the model that the server starts with."""
        return ClientState(task.initial_shared(self.divide(task.split).reversed()))

    @override
    def work(self, batches: Floats | float) -> Work:
        """The client's own head steps beside the base's gradient, which passes the initial head."""
        return Work(head_passes=self.head_steps)

    @override
    def train(self, shared: Tensor, cohort: Cohort, learner: Learner) -> LocalRun:
        return local_steps(shared, cohort, _TwoHeads(learner), head_steps=self.head_steps)

    @override
    def trained_weights(self, shared: Tensor, cohort: Cohort, learner: Learner) -> Weights:
        return Weights(shared.unsqueeze(0), _initial_head(learner))


def _initial_head(learner: Learner) -> Tensor:
    """h_0, (1, d_P)."""
    return learner.initial[learner.split.shared_size :].unsqueeze(0)


class _TwoHeads(Objective):
    """Weights [b | h_n]: the base's gradient under the initial head, and the gradient of the client's own head."""

    @override
    def loss_and_gradient(self, weights: Weights, batch: Batch) -> tuple[Tensor, Tensor]:
        loss, gradient = self.learner.loss_and_gradient(Weights(weights.shared, _initial_head(self.learner)), batch)
        base = gradient[:, : weights.shared.shape[1]].clone()
        return loss, torch.cat([base, self.learner.head_gradient(weights, batch)], 1)

    @override
    def head_gradient(self, weights: Weights, batch: Batch) -> Tensor:
        return self.learner.head_gradient(weights, batch)
