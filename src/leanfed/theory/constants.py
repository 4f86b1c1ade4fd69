"""The constants of Assumptions 1-3, estimated on a run by probing clients where they stand; the largest counts.

A probe is one client's gradient on its own samples, a few mini-batch gradients, and slopes between pairs of points:
to where one full step leads, and to any other point of interest (the model before pruning). Slopes between points of
the trajectory are lower bounds of the true L1 and L2, which hold everywhere; they are the values that the run has met.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from leanfed.records import Floats
from leanfed.tasks.task import Batch
from leanfed.theory.bound import Constants


class Loss(Protocol):
    """A mean loss over samples and its gradient; the gradient may be overwritten by the next call."""

    def loss_and_gradient(self, weights: Tensor, inputs: Tensor, labels: Tensor) -> tuple[float, Tensor]:
        """(loss, gradient) at the weights."""
        ...


@dataclass(frozen=True)
class Probe:
    """What one client shows at its weights x."""

    loss: float  # F(x)
    loss_slope: float  # the largest |F(x) - F(y)| / |x - y|, and at least |grad F(x)|, its limit
    gradient_slope: float  # the largest |grad F(x) - grad F(y)| / |x - y|
    gradient_sq: float  # mean |g|^2 of mini-batches
    noise_sq: float  # mean |grad F(x) - g|^2 of mini-batches
    weight_norm: float  # the largest |w| among x and the other points given
    full_gradient: Tensor  # grad F(x), (d,)

    @property
    def full_gradient_sq(self) -> float:
        """|grad F(x)|^2: what Theorem 1 bounds."""
        return float(self.full_gradient.square().sum())


def probe_client(
    model: Loss, weights: Tensor, data: Batch, batches: Iterable[Batch], *, step: float, others: Sequence[Tensor] = ()
) -> Probe:
    """Measure one client at `weights`; pairs are made with one full step of size `step` and with the `others`."""
    loss, gradient = model.loss_and_gradient(weights, data.inputs, data.labels)
    here = gradient.clone()
    pairs = [_slopes(model, data, weights, loss, here, other) for other in (weights - step * here, *others)]
    drawn = [model.loss_and_gradient(weights, batch.inputs, batch.labels)[1].clone() for batch in batches]
    return Probe(
        loss=loss,
        loss_slope=max(_norm(here), *(slope for slope, _ in pairs)),
        gradient_slope=max(slope for _, slope in pairs),
        gradient_sq=float(np.mean([_norm(one) ** 2 for one in drawn])),
        noise_sq=float(np.mean([_norm(one - here) ** 2 for one in drawn])),
        weight_norm=max(_norm(point) for point in (weights, *others)),
        full_gradient=here,
    )


def _slopes(model: Loss, data: Batch, x: Tensor, loss: float, gradient: Tensor, y: Tensor) -> tuple[float, float]:
    """Of the loss and of its gradient between x and y; zero where the points are one."""
    distance = _norm(x - y)
    if distance == 0.0:
        return 0.0, 0.0
    loss_there, gradient_there = model.loss_and_gradient(y, data.inputs, data.labels)
    return abs(loss - loss_there) / distance, _norm(gradient - gradient_there) / distance


def _norm(vector: Tensor) -> float:
    return float(torch.linalg.vector_norm(vector))


def estimate_constants(probes: Sequence[Probe], *, learning_rate: float, rounds: int) -> Constants:
    """The largest of every quantity over the probes, as the remark on Proposition 1 takes it over the devices."""
    return Constants(
        loss_lipschitz=max(probe.loss_slope for probe in probes),
        gradient_lipschitz=max(probe.gradient_slope for probe in probes),
        gradient_bound=max(probe.gradient_sq for probe in probes) ** 0.5,
        weight_bound=max(probe.weight_norm for probe in probes),
        noise=max(probe.noise_sq for probe in probes) ** 0.5,
        learning_rate=learning_rate,
        rounds=rounds,
    )


def divergence_sq(probes: Sequence[Probe], gamma: Floats, shared_size: int) -> Floats:
    """delta_n^2 = |grad F_n^B - sum_i gamma_i grad F_i^B|^2: how far each client's base gradient is from the mean."""
    gradients = torch.stack([probe.full_gradient[:shared_size] for probe in probes]).double()
    weights = torch.from_numpy(np.asarray(gamma, dtype=float) / np.sum(gamma))
    return np.asarray((gradients - weights @ gradients).square().sum(dim=1).numpy())
