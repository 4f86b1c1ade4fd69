"""Residual networks: the paper's sizes, every cut, and gradients of a plain model."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from leanfed.tasks.models import MODELS, build_model
from leanfed.tasks.resnet import Conv3x3, ResNet18, SmallBlock
from leanfed.tasks.split import FlatModel, flatten, split_after

NARROW = (4, 6, 8, 10)
BLOCKS = ["stem", *(f"stage{stage}.{block}" for stage in range(1, 5) for block in range(2))]


def narrow(stem: str = "small") -> nn.Module:
    torch.manual_seed(3)
    return ResNet18(10, stem, NARROW)


def pictures(count: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(0)), torch.arange(count)


@pytest.mark.parametrize(("name", "base"), [("resnet18", 6_448_192), ("resnet18-imagenet", 6_455_872)])
def test_the_sizes_with_the_last_block_private(name: str, base: int) -> None:
    model = build_model(name, 10, 0)
    split = split_after(model, MODELS[name].default_split)
    assert (split.shared_size, split.private_size) == (base, 4_725_770)
    statistics = FlatModel(model, split).statistics
    assert statistics.size == 2 * 4_800 + 20  # a mean and a variance per channel, a count per layer


@pytest.mark.parametrize("layer", BLOCKS)
def test_every_block_boundary_can_be_the_cut(layer: str) -> None:
    model = narrow()
    split = split_after(model, layer)
    assert list(split.shapes) == [name for name, _ in model.named_parameters()]  # nothing lost, in order
    after = BLOCKS[BLOCKS.index(layer) + 1] if layer != BLOCKS[-1] else "fc"
    assert next(iter(split.private)).startswith(f"{after}.")
    loss, gradient = FlatModel(model, split).loss_and_gradient(flatten(model, split.shapes), *pictures())
    assert loss > 0
    assert torch.count_nonzero(gradient) > 0.5 * split.size


@pytest.mark.parametrize(("stem", "seen"), [("small", 32), ("large", 8)])
def test_the_stems_leave_so_many_pixels(stem: str, seen: int) -> None:
    model = narrow(stem)
    assert model.stem(pictures()[0]).shape[2:] == (seen, seen)
    assert model(pictures()[0]).shape == (4, 10)


@pytest.mark.parametrize(("side", "stride"), [(1, 1), (2, 2), (1, 2), (2, 1), (4, 2)])
def test_the_short_cut_of_one_pixel_is_the_convolution(side: int, stride: int) -> None:
    layer, x = Conv3x3(3, 5, stride), torch.randn(2, 3, side, side, requires_grad=True)
    plain = functional.conv2d(x, layer.weight, stride=stride, padding=1)
    upstream = torch.randn_like(plain)
    expected = torch.autograd.grad(plain, (layer.weight, x), upstream)
    found = torch.autograd.grad(layer(x), (layer.weight, x), upstream)
    assert torch.allclose(layer(x), plain, atol=1e-6)
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5)


class StockConvolutions(nn.Module):
    """The same weights through torch's own convolutions only."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        for layer in model.modules():
            if isinstance(layer, Conv3x3):
                layer.forward = lambda x, layer=layer: nn.Conv2d.forward(layer, x)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.model(images)


@pytest.mark.parametrize("stem", ["small", "large"])
def test_a_clients_gradient_is_that_of_a_plain_model(stem: str) -> None:
    plain, inputs, labels = narrow(stem), *pictures(8)
    split = split_after(plain, "stage4.0")
    loss, gradient = FlatModel(narrow(stem), split).loss_and_gradient(flatten(plain, split.shapes), inputs, labels)
    expected = functional.cross_entropy(StockConvolutions(plain)(inputs), labels)
    expected.backward()
    parameters = dict(plain.named_parameters())
    theirs = torch.cat([parameters[name].grad.reshape(-1) for name in split.shapes])
    assert loss == pytest.approx(expected.item(), rel=1e-5)
    assert (gradient - theirs).norm() <= 1e-5 * theirs.norm()


@pytest.mark.parametrize(("name", "base", "head"), [("resnet8", 19_088, 56_202), ("resnet20", 195_088, 74_634)])
def test_the_small_ones_keep_no_statistics(name: str, base: int, head: int) -> None:
    model = build_model(name, 10, 0)
    split = split_after(model, MODELS[name].default_split)
    assert (split.shared_size, split.private_size) == (base, head)
    assert FlatModel(model, split).statistics.size == 0
    assert model(pictures()[0]).shape == (4, 10)
    last = next(iter(split.private))
    assert last.startswith(f"stage3.{0 if name == 'resnet8' else 2}.")  # the last block


def test_a_shortcut_without_weights_halves_and_pads() -> None:
    block = SmallBlock(8, 16, 2)
    for part in (block.norm1, block.norm2):
        nn.init.zeros_(part.weight)
        nn.init.zeros_(part.bias)
    x = torch.rand(2, 8, 4, 4)
    expected = torch.zeros(2, 16, 2, 2)
    expected[:, :8] = x[:, :, ::2, ::2]
    assert torch.equal(block(x), expected)
