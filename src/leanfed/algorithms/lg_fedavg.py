"""LG-FedAvg (Liang et al. 2020): private shallow layers learn a local view, shared deep layers are averaged."""

from __future__ import annotations

from typing import Literal, final

from torch import Tensor
from typing_extensions import override

from leanfed.algorithms.base import ALGORITHMS, Algorithm
from leanfed.algorithms.contract import Cohort, Learner, Updates
from leanfed.algorithms.local import decoupled_update
from leanfed.tasks.split import Split


@final
@ALGORITHMS.register("lg-fedavg")
class LgFedAvg(Algorithm):
    """The deep layers are shared, the shallow layers stay with the client."""

    name: Literal["lg-fedavg"] = "lg-fedavg"

    @override
    def divide(self, split: Split) -> Split:
        return split.reversed()

    @override
    def client_update(self, shared: Tensor, cohort: Cohort, learner: Learner) -> Updates:
        return decoupled_update(shared, cohort, learner)
