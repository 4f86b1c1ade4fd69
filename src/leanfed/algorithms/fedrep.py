"""FedRep (Collins et al. 2021): a private head is fitted to the base first, then the base takes its step."""

from __future__ import annotations

from typing import Literal, final

from torch import Tensor
from typing_extensions import override

from leanfed.algorithms.base import ALGORITHMS
from leanfed.algorithms.contract import Cohort, Learner, Work
from leanfed.algorithms.decoupled import WithHead
from leanfed.algorithms.local import LocalRun, alternating_steps
from leanfed.records import Floats


@final
@ALGORITHMS.register("fedrep")
class FedRep(WithHead):
    """As FedPer, but on each batch all of the head's steps come before the base's gradient, which the head sits out.

    The original fits the head over whole epochs before the base takes an epoch of its own; here both use the same
    batches, as the other methods do, and the work of either is charged.
    """

    name: Literal["fedrep"] = "fedrep"

    @override
    def work(self, batches: Floats | float) -> Work:
        """The head's own steps beside the base's, in which it has a part."""
        return Work(head_passes=self.head_steps)

    @override
    def train(self, shared: Tensor, cohort: Cohort, learner: Learner) -> LocalRun:
        return alternating_steps(shared, cohort, learner, self.head_steps)
