"""Residual networks for 32x32 colour images: ResNet-18 with either stem, and the small ones of the CIFAR-10 paper."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from leanfed.errors import SettingsError
from leanfed.records import kept_count
from leanfed.tasks.chain import Chain, Stage

WIDTHS = (64, 128, 256, 512)  # channels of the four stages
GROUPS = 8  # of channels that are normalised together


class Conv3x3(nn.Conv2d):
    """A 3x3 convolution with padding 1 that skips kernel entries which only ever meet padding."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__(inside, outside, 3, stride, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """For a single output pixel (inputs up to 2x2), a linear layer of the kernel entries that meet the image."""
        height, width = x.shape[2:]
        if max(height, width) > self.stride[0]:
            return super().forward(x)
        taps = self.weight[:, :, 1 : 1 + height, 1 : 1 + width]
        return functional.linear(x.flatten(1), taps.flatten(1))[:, :, None, None]


class Block(nn.Module):
    """BasicBlock: two convolutions and a shortcut (He et al. 2016)."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = Conv3x3(inside, outside, stride)
        self.norm1 = nn.BatchNorm2d(outside)
        self.conv2 = Conv3x3(outside, outside, 1)
        self.norm2 = nn.BatchNorm2d(outside)
        self.shortcut = (
            nn.Sequential()
            if stride == 1 and inside == outside
            else nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))
        )

    def forward(self, x: Tensor) -> Tensor:
        """relu(f(x) + shortcut(x))."""
        y = functional.relu(self.norm1(self.conv1(x)), inplace=True)
        return functional.relu(self.norm2(self.conv2(y)) + self.shortcut(x), inplace=True)


class Residual(Chain):
    """A stem, stages of blocks, a linear layer on the mean over the picture: (batch, 3, 32, 32) -> (batch, classes)."""

    def __init__(self, stem: Iterable[nn.Module], stages: Iterable[nn.Sequential], width: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(*stem)
        for number, stage in enumerate(stages, start=1):
            self.add_module(f"stage{number}", stage)
        self.fc = nn.Linear(width, classes)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")

    def stages(self) -> dict[str, Stage]:
        """Block by block."""
        blocks = {
            f"{name}.{place}": block
            for name, stage in self.named_children()
            if isinstance(stage, nn.Sequential) and name != "stem"
            for place, block in enumerate(stage)
        }
        return {"stem": self.stem, **blocks, "fc": lambda x: self.fc(torch.mean(x, dim=(2, 3)))}


class ResNet18(Residual):
    """Four stages of two blocks: 11,173,962 parameters for ten classes with the small stem.

    The small stem keeps 32x32 pixels. The large one, made for 224x224, reduces them to 8x8: about a fifteenth of the
    arithmetic, and a last stage of one pixel, where only the centre of each 3x3 kernel is ever trained.
    """

    def __init__(
        self, classes: int, stem: Literal["small", "large"] = "small", widths: tuple[int, ...] = WIDTHS
    ) -> None:
        first = widths[0]
        layers = (
            (nn.Conv2d(3, first, 3, 1, 1, bias=False), nn.BatchNorm2d(first), nn.ReLU(inplace=True))
            if stem == "small"
            else (
                nn.Conv2d(3, first, 7, 2, 3, bias=False),
                nn.BatchNorm2d(first),
                nn.ReLU(inplace=True),
                nn.MaxPool2d(3, 2, 1),
            )
        )
        stages = (
            nn.Sequential(Block(inside, outside, stride), Block(outside, outside, 1))
            for inside, outside, stride in zip((first, *widths), widths, (1, 2, 2, 2), strict=False)
        )
        super().__init__(layers, stages, widths[-1], classes)


class SmallBlock(nn.Module):
    """BasicBlock with group normalisation, which keeps no running statistics, and a shortcut without weights.

    Where the block halves the image the shortcut takes every second pixel and pads channels with zeros (option A of He
    et al. 2016).
    """

    def __init__(self, inside: int, outside: int, stride: int, groups: int = GROUPS) -> None:
        super().__init__()
        self.conv1, self.norm1 = Conv3x3(inside, outside, stride), nn.GroupNorm(groups, outside)
        self.conv2, self.norm2 = Conv3x3(outside, outside, 1), nn.GroupNorm(groups, outside)
        self.stride, self.padding = stride, outside - inside

    def forward(self, x: Tensor) -> Tensor:
        """relu(f(x) + shortcut(x))."""
        y = functional.relu(self.norm1(self.conv1(x)), inplace=True)
        same = x[:, :, :: self.stride, :: self.stride]
        same = functional.pad(same, (0, 0, 0, 0, 0, self.padding)) if self.padding else same
        return functional.relu(self.norm2(self.conv2(y)) + same, inplace=True)


class SmallResNet(Residual):
    """Three stages of 16, 32 and 64 channels with n blocks each: 6n + 2 layers, of which n = 1 makes ResNet-8.

    With fewer `groups` it is narrower: channels are normalised with the same ones.
    """

    def __init__(self, classes: int, blocks: int, groups: int = GROUPS) -> None:
        first, second, third = (channels // GROUPS * groups for channels in (16, 32, 64))
        stem = (Conv3x3(3, first, 1), nn.GroupNorm(groups, first), nn.ReLU(inplace=True))
        stages = (
            nn.Sequential(
                SmallBlock(inside, outside, stride, groups),
                *(SmallBlock(outside, outside, 1, groups) for _ in range(blocks - 1)),
            )
            for inside, outside, stride in ((first, first, 1), (first, second, 2), (second, third, 2))
        )
        super().__init__(stem, stages, third, classes)


def narrow_resnet18(classes: int, width: float, stem: Literal["small", "large"] = "small") -> ResNet18:
    """ResNet-18 with this share of the channels of every stage, rounded down."""
    return ResNet18(classes, stem, tuple(_some(width, channels, "channels") for channels in WIDTHS))


def narrow_small_resnet(classes: int, width: float, blocks: int) -> SmallResNet:
    """A small ResNet with this share of the groups of channels, rounded down."""
    return SmallResNet(classes, blocks, _some(width, GROUPS, "groups of channels"))


def _some(width: float, count: int, what: str) -> int:
    """The share `width` of so many; refused where nothing is left."""
    left = kept_count(width, count)
    if not left:
        raise SettingsError(
            f"A width of {width:g} leaves none of the {count} {what} of a layer. Set it to {1 / count:g} or more."
        )
    return left
