"""FedPer (Arivazhagan et al. 2019): a shared base, a private head, nothing compressed."""

from __future__ import annotations

from typing import Literal, final

from torch import Tensor

from leanfed.algorithms.base import ALGORITHMS, Algorithm, ClientState, ClientUpdate, Job
from leanfed.algorithms.local import decoupled_update
from leanfed.tasks.split import FlatModel


@final
@ALGORITHMS.register("fedper")
class FedPer(Algorithm):
    """The shallow layers are shared, the deep layers stay with the client."""

    name: Literal["fedper"] = "fedper"

    def client_update(self, shared: Tensor, client: ClientState, job: Job, model: FlatModel) -> ClientUpdate:
        """Upload the base gradient whole."""
        return decoupled_update(shared, client, job, model)
