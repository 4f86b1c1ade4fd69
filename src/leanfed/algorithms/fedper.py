"""FedPer (Arivazhagan et al. 2019): a shared base, a private head, nothing compressed."""

from __future__ import annotations

from typing import Literal, final

from torch import Tensor
from typing_extensions import override

from leanfed.algorithms.base import ALGORITHMS, Algorithm
from leanfed.algorithms.contract import Cohort, Learner, Updates
from leanfed.algorithms.local import decoupled_update


@final
@ALGORITHMS.register("fedper")
class FedPer(Algorithm):
    """The shallow layers are shared, the deep layers stay with the client."""

    name: Literal["fedper"] = "fedper"

    @override
    def client_update(self, shared: Tensor, cohort: Cohort, learner: Learner) -> Updates:
        return decoupled_update(shared, cohort, learner)
