"""Estimated constants against losses whose constants are known."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from leanfed.tasks.split import FlatModel, Split
from leanfed.tasks.task import Batch
from leanfed.theory.constants import Probe, divergence_sq, estimate_constants, probe_client


class Bowl:
    """f(w; x) = curvature/2 |w - x|^2: gradient curvature (w - x), so L2 is the curvature everywhere."""

    def __init__(self, curvature: float) -> None:
        self.curvature = curvature
        self._gradient = torch.zeros(2)

    def loss_and_gradient(self, weights: Tensor, inputs: Tensor, labels: Tensor) -> tuple[float, Tensor]:
        apart = weights - inputs
        self._gradient.copy_(self.curvature * apart.mean(dim=0))  # overwritten by the next call, as a model's is
        return float(self.curvature / 2 * apart.square().sum(dim=1).mean()), self._gradient


def samples(*points: tuple[float, float]) -> Batch:
    return Batch(torch.tensor(points), torch.zeros(len(points)))


DATA = samples((1.0, 0.0), (-1.0, 0.0))  # mean 0, each one away from it
ONE_BY_ONE = [samples((1.0, 0.0)), samples((-1.0, 0.0))]


def test_the_constants_of_a_bowl_by_hand() -> None:
    probe = probe_client(Bowl(3.0), torch.tensor([0.0, 2.0]), DATA, ONE_BY_ONE, step=0.1)
    assert probe.loss == pytest.approx(3 / 2 * (1 + 4))
    assert probe.full_gradient.tolist() == pytest.approx([0.0, 6.0])
    assert probe.full_gradient_sq == pytest.approx(36.0)
    assert probe.gradient_slope == pytest.approx(3.0)  # the curvature
    assert probe.loss_slope == pytest.approx(6.0)  # |grad F| where it is steepest, here
    assert probe.gradient_sq == pytest.approx(9 * (1 + 4))
    assert probe.noise_sq == pytest.approx(9.0)
    assert probe.weight_norm == pytest.approx(2.0)


def test_other_points_count_where_they_are_steeper_or_larger() -> None:
    far = torch.tensor([0.0, 10.0])
    probe = probe_client(Bowl(3.0), torch.tensor([0.0, 2.0]), DATA, ONE_BY_ONE, step=0.1, others=[far])
    assert probe.loss_slope == pytest.approx(1.5 * (100 - 4) / 8)
    assert probe.gradient_slope == pytest.approx(3.0)
    assert probe.weight_norm == pytest.approx(10.0)


def test_at_the_bottom_there_is_no_slope() -> None:
    probe = probe_client(Bowl(3.0), torch.zeros(2), DATA, ONE_BY_ONE, step=0.1, others=[torch.zeros(2)])
    assert (probe.loss_slope, probe.gradient_slope, probe.full_gradient_sq) == (0.0, 0.0, 0.0)


def test_a_logistic_model_agrees_with_its_closed_form() -> None:
    model = nn.Linear(2, 2, bias=False)
    flat = FlatModel(model, Split({"weight": model.weight.shape}, {}))
    batch = Batch(torch.tensor([[3.0, 4.0]]), torch.tensor([0]))
    probe = probe_client(flat, torch.zeros(4), batch, [batch], step=1e-3)
    # At w = 0 both classes have probability 1/2: the gradient is (p - y) x = (-x/2, x/2), its norm |x|/sqrt(2).
    assert probe.loss == pytest.approx(np.log(2))
    assert probe.full_gradient_sq == pytest.approx(25 / 2)
    assert probe.noise_sq == pytest.approx(0.0, abs=1e-12)
    # Along it the curvature is |x|^2 times (1, -1)/sqrt(2) on diag(p) - p p^T, which is 1/2.
    assert probe.gradient_slope == pytest.approx(25 / 2, rel=2e-3)  # a step of 1e-3, in float32


def probe(gradient: list[float], **values: float) -> Probe:
    numbers = {"loss": 1.0, "loss_slope": 1.0, "gradient_slope": 1.0, "gradient_sq": 1.0, "noise_sq": 1.0}
    return Probe(**{**numbers, "weight_norm": 1.0, **values}, full_gradient=torch.tensor(gradient))


def test_the_largest_counts() -> None:
    probes = [probe([0.0], loss_slope=2.0, gradient_sq=9.0), probe([0.0], gradient_slope=5.0, noise_sq=0.25)]
    found = estimate_constants(probes, learning_rate=0.1, rounds=7)
    assert (found.loss_lipschitz, found.gradient_lipschitz, found.gradient_bound) == (2.0, 5.0, 3.0)
    assert (found.weight_bound, found.noise, found.learning_rate, found.rounds) == (1.0, 1.0, 0.1, 7)


def test_divergence_is_the_distance_of_base_gradients_to_their_mean() -> None:
    probes = [probe([4.0, 0.0, 99.0]), probe([0.0, 0.0, -99.0])]  # the last entry is the head's
    # Mean (1, 0) at weights 1 : 3.
    assert divergence_sq(probes, np.array([1.0, 3.0]), shared_size=2) == pytest.approx([9.0, 1.0])
    assert divergence_sq(probes[:1], np.array([0.2]), shared_size=2) == pytest.approx([0.0])
