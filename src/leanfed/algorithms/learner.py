"""The learner for any nn.Module: C clients one after another, each with its own running statistics and dropout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from leanfed.algorithms.contract import Weights
from leanfed.compression.picks import NumpyPicks, Picks
from leanfed.compression.tensor_picks import TensorPicks
from leanfed.tasks.batch import Batch
from leanfed.tasks.split import FlatModel, Split


@dataclass
class _Snapshot:
    """A client's part of the model's state, kept while other clients compute."""

    statistics: Tensor
    features: Tensor  # input of the private part in the last call
    generator: Tensor | None = None  # torch's random state, if the model draws random numbers


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread inside torch, restored afterwards: results must not depend on the caller's setting or the machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@final
class FlatLearner:
    """A `FlatModel` as a `Learner`; for one client it returns the model's own gradient without a copy.

    `load_clients` sets each client's statistics and seed, `statistics` returns the trained ones. A model without
    statistics and random draws needs neither.
    """

    def __init__(self, model: FlatModel, nested: Mapping[float, FlatLearner] | None = None) -> None:
        self.model = model
        self.device = model.device
        self.picks: Picks = NumpyPicks() if self.device.type == "cpu" else TensorPicks()
        self.row = 0  # the client whose state is in the model
        self.narrow: dict[tuple[int, ...], FlatLearner] = {}  # learners with fewer units (`algorithms.narrow`)
        self.nested = nested or {}  # learners of narrower models, by width (`rounds.nested`)
        self._clients: list[_Snapshot] = []
        self._rows = torch.empty(0, device=self.device)  # (C, d) gradients of several clients
        self._moved: dict[int, tuple[Tensor, Tensor]] = {}  # place -> a tensor of the host, and its copy here

    def here(self, place: int, values: Tensor) -> Tensor:
        """The server's values on the learner's device, copied once for all clients that see the same ones."""
        if values.device == self.device:
            return values
        if place not in self._moved or self._moved[place][0] is not values:
            self._moved[place] = values, values.to(self.device)
        return self._moved[place][1]

    @property
    def split(self) -> Split:
        """The model's parameters, divided into shared and private."""
        return self.model.split

    @property
    def initial(self) -> Tensor:
        """(d,) the model's initial weights."""
        return self.model.initial

    def load_clients(self, statistics: Tensor, seeds: Sequence[int] = ()) -> None:
        """Start with these clients' running statistics (C, size), and a seed for each if it draws random numbers."""
        self._clients = [_Snapshot(own, torch.empty(0, device=self.device)) for own in statistics]
        for client, seed in zip(self._clients, seeds, strict=False):
            client.generator = torch.Generator(self.device).manual_seed(seed).get_state()
        self.row = 0
        self._restore(self._clients[0])

    def statistics(self) -> Tensor:
        """The clients' running statistics (C, size) after training."""
        self._save(self._clients[self.row])
        return torch.stack([client.statistics for client in self._clients])

    def loss_and_gradient(self, weights: Weights, batch: Batch) -> tuple[Tensor, Tensor]:
        """(C,) and (C, d), one client after another."""
        clients = len(batch.labels)
        if clients == 1:
            loss, gradient = self.model.step(weights.row(0), batch.inputs[0], batch.labels[0])
            return loss.reshape(1), gradient.unsqueeze(0)
        if len(self._rows) != clients:
            self._rows = torch.empty(clients, self.split.size, device=self.device)
        losses = torch.empty(clients, device=self.device)
        for row in range(clients):
            self._switch_to(row)
            loss, gradient = self.model.step(weights.row(row), batch.inputs[row], batch.labels[row])
            losses[row], self._rows[row] = loss, gradient
        return losses, self._rows

    def head_gradient(self, weights: Weights, batch: Batch) -> Tensor:
        """(C, d_private), one client after another."""
        clients = len(batch.labels)
        if clients == 1:
            return self.model.head_gradient(weights.row(0)[1], batch.labels[0]).unsqueeze(0)
        slopes = []
        for row in range(clients):
            self._switch_to(row)
            shared, private = weights.row(row)
            self.model.load((shared,))  # those of another client may be loaded
            slopes.append(self.model.head_gradient(private, batch.labels[row]))
        return torch.stack(slopes)

    def _switch_to(self, row: int) -> None:
        """Swap another client's state into the model."""
        while len(self._clients) <= row:  # clients that were not loaded start from the initial statistics
            self._clients.append(_Snapshot(self.model.statistics.initial, torch.empty(0, device=self.device)))
        if row != self.row:
            self._save(self._clients[self.row])
            self._restore(self._clients[row])
            self.row = row

    def _restore(self, client: _Snapshot) -> None:
        self.model.features = client.features
        if self.model.statistics.size:
            self.model.statistics.write(client.statistics)
        if client.generator is not None:
            self._random().set_rng_state(client.generator)

    def _save(self, client: _Snapshot) -> None:
        client.features = self.model.features
        if self.model.statistics.size:
            client.statistics = self.model.statistics.read()
        if client.generator is not None:
            client.generator = self._random().get_rng_state()

    def _random(self) -> Any:
        """Where torch keeps the random state of the device."""
        return torch if self.device.type == "cpu" else torch.get_device_module(self.device)
