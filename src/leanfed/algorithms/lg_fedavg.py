"""LG-FedAvg (Liang et al. 2020): private shallow layers learn a local view, shared deep layers are averaged."""

from __future__ import annotations

from typing import Literal, final

from torch import Tensor

from leanfed.algorithms.base import ALGORITHMS, Algorithm, ClientState, ClientUpdate, Job
from leanfed.algorithms.local import decoupled_update
from leanfed.tasks.split import FlatModel, Split


@final
@ALGORITHMS.register("lg-fedavg")
class LgFedAvg(Algorithm):
    """The deep layers are shared, the shallow layers stay with the client."""

    name: Literal["lg-fedavg"] = "lg-fedavg"

    def divide(self, split: Split) -> Split:
        """The reversed split."""
        return split.reversed()

    def client_update(self, shared: Tensor, client: ClientState, job: Job, model: FlatModel) -> ClientUpdate:
        """Upload the gradient of the deep layers whole."""
        return decoupled_update(shared, client, job, model)
