"""Head steps by a budget of work."""

from __future__ import annotations

import pytest

from leanfed.runs.settings import Settings
from leanfed.tasks.head_budget import MOST, WORK, head_steps, steps_within


@pytest.mark.parametrize(
    ("model", "cut", "steps"),
    [
        *(("lenet5", None, 5), ("lenet5", "conv3", 5), ("lenet5", "conv2", 1), ("lenet5", "fc1", 20)),
        *(("resnet8", None, 1), ("resnet20", None, 1), ("resnet18", None, 1), ("resnet18-imagenet", None, 1)),
        *(("bert-lora", None, 1), ("tiny-norm", None, 1), ("nowhere", None, 1), ("transformers:none", None, 1)),
    ],
)
def test_what_heads_behind_a_cut_take(model: str, cut: str | None, steps: int) -> None:
    """Behind the packaged models' own cuts as in all published results; one where work is unknown."""
    assert head_steps(model, cut) == steps


def test_further_steps_stay_within_the_budget_and_another_one_would_not() -> None:
    for share in (0.9, 0.11, 0.026, 0.0056):
        steps = steps_within(share)
        assert (steps - 1) * share <= WORK + 1e-12
        assert steps == MOST or steps * share > WORK


def test_the_fast_form_follows_the_cut_unless_steps_are_stated() -> None:
    values = {"allocation": {"rule": "joint"}, "task": {"split": "fc1"}}
    assert Settings.from_values(values).algorithm.work(1.0).head_passes == MOST - 1
    stated = {**values, "algorithm": {"name": "flpdsp", "head_steps": 3}}
    assert Settings.from_values(stated).algorithm.work(1.0).head_passes == 2
