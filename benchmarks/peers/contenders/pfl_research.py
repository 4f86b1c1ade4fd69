"""pfl-research: FederatedAveraging on a SimulatedBackend, one process.

Users' data sets are kept between rounds, so that pfl's own cache of batches serves every round but the first.
"""

from __future__ import annotations

from typing import Any

import torch
from benchmarks.peers.lenet import LeNet5, flat_weights, one_thread
from benchmarks.peers.turns import GivenRound, Turns, given_round
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import MinimizeReuseUserSampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor
from torch.nn import functional


class Trained(LeNet5):
    """What pfl asks of a module besides its forward pass."""

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(self(inputs), labels)

    @torch.no_grad()
    def metrics(self, inputs: Tensor, labels: Tensor) -> dict[str, Weighted]:
        """Asked for in the first round only, which is not measured."""
        return {"loss": Weighted(float(self.loss(inputs, labels)) * len(labels), len(labels))}


class AfterRound(TrainingProcessCallback):
    """Takes turns."""

    def __init__(self, given: GivenRound, turns: Turns) -> None:
        self._given, self._turns = given, turns

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        self._turns.begin()
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        self._turns.after_round(lambda: flat_weights(self._given, model.pytorch_model.state_dict()))
        return False, Metrics()


def users(given: GivenRound) -> FederatedDataset:
    """Every client once a round."""
    held = {
        client: Dataset(raw_data=[torch.from_numpy(part) for part in given.samples(client)], user_id=str(client))
        for client in range(given.clients)
    }
    return FederatedDataset(held.__getitem__, MinimizeReuseUserSampler(list(held)))


def main() -> None:
    one_thread()
    given, turns = given_round(), Turns("pfl", "torch", "numpy")
    module = Trained()
    module.load_state_dict({name: torch.from_numpy(value) for name, value in given.weights.items()})
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    settings: dict[str, Any] = {
        "algorithm_params": NNAlgorithmParams(
            central_num_iterations=turns.rounds,
            evaluation_frequency=turns.rounds + 1,  # it evaluates round 0 in any case
            train_cohort_size=given.clients,
            val_cohort_size=0,
        ),
        "model_train_params": NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=given.learning_rate, local_batch_size=given.batch
        ),
        "model_eval_params": NNEvalHyperParams(local_batch_size=given.batch),
    }
    data = users(given)
    backend = SimulatedBackend(training_data=data, val_data=data)
    FederatedAveraging().run(backend=backend, model=model, callbacks=[AfterRound(given, turns)], **settings)
