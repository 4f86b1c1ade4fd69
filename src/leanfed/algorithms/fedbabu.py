"""FedBABU (Oh et al., ICLR 2022): the base learns under a head that is never trained; models are tuned when used."""

from __future__ import annotations

from typing import Literal, final

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from leanfed.algorithms.base import ALGORITHMS
from leanfed.algorithms.contract import ClientState, Cohort, Learner, ServerState, Training, Tuning, Weights
from leanfed.algorithms.decoupled import Decoupled
from leanfed.algorithms.local import LocalRun, local_steps
from leanfed.algorithms.objective import Objective
from leanfed.tasks.batch import Batch
from leanfed.tasks.split import Split
from leanfed.tasks.task import Task


@final
@ALGORITHMS.register("fedbabu")
class FedBabu(Decoupled):
    """b <- b - eta grad_b F_n(b, h_0) with the initial head h_0 of all clients, which nobody trains and nobody sends.

    A client predicts with [b | h_0] after some steps of the whole model on its own samples, taken when the model is
    used (`evaluation.tune_steps`); it keeps nothing.
    """

    name: Literal["fedbabu"] = "fedbabu"
    tune_steps: int = Field(default=5, ge=0, le=10_000)
    """Steps of a client from the server's base and the initial head to its own model (assumed; the paper tunes for
    some epochs after the last round)."""
    tune_rate: float = Field(default=0.01, gt=0, le=1_000)
    """Learning rate of these steps (assumed): at 0.1 they overshoot, from a head that was never trained."""

    @override
    def private_size(self, split: Split) -> int:
        return 0

    @override
    def start_client(self, task: Task, client: int) -> ClientState:
        return ClientState(torch.empty(0))

    @override
    def tuning(self, training: Training) -> Tuning:
        return Tuning(self.tune_steps, self.tune_rate)

    @override
    def train(self, shared: Tensor, cohort: Cohort, learner: Learner) -> LocalRun:
        return local_steps(shared, cohort, _InitialHead(learner))

    @override
    def trained_weights(self, shared: Tensor, cohort: Cohort, learner: Learner) -> Weights:
        return _with_initial_head(shared.unsqueeze(0), learner)

    @override
    def personal_weights(self, server: ServerState, private: Tensor, learner: Learner) -> Weights:
        return _with_initial_head(server.shared.unsqueeze(0), learner)


def _with_initial_head(bases: Tensor, learner: Learner) -> Weights:
    """Bases (1 or C, d_shared) under h_0."""
    return Weights(bases, learner.initial[learner.split.shared_size :].unsqueeze(0))


class _InitialHead(Objective):
    """The base's gradient under the initial head."""

    @override
    def loss_and_gradient(self, weights: Weights, batch: Batch) -> tuple[Tensor, Tensor]:
        loss, gradient = self.learner.loss_and_gradient(_with_initial_head(weights.shared, self.learner), batch)
        return loss, gradient[:, : weights.shared.shape[1]].clone()
