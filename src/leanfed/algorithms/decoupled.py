"""Methods that train the shared and the private part together and upload the shared gradient, whole or sparsified."""

from __future__ import annotations

from typing import Self

import numpy as np
from pydantic import Field, model_validator
from torch import Tensor
from typing_extensions import override

from leanfed.algorithms.base import Algorithm, KeepRates, UploadForm, per_client
from leanfed.algorithms.contract import ClientState, Cohort, Learner, ServerState, Training, Updates, Weights, Work
from leanfed.algorithms.local import LocalRun, local_steps
from leanfed.algorithms.objective import whole
from leanfed.algorithms.uploads import sparsified
from leanfed.compression.sparsify import Sparsification
from leanfed.records import Floats
from leanfed.tasks.split import Split
from leanfed.tasks.task import Task


class Decoupled(Algorithm):
    """Both parts take the same steps; the shared gradient is uploaded, the private part stays."""

    k: KeepRates = 1.0
    """Keep rate of the shared gradient; one number, or one per client. 1: all of it."""
    sparsify: Sparsification = Field(default_factory=Sparsification)
    """How gradient entries are chosen."""

    @model_validator(mode="after")
    def _one_rate_for_common_entries(self) -> Self:
        rates = set(np.atleast_1d(np.asarray(self.k)).tolist())
        if self.sparsify.select == "common" and len(rates) > 1:
            raise ValueError(
                f"sparsify.select = 'common' sends the same entries for everybody, but k lists {len(rates)} different "
                "rates; give one number"
            )
        return self

    @override
    def rates(self, clients: int) -> tuple[Floats, Floats]:
        return per_client(self.k, clients, "algorithm.k"), np.ones(clients)

    @property
    @override
    def upload_form(self) -> UploadForm:
        whole = np.all(np.asarray(self.k) == 1.0) and self.sparsify.select != "random"
        return "dense" if whole and not self.sparsify.error_feedback else self.sparsify.form

    @override
    def holds(self, split: Split, training: Training) -> dict[str, int]:
        return {**super().holds(split, training), **self.sparsify.holds(split.shared_size)}

    @override
    def client_update(self, shared: Tensor, cohort: Cohort, learner: Learner) -> Updates:
        run = self.train(shared, cohort, learner)
        uploads, unsent = sparsified(run.gradient, len(shared), cohort, learner.picks, self.sparsify)  # Eq. (5)
        return Updates(uploads, run.private, {**run.memory, **unsent}, run.loss, run.samples)

    def train(self, shared: Tensor, cohort: Cohort, learner: Learner) -> LocalRun:
        """The clients' local steps."""
        return local_steps(shared, cohort, learner)


class WithHead(Decoupled):
    """A method whose private part is the model's head, which may take several steps on the features of a batch."""

    head_steps: int = Field(default=1, ge=1, le=10_000)
    """Steps of the head on each batch (Algorithm 1 takes one). Only the first computes the base's gradient; the others
    reuse the base's features."""

    @override
    def shortened(self, steps: int) -> Self:
        return self.model_copy(update={"head_steps": min(self.head_steps, steps)})

    @override
    def work(self, batches: Floats | float) -> Work:
        return Work(head_passes=self.head_steps - 1)

    @override
    def train(self, shared: Tensor, cohort: Cohort, learner: Learner) -> LocalRun:
        return local_steps(shared, cohort, learner, head_steps=self.head_steps)


class Whole(Decoupled):
    """A method whose server holds a whole model; what clients keep beside it is not a part of that model."""

    @override
    def divide(self, split: Split) -> Split:
        return split.all_shared()

    @override
    def trained_weights(self, shared: Tensor, cohort: Cohort, learner: Learner) -> Weights:
        return whole(shared.unsqueeze(0))

    @override
    def personal_weights(self, server: ServerState, private: Tensor, learner: Learner) -> Weights:
        return whole(server.shared.unsqueeze(0))


class WithModel(Whole):
    """A method whose clients each keep a model of their own, by default the one that they predict with."""

    @override
    def private_size(self, split: Split) -> int:
        return split.size

    @override
    def start_client(self, task: Task, client: int) -> ClientState:
        """The server's initial model."""
        return ClientState(task.initial_shared(self.divide(task.split)))

    @override
    def personal_weights(self, server: ServerState, private: Tensor, learner: Learner) -> Weights:
        return whole(private)
