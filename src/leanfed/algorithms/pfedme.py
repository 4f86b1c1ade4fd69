"""pFedMe (Dinh et al., NeurIPS 2020): the server's model minimises the mean of the clients' Moreau envelopes."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, Self, final

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
from leanfed.tasks.split import Split


@final
@ALGORITHMS.register("pfedme")
class PFedMe(WithModel):
    """w <- w - eta lambda (w - theta_n(w)), theta_n(w) = argmin F_n(theta) + lambda/2 |theta - w|^2, found by steps.

    On each batch theta starts at w and takes `inner_steps` steps theta <- theta - rate (g_n(theta) + lambda (theta -
    w)), each a gradient. The paper says no start; its beta is `training.server.scale`. A client keeps and predicts
    with its last theta. Steps overshoot where eta lambda > 1.
    """

    name: Literal["pfedme"] = "pfedme"
    proximal: float = Field(default=15.0, gt=0, le=1e6)
    """lambda, as in the paper's experiments."""
    inner_steps: int = Field(default=5, ge=1, le=10_000)
    """K, steps towards theta on each batch, as in the paper's experiments."""
    inner_rate: float = Field(default=0.05, gt=0, le=1_000)
    """Their step size (estimated)."""

    @override
    def shortened(self, steps: int) -> Self:
        return self.model_copy(update={"inner_steps": min(self.inner_steps, steps)})

    @override
    def work(self, batches: Floats | float) -> Work:
        return Work(passes=float(self.inner_steps))

    @override
    def stepped_sizes(self, split: Split) -> tuple[int, int]:
        """theta is found anew on every batch, by steps of its own."""
        return split.size, 0

    @override
    def train(self, shared: Tensor, cohort: Cohort, learner: Learner) -> LocalRun:
        envelope = _Envelope(learner, self)
        run = local_steps(shared, replace(cohort, private=cohort.private[:, :0]), envelope)
        return replace(run, private=envelope.personal)


class _Envelope(Objective):
    """The Moreau envelope min F_n(theta) + lambda/2 |theta - w|^2, whose gradient is lambda (w - theta)."""

    def __init__(self, learner: Learner, settings: PFedMe) -> None:
        super().__init__(learner)
        self.settings = settings
        self.personal = torch.empty(0)  # (C, d) theta of the last call

    @override
    def loss_and_gradient(self, weights: Weights, batch: Batch) -> tuple[Tensor, Tensor]:
        at, settings = weights.shared, self.settings
        loss, slope = self.learner.loss_and_gradient(whole(at), batch)
        theta = at - settings.inner_rate * slope  # the distance from w is zero
        for _ in range(settings.inner_steps - 1):
            slope = self.learner.loss_and_gradient(whole(theta), batch)[1]
            theta = theta - settings.inner_rate * (slope + settings.proximal * (theta - at))
        self.personal = theta
        return loss, settings.proximal * (at - theta)
