"""Narrower models inside a model: where their values are, and that they compute what the masked whole one does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from leanfed.errors import SettingsError
from leanfed.tasks.chain import layer_work
from leanfed.tasks.models import MODELS, build_model, narrow_model
from leanfed.tasks.nest import inner_model, places_of
from leanfed.tasks.split import FlatModel, flatten, split_after

WIDTH_MODELS = ["resnet18-imagenet", "resnet8"]


def shapes(model: nn.Module) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in model.named_parameters()}


def test_places_are_the_first_rows_and_columns() -> None:
    small, whole = {"a": torch.Size([2, 1]), "b": torch.Size([2])}, {"a": torch.Size([3, 2]), "b": torch.Size([3])}
    assert places_of(small, whole).tolist() == [0, 2, 6, 7]


@pytest.mark.parametrize("name", WIDTH_MODELS)
@pytest.mark.parametrize("train", [True, False], ids=["statistics of the batch", "running statistics"])
def test_a_narrow_model_computes_what_the_masked_whole_one_does(name: str, train: bool) -> None:
    """Loss and gradient where it has weights, and no gradient elsewhere; batch and group normalisation alike.

    1e-5: sums over channels of zeros are taken in another order.
    """
    whole = build_model(name, 10, 3).train(train)
    small = narrow_model(whole, name, 10, 0.5).train(train)
    places = places_of(shapes(small), shapes(whole))
    masked = torch.zeros_like(flatten(whole, shapes(whole)))
    masked[places] = flatten(small, shapes(small))
    nn.utils.vector_to_parameters(masked, whole.parameters())
    x, y = torch.randn(6, 3, 32, 32, generator=torch.Generator().manual_seed(1)), torch.arange(6)
    losses, slopes = [], []
    for model in (whole, small):
        loss = nn.functional.cross_entropy(model(x), y)
        losses.append(loss.item())
        slopes.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))]))
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    torch.testing.assert_close(slopes[0][places], slopes[1], rtol=1e-3, atol=1e-5)
    others = torch.ones(len(masked), dtype=torch.bool)
    others[places] = False
    assert not slopes[0][others].any()


@pytest.mark.parametrize("name", WIDTH_MODELS)
def test_narrow_models_are_nested_and_a_width_of_one_is_the_whole(name: str) -> None:
    whole = build_model(name, 10, 3)
    inside = [set(places_of(shapes(narrow_model(whole, name, 10, w)), shapes(whole)).tolist()) for w in (0.25, 0.5, 1)]
    assert inside[0] < inside[1] < inside[2]
    assert len(inside[2]) == sum(value.numel() for value in whole.parameters())


def test_half_of_resnet18_has_a_quarter_of_its_weights_and_its_first_channels() -> None:
    whole = build_model("resnet18", 10, 0)
    small = narrow_model(whole, "resnet18", 10, 0.5)
    split = split_after(small, "stage4.0")
    assert (split.shared_size, split.private_size) == (1_614_368, 1_183_242)
    assert torch.equal(small.stage2[0].conv1.weight, whole.stage2[0].conv1.weight[:64, :32])
    assert torch.equal(small.fc.weight, whole.fc.weight[:, :256])
    assert FlatModel(small, split).statistics.size == 4_800 + 20


@pytest.mark.parametrize(("name", "width", "least"), [("resnet18", 0.01, "0.015625"), ("resnet8", 0.1, "0.125")])
def test_a_width_below_one_channel_is_refused(name: str, width: float, least: str) -> None:
    with pytest.raises(SettingsError, match=f"width of {width} leaves none .* Set it to {least} or more"):
        narrow_model(build_model(name, 10, 0), name, 10, width)


def test_models_of_one_width_and_wrong_narrow_ones_are_refused() -> None:
    with pytest.raises(SettingsError, match=r"'lenet5' comes in one width only. Leave \[width\] out"):
        narrow_model(build_model("lenet5", 10, 0), "lenet5", 10, 0.5)
    with pytest.raises(SettingsError, match=r"'weight' .* has the shape \(3, 4\), which is not inside \(3, 2\)"):
        inner_model(nn.Linear(2, 3), nn.Linear(4, 3))
    with pytest.raises(SettingsError, match="under the same names"):
        inner_model(nn.Linear(2, 3), nn.Linear(2, 3, bias=False))
    assert MODELS["resnet20"].narrow is not None


def test_the_time_of_narrow_steps_that_the_documents_tell_was_measured() -> None:
    """A client at half width of ResNet-18 takes at most 0.45 of a whole step, taking out and putting back included."""
    root = Path(__file__).resolve().parents[3]
    rows = json.loads((root / "results/narrow/widths.json").read_text())
    followed = [row for row in rows if row["model"].startswith("resnet18")]  # VALUE_WORK was fitted to these
    assert {row["width"] for row in followed} == {1.0, 0.75, 0.5, 0.25}
    for row in followed:
        assert abs(row["operations"] / row["step"] - 1) < 0.15
        assert abs(row["step"] / row["operations"] - 1) < 0.15
        if row["width"] == 0.5:
            assert row["operations"] == pytest.approx(_charged(row["model"], 0.5), abs=6e-4)
    half = {row["model"]: row for row in rows if row["width"] == 0.5}
    assert half["resnet18"]["client"] <= 0.45
    assert half["resnet18-imagenet"]["step"] <= 0.45
    page = (root / "docs/measurements.md").read_text()
    for row in (row for row in rows if row["width"] < 1):
        told = " | ".join(f"{row[kind]:.2f}" for kind in ("step", "client", "operations", "weights"))
        assert f"| {row['model']}, {row['batch_size']} | {row['width']} | {told} |" in page


def _charged(name: str, width: float) -> float:
    """What a step of a narrower model is charged by operations, over a step of the whole one."""
    shape, whole = MODELS[name].input_shape, build_model(name, 10, 0)
    assert shape is not None
    small = narrow_model(whole, name, 10, width)
    times = [sum(work.time for work in layer_work(model, shape).values()) for model in (small, whole)]
    return times[0] / times[1]
