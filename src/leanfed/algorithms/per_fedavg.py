"""Per-FedAvg (Fallah et al., NeurIPS 2020): a shared model from which one step of a client leads to a good model."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, final

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from leanfed.algorithms.base import ALGORITHMS
from leanfed.algorithms.contract import ClientState, Cohort, Learner, ServerState, Weights, Work
from leanfed.algorithms.decoupled import WithModel
from leanfed.algorithms.local import LocalRun, local_steps
from leanfed.algorithms.objective import Objective, whole
from leanfed.records import Floats
from leanfed.tasks.batch import Batch
from leanfed.tasks.split import Split
from leanfed.tasks.task import Task

Form = Literal["first-order", "hessian-free"]


@final
@ALGORITHMS.register("per-fedavg")
class PerFedAvg(WithModel):
    """Clients descend on F_n(w - alpha grad F_n(w)): w <- w - eta (I - alpha H_n(w)) g_n(w - alpha g_n(w)).

    First-order leaves out the Hessian H_n and takes two gradients a step; hessian-free takes four, with H_n u as
    (g_n(w + delta u) - g_n(w - delta u)) / (2 delta). The paper draws a batch for each gradient; here one batch serves
    a step, as in the other methods. A client keeps the gradient of its last batch and predicts with the server's model
    after the step alpha along it; the paper takes that gradient when the model is used.
    """

    name: Literal["per-fedavg"] = "per-fedavg"
    inner_rate: float = Field(default=0.05, gt=0, le=1_000)
    """alpha, the step to a client's own model (assumed; the paper does not say it for MNIST)."""
    form: Form = "first-order"
    """How the Hessian is treated."""
    delta: float = Field(default=0.001, gt=0, le=1)
    """delta of the Hessian-free form (assumed)."""

    @override
    def start_client(self, task: Task, client: int) -> ClientState:
        """No gradient yet: the server's model predicts."""
        return ClientState(torch.zeros(self.divide(task.split).size))

    @override
    def work(self, batches: Floats | float) -> Work:
        return Work(passes=2.0 if self.form == "first-order" else 4.0)

    @override
    def stepped_sizes(self, split: Split) -> tuple[int, int]:
        """What a client keeps is a gradient, which takes no steps."""
        return split.size, 0

    @override
    def train(self, shared: Tensor, cohort: Cohort, learner: Learner) -> LocalRun:
        adapted = _Adapted(learner, self)
        run = local_steps(shared, replace(cohort, private=cohort.private[:, :0]), adapted)
        return replace(run, private=adapted.last)

    @override
    def personal_weights(self, server: ServerState, private: Tensor, learner: Learner) -> Weights:
        return whole(server.shared - self.inner_rate * private)


class _Adapted(Objective):
    """F_n after a client's step, as a function of the model before it."""

    def __init__(self, learner: Learner, settings: PerFedAvg) -> None:
        super().__init__(learner)
        self.settings = settings
        self.last = torch.empty(0)  # (C, d) gradients of F_n in the last call

    @override
    def loss_and_gradient(self, weights: Weights, batch: Batch) -> tuple[Tensor, Tensor]:
        at, alpha, delta = weights.shared, self.settings.inner_rate, self.settings.delta
        loss, gradient = self.learner.loss_and_gradient(whole(at), batch)
        self.last = gradient.clone()
        after = self._gradient(at - alpha * self.last, batch)
        if self.settings.form == "first-order":
            return loss, after
        curved = (self._gradient(at + delta * after, batch) - self._gradient(at - delta * after, batch)) / (2 * delta)
        return loss, after - alpha * curved

    def _gradient(self, models: Tensor, batch: Batch) -> Tensor:
        return self.learner.loss_and_gradient(whole(models), batch)[1].clone()
