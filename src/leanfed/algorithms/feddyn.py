"""FedDyn (Acar et al., ICLR 2021): a regulariser that changes from round to round aligns the clients' optima."""

from __future__ import annotations

from typing import Literal, final

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from leanfed.algorithms.base import ALGORITHMS, Algorithm, descend
from leanfed.algorithms.contract import Cohort, Learner, ServerState, Training, Updates, Weights
from leanfed.algorithms.local import local_steps
from leanfed.algorithms.uploads import Dense
from leanfed.tasks.split import Split

OWN_GRADIENT = "own_gradient"  # the client's estimate of its gradient at its last model
DRIFT = "drift"  # the server's h


@final
@ALGORITHMS.register("feddyn")
class FedDyn(Algorithm):
    """Clients descend on F_n(w) - <h_n, w> + alpha/2 |w - w_t|^2 and keep h_n <- h_n - alpha (w_n - w_t).

    The server keeps h <- h - alpha share mean(w_n - w_t), with the participants' share of all clients (|P|/m in the
    paper, here the sum of their gamma_n), and sets w_(t+1) = mean(w_n) - h / alpha. Uploads are whole: the server's h
    must be the mean of the clients' h_n.
    """

    name: Literal["feddyn"] = "feddyn"
    proximal: float = Field(default=0.1, gt=0, le=1e6)
    """alpha, weight of the squared distance from the round's shared model."""

    @override
    def divide(self, split: Split) -> Split:
        return split.all_shared()

    @override
    def holds(self, split: Split, training: Training) -> dict[str, int]:
        return {OWN_GRADIENT: split.size}

    @override
    def optimizer_misfit(self, split: Split, training: Training) -> str | None:
        return "its h_n is a sum of plain gradients; set training.optimizer = 'sgd'"

    @override
    def client_update(self, shared: Tensor, cohort: Cohort, learner: Learner) -> Updates:
        own = cohort.memory[OWN_GRADIENT]

        def regularise(weights: Weights, gradient: Tensor) -> None:
            gradient.sub_(own).add_(weights.shared - shared, alpha=self.proximal)

        run = local_steps(shared, cohort, learner, change=regularise)
        after = own.add(run.gradient, alpha=self.proximal * cohort.rate)  # w_n - w_t = -eta x the sum of the steps
        return Updates(Dense(run.gradient, len(shared)), run.private, {OWN_GRADIENT: after}, run.loss, run.samples)

    @override
    def step(
        self, server: ServerState, mean: Tensor, training: Training, round_number: int, taken: float = 1.0
    ) -> ServerState:
        before = server.memory.get(DRIFT, torch.zeros_like(mean))
        drift = before.add(mean, alpha=self.proximal * training.rate(round_number) * taken)
        moved = descend(server, mean, training, round_number)
        return ServerState(moved.shared.sub(drift, alpha=1 / self.proximal), {**moved.memory, DRIFT: drift})
