"""FedProx (Li et al., MLSys 2020): local steps are held near the model that the round began with."""

from __future__ import annotations

from typing import Literal, final

from pydantic import Field
from torch import Tensor
from typing_extensions import override

from leanfed.algorithms.base import ALGORITHMS
from leanfed.algorithms.contract import Cohort, Learner, Weights
from leanfed.algorithms.decoupled import Whole
from leanfed.algorithms.local import LocalRun, local_steps


@final
@ALGORITHMS.register("fedprox")
class FedProx(Whole):
    """FedAvg whose clients descend on F_n(w) + mu/2 |w - w_t|^2: w <- w - eta (g_n(w) + mu (w - w_t)).

    The first step of a round starts at w_t, where the new term is zero: with one local step FedProx is FedAvg.
    """

    name: Literal["fedprox"] = "fedprox"
    proximal: float = Field(default=0.1, ge=0, le=1e6)
    """mu, weight of the squared distance from the round's shared model."""

    @override
    def train(self, shared: Tensor, cohort: Cohort, learner: Learner) -> LocalRun:
        def pull_back(weights: Weights, gradient: Tensor) -> None:
            gradient.add_(weights.shared - shared, alpha=self.proximal)

        return local_steps(shared, cohort, learner, change=pull_back)
