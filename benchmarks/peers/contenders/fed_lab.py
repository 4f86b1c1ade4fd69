"""FedLab: the standalone pipeline with its serial trainer of SGD clients; `evaluate` is its hook after a round."""

from __future__ import annotations

import logging

from benchmarks.peers.contenders import vision  # noqa: F401  (first: FedLab cannot be imported without torchvision)
from benchmarks.peers.lenet import Batches, batches_of, flat_weights, one_thread, started
from benchmarks.peers.turns import GivenRound, Turns, given_round
from fedlab.contrib.algorithm.fedavg import FedAvgSerialClientTrainer, FedAvgServerHandler
from fedlab.contrib.dataset.basic_dataset import FedDataset
from fedlab.core.standalone import StandalonePipeline


class GivenData(FedDataset):
    """The clients' batches, assembled once: a loader that assembles them anew would only cost time."""

    def __init__(self, given: GivenRound) -> None:
        self._batches = [batches_of(given, client) for client in range(given.clients)]

    def get_dataloader(self, client: int, batch_size: int) -> Batches:
        return self._batches[client]


class Pipeline(StandalonePipeline):
    """Takes turns after each round."""

    given: GivenRound
    turns: Turns

    def evaluate(self) -> None:
        self.turns.after_round(lambda: flat_weights(self.given, self.handler.model.state_dict()))


def main() -> None:
    one_thread()
    logging.disable(logging.INFO)
    given, turns = given_round(), Turns("fedlab", "torch", "numpy")
    handler = FedAvgServerHandler(started(given), turns.rounds, 1.0)
    trainer = FedAvgSerialClientTrainer(started(given), given.clients)
    trainer.setup_dataset(GivenData(given))
    trainer.setup_optim(1, given.batch, given.learning_rate)
    pipeline = Pipeline(handler, trainer)
    pipeline.given, pipeline.turns = given, turns
    turns.begin()
    pipeline.main()
