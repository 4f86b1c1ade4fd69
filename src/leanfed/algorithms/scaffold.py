"""SCAFFOLD (Karimireddy et al., ICML 2020): control variates correct the drift of local steps."""

from __future__ import annotations

from typing import Literal, final

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from leanfed.algorithms.base import ALGORITHMS, Algorithm, descend
from leanfed.algorithms.contract import Cohort, Learner, ServerState, Training, Updates, Weights
from leanfed.algorithms.local import local_steps
from leanfed.algorithms.objective import whole
from leanfed.algorithms.uploads import Dense
from leanfed.records import Floats, Ints
from leanfed.tasks.split import Split
from leanfed.tasks.task import Task

CONTROL = "control"  # c_n, the client's control variate


@final
@ALGORITHMS.register("scaffold")
class Scaffold(Algorithm):
    """Option II of the paper; the server's vector and an upload are [model | control variate], twice a model.

    A client takes K steps y <- y - eta (g_n(y) - c_n + c) from the server's model x, then sets
    c_n+ = c_n - c + (x - y) / (K eta) and sends (x - y) / eta and c_n+ - c_n. The server moves by
    x <- x - eta_g eta mean((x - y) / eta) and c <- c + share mean(c_n+ - c_n), where share is the participants' part of
    all clients, |S|/N in the paper, here the sum of their gamma_n.
    """

    name: Literal["scaffold"] = "scaffold"
    server_rate: float = Field(default=1.0, gt=0, le=1_000)
    """eta_g, the length of the server's step."""

    @override
    def divide(self, split: Split) -> Split:
        return split.all_shared()

    @override
    def vector_size(self, split: Split) -> int:
        return 2 * split.size

    @override
    def entries(self, split: Split, k: Floats, r: Floats) -> Ints:
        """Two vectors, at any keep rate."""
        return np.full(len(k), 2 * split.size, dtype=np.int64)

    @override
    def holds(self, split: Split, training: Training) -> dict[str, int]:
        return {CONTROL: split.size}

    @override
    def start_server(self, task: Task) -> ServerState:
        """The initial model and no correction."""
        model = task.initial_shared(self.divide(task.split))
        return ServerState(torch.cat([model, torch.zeros_like(model)]))

    @override
    def optimizer_misfit(self, split: Split, training: Training) -> str | None:
        return "its control variates are means of plain gradients; set training.optimizer = 'sgd'"

    @override
    def client_update(self, shared: Tensor, cohort: Cohort, learner: Learner) -> Updates:
        (model, control), own = shared.chunk(2), cohort.memory[CONTROL]

        def correct(weights: Weights, gradient: Tensor) -> None:
            gradient.add_(control - own)

        run = local_steps(model, cohort, learner, change=correct)
        change = run.gradient / cohort.steps - control  # (x - y) / (K eta) - c
        both = torch.cat([run.gradient, change], 1)
        return Updates(Dense(both, len(shared)), run.private, {CONTROL: own + change}, run.loss, run.samples)

    @override
    def step(
        self, server: ServerState, mean: Tensor, training: Training, round_number: int, taken: float = 1.0
    ) -> ServerState:
        (model, control), (gradient, change) = server.shared.chunk(2), mean.chunk(2)
        moved = descend(ServerState(model, server.memory), gradient * self.server_rate, training, round_number)
        return ServerState(torch.cat([moved.shared, control.add(change, alpha=taken)]), moved.memory)

    @override
    def trained_weights(self, shared: Tensor, cohort: Cohort, learner: Learner) -> Weights:
        return whole(shared.chunk(2)[0].unsqueeze(0))

    @override
    def personal_weights(self, server: ServerState, private: Tensor, learner: Learner) -> Weights:
        return whole(server.shared.chunk(2)[0].unsqueeze(0))
