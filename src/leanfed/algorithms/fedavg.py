"""FedAvg (McMahan et al. 2017) and its two compressed settings: FedAvg-S (sparsified) and FedAvg-P (pruned)."""

from __future__ import annotations

from typing import Literal, final

import numpy as np
from torch import Tensor
from typing_extensions import override

from leanfed.algorithms.base import ALGORITHMS, Algorithm, KeepRate, KeepRates, UploadForm
from leanfed.algorithms.contract import Cohort, Learner, ServerState, Training, Updates, Weights
from leanfed.algorithms.decoupled import Decoupled
from leanfed.algorithms.local import Masking, local_steps
from leanfed.algorithms.uploads import Dense
from leanfed.records import Floats, Ints, kept_counts
from leanfed.tasks.split import Split


@final
@ALGORITHMS.register("fedavg")
class FedAvg(Decoupled):
    """One shared model; clients upload whole gradients, which the server averages."""

    name: Literal["fedavg"] = "fedavg"

    @override
    def divide(self, split: Split) -> Split:
        return split.all_shared()


@final
@ALGORITHMS.register("fedavg-s")
class FedAvgS(Decoupled):
    """FedAvg with global sparsification: clients upload only the largest entries of the whole gradient."""

    name: Literal["fedavg-s"] = "fedavg-s"
    k: KeepRates = 0.05
    """Keep rate of the gradient, as in the paper."""

    @override
    def divide(self, split: Split) -> Split:
        return split.all_shared()


@final
@ALGORITHMS.register("fedavg-p")
class FedAvgP(Algorithm):
    """FedAvg with global pruning: clients train the largest weights of the shared model and send those gradients."""

    name: Literal["fedavg-p"] = "fedavg-p"
    r: KeepRate = 0.5
    """Keep rate of the weights, as in the paper."""

    @override
    def divide(self, split: Split) -> Split:
        return split.all_shared()

    @property
    @override
    def upload_form(self) -> UploadForm:
        return "sparse"

    @override
    def prunable(self, split: Split) -> int:
        return split.size

    @override
    def entries(self, split: Split, k: Floats, r: Floats) -> Ints:
        return kept_counts(r, split.shared_size)

    @override
    def rates(self, clients: int) -> tuple[Floats, Floats]:
        return np.ones(clients), np.full(clients, self.r)

    @override
    def optimizer_misfit(self, split: Split, training: Training) -> str | None:
        """The entries that are sent are chosen by the weights."""
        return None if training.optimizer_part == "all" else super().optimizer_misfit(split, training)

    @override
    def client_update(self, shared: Tensor, cohort: Cohort, learner: Learner) -> Updates:
        mask = _largest_weights(shared, cohort.r, learner)
        run = local_steps(shared, cohort, learner, Masking(shared=mask, gradient=True))
        uploads = Dense(run.gradient, len(shared), mask, kept_counts(cohort.r, len(shared)))
        return Updates(uploads, run.private, run.memory, run.loss, run.samples)

    @override
    def trained_weights(self, shared: Tensor, cohort: Cohort, learner: Learner) -> Weights:
        return Weights(shared * _largest_weights(shared, cohort.r, learner), cohort.private)

    @override
    def personal_weights(self, server: ServerState, private: Tensor, learner: Learner) -> Weights:
        """The pruned model, which is the one that is trained."""
        return Weights(server.shared * _largest_weights(server.shared, np.array([self.r]), learner), private)


def _largest_weights(shared: Tensor, r: Floats, learner: Learner) -> Tensor:
    """(1 or C, d) masks of ones and zeros; a single row if all clients have the same keep rate."""
    counts = kept_counts(r, len(shared))
    distinct = counts[:1] if (counts == counts[0]).all() else counts
    rows = shared.expand(len(distinct), -1).contiguous()
    return learner.picks.largest(rows, distinct, len(shared)).mask()
