"""Losses by name: what they need of labels, the scores beside them, the best constant guess."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from leanfed.errors import SettingsError
from leanfed.rounds.evaluation import Evaluation
from leanfed.tasks.guess import guess_score
from leanfed.tasks.losses import LOSSES, add_loss, fit, named
from leanfed.tasks.task import TaskSettings


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    before = set(LOSSES)
    yield
    for name in set(LOSSES) - before:
        LOSSES.remove(name)


def pinball(outputs: Tensor, labels: Tensor) -> Tensor:
    """The loss of the 90 % quantile."""
    gap = labels - outputs
    return torch.maximum(0.9 * gap, -0.1 * gap).mean()


@pytest.mark.parametrize("name", list(LOSSES))
def test_a_sum_is_the_mean_times_the_number_of_labels(name: str) -> None:
    spec, rng = LOSSES[name], torch.Generator().manual_seed(1)
    outputs = torch.randn(6, 3, generator=rng)
    labels = torch.randint(3, (6,), generator=rng) if spec.labels == "classes" else torch.rand(6, 3, generator=rng)
    assert spec.summed(outputs, labels) == pytest.approx(
        float(spec.compute(outputs, labels)) * labels.numel(), rel=1e-6
    )


def test_a_function_becomes_a_name_that_settings_can_hold() -> None:
    settings = TaskSettings(loss=pinball)
    assert settings.loss == "pinball"
    assert LOSSES["pinball"].compute is pinball
    assert TaskSettings(loss=pinball).loss == "pinball"  # the same again
    assert str(named(lambda outputs, labels: outputs.mean())).startswith("lambda-")
    LOSSES.remove("pinball")
    add_loss("pinball", functional.l1_loss)
    with pytest.raises(ValueError, match="another loss is called 'pinball'"):
        TaskSettings(loss=pinball)
    with pytest.raises(SettingsError, match="Unknown loss 'mze'.*mse"):
        LOSSES["mze"]


def test_one_output_stands_for_labels_without_a_last_axis() -> None:
    outputs, labels = torch.zeros(4, 1), torch.ones(4)
    assert fit(outputs, labels).shape == (4,)
    assert fit(torch.zeros(4, 3), torch.zeros(4, dtype=torch.int64)).shape == (4, 3)


def test_the_best_constant_is_the_majority_the_median_or_what_the_loss_likes() -> None:
    labels, tests = np.array([1, 1, 0]), np.array([1, 0, 0, 0])
    assert guess_score(LOSSES["cross_entropy"], labels, tests, 2) == 0.25
    numbers, later = np.array([0.0, 1.0, 5.0], np.float32), np.array([1.0, 3.0], np.float32)
    assert guess_score(LOSSES["mse"], numbers, later, 1) == 1.0  # median 1
    ones = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]], np.float32)
    assert guess_score(LOSSES["binary_cross_entropy"], ones, ones, 2) == pytest.approx(2 / 3)
    add_loss("pinball", pinball)
    many = np.arange(101, dtype=np.float32)  # its 90 % quantile is 90
    at_90 = float(np.mean(np.maximum(0.9 * (many - 90), -0.1 * (many - 90))))
    assert guess_score(LOSSES["pinball"], many, many, 1) == pytest.approx(at_90, rel=0.02)
    square = add_loss("square", functional.mse_loss)
    assert guess_score(square, numbers, numbers, 1) == pytest.approx(float(np.var(numbers)), rel=1e-4)


def test_errors_are_weighted_and_the_worst_tenth_has_the_largest() -> None:
    errors = {"mae": np.array([1.0, 3.0]), "mse": np.array([1.0, 13.0])}
    result = Evaluation(np.empty(0), np.array([0.5, 1.5]), np.array([0.75, 0.25]), errors=errors)
    assert (result.accuracy, result.main, result.worst_decile) == (None, "mae", 3.0)
    assert result.further == {"mae": 1.5, "rmse": 2.0}  # sqrt(0.75 + 3.25)
    text = Evaluation(np.array([0.5, 0.5]), np.log([8.0, 2.0]), np.array([0.5, 0.5]), perplexed=True)
    assert text.further == {"perplexity": pytest.approx(4.0)}  # exp of the mean log
