"""Yardsticks without federation: whole models trained alone (Local), and heads on a frozen random base (Head-only)."""

from __future__ import annotations

from typing import Literal, Self, final

import numpy as np
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from leanfed.algorithms.base import ALGORITHMS, Algorithm, UploadForm
from leanfed.algorithms.contract import Cohort, Learner, Updates, Work
from leanfed.algorithms.local import local_steps
from leanfed.algorithms.uploads import Dense, sparsified
from leanfed.compression.sparsify import Sparsification
from leanfed.records import Floats
from leanfed.tasks.split import Split


@final
@ALGORITHMS.register("local")
class Local(Algorithm):
    """Every client trains a model of its own; nothing is shared or sent."""

    name: Literal["local"] = "local"

    @override
    def divide(self, split: Split) -> Split:
        return split.all_private()

    @override
    def client_update(self, shared: Tensor, cohort: Cohort, learner: Learner) -> Updates:
        run = local_steps(shared, cohort, learner)
        return Updates(Dense(run.gradient, 0), run.private, run.memory, run.loss, run.samples)


@final
@ALGORITHMS.register("head-only")
class HeadOnly(Algorithm):
    """The base keeps its random initial weights, the same for all; clients train their heads and send nothing.

    A step is charged like one of FedPer, although its base needs no gradient: Eq. (12) does not tell them apart.
    """

    name: Literal["head-only"] = "head-only"
    head_steps: int = Field(default=1, ge=1, le=10_000)
    """Steps of the head on each batch."""

    @override
    def shortened(self, steps: int) -> Self:
        return self.model_copy(update={"head_steps": min(self.head_steps, steps)})

    @override
    def rates(self, clients: int) -> tuple[Floats, Floats]:
        return np.zeros(clients), np.ones(clients)

    @property
    @override
    def upload_form(self) -> UploadForm:
        return "sparse"

    @override
    def work(self, batches: Floats | float) -> Work:
        return Work(head_passes=self.head_steps - 1)

    @override
    def client_update(self, shared: Tensor, cohort: Cohort, learner: Learner) -> Updates:
        run = local_steps(shared, cohort, learner, head_steps=self.head_steps, train_shared=False)
        nothing, _ = sparsified(run.gradient, len(shared), cohort, learner.picks, Sparsification())
        return Updates(nothing, run.private, run.memory, run.loss, run.samples)
