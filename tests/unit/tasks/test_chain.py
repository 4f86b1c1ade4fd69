"""Heads that go on from features: what they cost, and that they learn as if the whole model had run again."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from leanfed.tasks.chain import cut_at, multiply_adds
from leanfed.tasks.models import MODELS, LeNet5, build_model
from leanfed.tasks.resnet import ResNet18
from leanfed.tasks.split import FlatModel, split_after


def test_multiply_adds_of_lenet_by_hand() -> None:
    by_hand = [28 * 28 * 6 * 25, 10 * 10 * 16 * 150, 400 * 120, 120 * 84, 84 * 10]
    assert multiply_adds(LeNet5(10), (1, 32, 32)) == by_hand


def test_counting_leaves_the_model_as_it_was() -> None:
    model = ResNet18(10, "large", (4, 8, 8, 8)).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert len(multiply_adds(model, (3, 32, 32))) == len(model.stages()) == 10
    assert model.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert not any(layer._forward_hooks for layer in model.modules())


@pytest.mark.parametrize(
    ("model", "layer"),
    [
        ("lenet5", "conv1"),
        ("lenet5", "conv3"),
        ("lenet5", "fc1"),
        ("resnet18-imagenet", "stage4.0"),
        ("resnet18-imagenet", "stage2.0.conv1"),  # inside a stage
        ("tiny-norm", "norm1"),  # no chain
    ],
)
def test_a_head_gradient_is_the_whole_models(model: str, layer: str) -> None:
    torch.manual_seed(1)
    network = build_model(model, 10, seed=0)
    split = split_after(network, layer)
    flat = FlatModel(network, split)
    inputs, labels = torch.randn(6, *(MODELS[model].input_shape or ())), torch.arange(6)
    shared, private = flat.initial[: split.shared_size], flat.initial[split.shared_size :]
    other = private + 0.01 * torch.randn_like(private)
    expected = flat.loss_and_gradient(torch.cat([shared, other]), inputs, labels)[1][split.shared_size :].clone()
    flat.loss_and_gradient(torch.cat([shared, private]), inputs, labels)
    assert torch.allclose(flat.head_gradient(other, labels), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("model", "layer"), [("tiny-norm", "norm1"), ("resnet18-imagenet", "stage4.0")])
def test_further_steps_of_a_head_leave_the_bases_running_statistics_alone(model: str, layer: str) -> None:
    torch.manual_seed(2)
    network = build_model(model, 10, seed=0)
    split = split_after(network, layer)
    flat = FlatModel(network, split, share_statistics=True)
    inputs, labels = torch.randn(6, *(MODELS[model].input_shape or ())), torch.arange(6)
    flat.loss_and_gradient(flat.initial, inputs, labels)
    once = flat.statistics.read()
    flat.head_gradient(flat.initial[split.shared_size :], labels)
    often, base = flat.statistics.read(), flat.statistics.places
    assert len(base) < len(once)
    assert torch.equal(often[base], once[base])
    assert not torch.equal(often, once)  # the head's own follow its steps


def test_a_sequence_of_ones_own_goes_on_from_features_bit_for_bit() -> None:
    """Its norm's statistics stay those of one pass; one that drops out runs again as a whole."""
    torch.manual_seed(3)
    layers = [nn.Conv1d(2, 3, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Flatten(), nn.Linear(18, 4)]
    sequence, whole = nn.Sequential(*layers), Wrapped(nn.Sequential(*copy.deepcopy(layers)))
    inputs, labels = torch.randn(5, 2, 8), torch.arange(5) % 4
    answers = []
    for model, layer in ((sequence, "1"), (whole, "inner.1")):
        split = split_after(model, layer)
        flat = FlatModel(model, split)
        flat.loss_and_gradient(flat.initial, inputs, labels)
        slope = flat.head_gradient(flat.initial[split.shared_size :] * 1.01, labels)
        answers.append((slope, flat.features.shape, flat.statistics.read()))
    (ours, stored, statistics), (theirs, batch, theirs_statistics) = answers
    assert torch.equal(ours, theirs)
    assert torch.equal(statistics, theirs_statistics)
    assert (tuple(stored), tuple(batch)) == ((5, 18), (5, 2, 8))
    assert cut_at(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5), nn.Linear(2, 2)), ["2.weight"])[0] == []


class Wrapped(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)
