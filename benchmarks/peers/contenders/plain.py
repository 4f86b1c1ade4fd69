"""No framework: a loop over the clients in plain PyTorch. The result that all others are checked against."""

from __future__ import annotations

import torch
from benchmarks.peers.lenet import Batches, LeNet5, batches_of, flat_weights, one_thread, started, train
from benchmarks.peers.turns import Flat, GivenRound, Turns, given_round
from torch import Tensor


def averaged(shared: dict[str, Tensor], model: LeNet5, clients: list[Batches], rate: float) -> dict[str, Tensor]:
    """FedAvg's round: every client starts from `shared`, and the mean of their weights is what follows."""
    total = {name: torch.zeros_like(value) for name, value in shared.items()}
    for batches in clients:
        model.load_state_dict(shared)
        train(model, batches, rate)
        for name, value in model.state_dict().items():
            total[name] += value
    return {name: value / len(clients) for name, value in total.items()}


def recomputed(given: GivenRound) -> Flat:
    """The weights after one round."""
    model = started(given)
    shared = {name: value.clone() for name, value in model.state_dict().items()}
    clients = [batches_of(given, client) for client in range(given.clients)]
    return flat_weights(given, averaged(shared, model, clients, given.learning_rate))


def main() -> None:
    one_thread()
    given, turns = given_round(), Turns("torch")
    model = started(given)
    shared = {name: value.clone() for name, value in model.state_dict().items()}
    clients = [batches_of(given, client) for client in range(given.clients)]
    turns.begin()
    for _ in range(turns.rounds):
        shared = averaged(shared, model, clients, given.learning_rate)
        turns.after_round(lambda: flat_weights(given, shared))  # noqa: B023  (called at once)
