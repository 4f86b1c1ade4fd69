"""LG-FedAvg (Liang et al. 2020): private shallow layers learn a local view, shared deep layers are averaged."""

from __future__ import annotations

from typing import Literal, final

from typing_extensions import override

from leanfed.algorithms.base import ALGORITHMS
from leanfed.algorithms.decoupled import Decoupled
from leanfed.tasks.split import Split


@final
@ALGORITHMS.register("lg-fedavg")
class LgFedAvg(Decoupled):
    """The deep layers are shared, the shallow layers stay with the client."""

    name: Literal["lg-fedavg"] = "lg-fedavg"

    @override
    def divide(self, split: Split) -> Split:
        return split.reversed()
