"""The learner for any nn.Module: C clients one after another, each with its own running statistics and dropout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from leanfed.algorithms.contract import Weights
from leanfed.compression.picks import NumpyPicks
from leanfed.tasks.batch import Batch
from leanfed.tasks.split import FlatModel, Split


@dataclass
class _Seat:
    """What a model keeps of one client between two of its turns."""

    statistics: Tensor
    features: Tensor  # what entered the private part in the last call
    generator: Tensor | None = None  # torch's state, where the model draws at random


@final
class FlatLearner:
    """A `FlatModel` behind the contract `Learner`; with one client it hands the model's own gradient on.

    `seat` says what each client brings, `statistics` what it takes away. A model that keeps nothing beside its weights
    needs neither.
    """

    def __init__(self, model: FlatModel) -> None:
        self.model = model
        self.picks = NumpyPicks()
        self.row = 0  # whose turn it is
        self._seats: list[_Seat] = []
        self._rows = torch.empty(0)  # (C, d) gradients of several clients

    @property
    def split(self) -> Split:
        """The cut of the model."""
        return self.model.split

    @property
    def initial(self) -> Tensor:
        """(d,) the weights the model was built with."""
        return self.model.initial

    def seat(self, statistics: Tensor, seeds: Sequence[int] = ()) -> None:
        """Clients come in with their running statistics (C, size), and a seed each where the model draws at random."""
        self._seats = [_Seat(own, torch.empty(0)) for own in statistics]
        for seat, seed in zip(self._seats, seeds, strict=False):
            seat.generator = torch.Generator().manual_seed(seed).get_state()
        self.row = 0
        self._enter(self._seats[0])

    def statistics(self) -> Tensor:
        """(C, size) what the seated clients have made of theirs."""
        self._leave(self._seats[self.row])
        return torch.stack([seat.statistics for seat in self._seats])

    def loss_and_gradient(self, weights: Weights, batch: Batch) -> tuple[Tensor, Tensor]:
        """(C,) and (C, d), a row after another."""
        clients = len(batch.labels)
        if clients == 1:
            loss, gradient = self.model.loss_and_gradient(weights.row(0), batch.inputs[0], batch.labels[0])
            return torch.tensor([loss]), gradient.unsqueeze(0)
        if len(self._rows) != clients:
            self._rows = torch.empty(clients, self.split.size)
        losses = torch.empty(clients)
        for row in range(clients):
            self._turn(row)
            loss, gradient = self.model.loss_and_gradient(weights.row(row), batch.inputs[row], batch.labels[row])
            losses[row], self._rows[row] = loss, gradient
        return losses, self._rows

    def head_gradient(self, weights: Weights, batch: Batch) -> Tensor:
        """(C, d_private), a row after another."""
        clients = len(batch.labels)
        if clients == 1:
            return self.model.head_gradient(weights.row(0)[1], batch.labels[0]).unsqueeze(0)
        slopes = []
        for row in range(clients):
            self._turn(row)
            shared, private = weights.row(row)
            self.model.load((shared,))  # another client's may be in place
            slopes.append(self.model.head_gradient(private, batch.labels[row]))
        return torch.stack(slopes)

    def _turn(self, row: int) -> None:
        """Let another client in."""
        while len(self._seats) <= row:  # clients that were not seated begin as the model was built
            self._seats.append(_Seat(self.model.statistics.initial, torch.empty(0)))
        if row != self.row:
            self._leave(self._seats[self.row])
            self._enter(self._seats[row])
            self.row = row

    def _enter(self, seat: _Seat) -> None:
        self.model.features = seat.features
        if self.model.statistics.size:
            self.model.statistics.write(seat.statistics)
        if seat.generator is not None:
            torch.set_rng_state(seat.generator)

    def _leave(self, seat: _Seat) -> None:
        seat.features = self.model.features
        if self.model.statistics.size:
            seat.statistics = self.model.statistics.read()
        if seat.generator is not None:
            seat.generator = torch.get_rng_state()
