"""How alike clients are, layer by layer: from two gradients of each at one common model.

With g_a, g_b of two batches of b samples, per layer: S = mean <g_a, g_b> estimates |grad F_n|^2 without bias,
sigma^2 = mean |g_a - g_b|^2 / 2 is the noise of a batch, cross = mean <g_n, g_m> over pairs of different clients, and
delta^2 = S - cross the divergence of clients (delta_n^2 of Psi1). A client with more than n* = b sigma^2 / delta^2
samples estimates its own gradient better alone than the mean of all does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from leanfed.records import Floats


@dataclass(frozen=True)
class Agreement:
    """What the gradients of some clients say, one entry per layer."""

    own_sq: Floats  # S
    noise_sq: Floats  # sigma^2, of a batch
    cross: Floats

    @property
    def divergence_sq(self) -> Floats:
        """delta^2 = S - cross; below zero where clients are alike and the noise is larger than the difference."""
        return self.own_sq - self.cross

    def worth_sharing(self, batch_size: int, samples: float) -> Floats:
        """n* / n, at most 1: the part of a client's samples up to which the mean of all is the better estimate."""
        wanted = samples * np.maximum(self.divergence_sq, 0.0)
        limited = batch_size * self.noise_sq >= wanted
        ratio = np.divide(batch_size * self.noise_sq, wanted, out=np.ones_like(wanted), where=~limited)
        return np.asarray(ratio)


def agreement(pairs: Iterable[tuple[Tensor, Tensor]], sizes: Sequence[int]) -> Agreement:
    """The agreement of clients from a pair of gradients (d,) of each; `sizes` are those of the layers, d in all.

    Only one client's gradients are held at a time.
    """
    own, noise, alone = (np.zeros(len(sizes)) for _ in range(3))
    total, count = torch.zeros(sum(sizes), dtype=torch.float64), 0
    for first, second in pairs:
        a, b = first.double(), second.double()
        mean = (a + b) / 2
        own += _by_layer(a * b, sizes)
        noise += _by_layer((a - b).square(), sizes) / 2
        alone += _by_layer(mean.square(), sizes)
        total += mean
        count += 1
    if count < 2:
        raise ValueError(f"agreement needs two clients at least, but there are {count}")
    cross = (_by_layer(total.square(), sizes) - alone) / (count * (count - 1))
    return Agreement(own / count, noise / count, cross)


def _by_layer(values: Tensor, sizes: Sequence[int]) -> Floats:
    return np.array([float(part.sum()) for part in torch.split(values, list(sizes))])
