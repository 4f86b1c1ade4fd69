"""LeNet-5 in plain PyTorch, as leanfed's, and a client's local steps: for contenders that leave them to the user."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from benchmarks.peers.turns import Flat, GivenRound
from torch import Tensor, nn
from torch.nn import functional

Batches = list[tuple[Tensor, Tensor]]


class LeNet5(nn.Module):
    """(batch, 1, 32, 32) -> (batch, 10); 61,706 weights."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.conv3 = nn.Conv2d(16, 120, 5)
        self.fc1 = nn.Linear(120, 84)
        self.fc2 = nn.Linear(84, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = functional.max_pool2d(functional.relu(self.conv1(images)), 2)
        x = functional.max_pool2d(functional.relu(self.conv2(x)), 2)
        x = functional.relu(self.conv3(x)).flatten(1)
        logits: Tensor = self.fc2(functional.relu(self.fc1(x)))
        return logits


def one_thread() -> None:
    """Torch inside this process."""
    torch.set_num_threads(1)


def started(given: GivenRound) -> LeNet5:
    """The model with the weights that the round begins with."""
    model = LeNet5()
    model.load_state_dict({name: torch.from_numpy(value) for name, value in given.weights.items()})
    return model


def batches_of(given: GivenRound, client: int) -> Batches:
    """A client's batches, one for every local step."""
    inputs, labels = given.inputs[client], given.labels[client]
    return [(torch.from_numpy(x), torch.from_numpy(y)) for x, y in zip(inputs, labels, strict=True)]


def flat_weights(given: GivenRound, weights: Mapping[str, Tensor]) -> Flat:
    """A state dict as one vector."""
    return given.flat({name: value.detach().numpy() for name, value in weights.items()})


def train(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], learning_rate: float) -> None:
    """Plain SGD, a step for every batch."""
    optimiser = torch.optim.SGD(model.parameters(), lr=learning_rate)
    for inputs, labels in batches:
        optimiser.zero_grad()
        functional.cross_entropy(model(inputs), labels).backward()
        optimiser.step()
