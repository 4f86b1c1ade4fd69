"""LeNet-5's convolutions for a chunk of clients: the contract, and the version in plain torch.

A weight has a leading dimension of one, where all clients use the same, or of C, one set per client.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, final

import torch
from torch import Tensor
from torch.nn import functional

from leanfed.records import Ints
from leanfed.tasks.task import Images

DEEP = 16 * 25  # values per sample behind the second pooling, channel-first


class Convolutions(NamedTuple):
    """Weights (or their gradients) of the two convolutions, each with a leading dimension."""

    weight1: Tensor  # (1 or C, 6, 1, 5, 5)
    bias1: Tensor  # (1 or C, 6)
    weight2: Tensor  # (1 or C, 16, 6, 5, 5)
    bias2: Tensor


class Trunk(Protocol):
    """From samples to the input of conv3, and back to each client's own weight gradients."""

    def forward(self, rows: Ints, weights: Convolutions) -> Tensor:
        """Samples (C, B) by row number -> (C, B, 400)."""
        ...

    def backward(self, slope: Tensor, gradient: Convolutions) -> None:
        """Write the gradients of the last forward pass; `slope` (C, B, 400) is used up."""
        ...


class Pooled(NamedTuple):
    """A 2x2 maximum cut at zero, and where it came from."""

    value: Tensor  # (..., h, w)
    right: Tensor  # (..., 2h, w) the right one of each pair of columns is larger
    lower: Tensor  # (..., h, w) the lower one of the two is larger

    def spread(self, slope: Tensor) -> Tensor:
        """The slope at the pooled value, carried to the winners; (..., h, w) -> (..., 2h, 2w)."""
        slope = torch.where(self.value > 0, slope, 0)
        rows = torch.stack([slope.where(~self.lower, 0), slope.where(self.lower, 0)], -2).flatten(-3, -2)
        return torch.stack([rows.where(~self.right, 0), rows.where(self.right, 0)], -1).flatten(-2)


def pool(x: Tensor) -> Pooled:
    """Max-pooling and ReLU; the first in reading order wins among equals, as in MaxPool2d."""
    left, right = x[..., 0::2], x[..., 1::2]
    columns = torch.maximum(left, right)
    upper, lower = columns[..., 0::2, :], columns[..., 1::2, :]
    return Pooled(torch.maximum(upper, lower).relu_(), right > left, lower > upper)


def convolve(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """(C, B, in, H, W) -> (C, B, out, H - 4, W - 4), with one set of weights or one per client."""
    clients, batch = x.shape[:2]
    if len(weight) == 1:
        return torch.unflatten(functional.conv2d(x.flatten(0, 1), weight[0], bias[0]), 0, (clients, batch))
    # One call per client, not one with groups: its sums round as the reference's do, and near-ties of the pooling
    # (flat background is full of them) then have the same winner.
    biases = bias.expand(clients, -1)
    return torch.stack([functional.conv2d(*mine) for mine in zip(x, weight, biases, strict=True)])


def input_gradient(slope: Tensor, weight: Tensor) -> Tensor:
    """The reverse of `convolve` for its input."""
    clients, batch = slope.shape[:2]
    if len(weight) == 1:
        return torch.unflatten(functional.conv_transpose2d(slope.flatten(0, 1), weight[0]), 0, (clients, batch))
    grouped = slope.transpose(0, 1).flatten(1, 2)
    whole = functional.conv_transpose2d(grouped, weight.flatten(0, 1), groups=clients)
    return torch.unflatten(whole, 1, (clients, -1)).transpose(0, 1)


def weight_gradient(x: Tensor, slope: Tensor) -> Tensor:
    """Each client's own (C, out, in, 5, 5): the clients are groups, the samples channels of one convolution."""
    clients = len(x)
    images = x.permute(2, 0, 1, 3, 4).flatten(1, 2)  # (in, C B, H, W)
    filters = slope.transpose(1, 2).flatten(0, 1)  # (C out, B, h, w)
    whole = functional.conv2d(images, filters, groups=clients)  # (in, C out, 5, 5)
    return torch.unflatten(whole, 1, (clients, -1)).permute(1, 2, 0, 3, 4)


@final
class TorchTrunk:
    """Stock torch: the second reference, and the path where numba is missing."""

    def __init__(self, images: Images) -> None:
        self.images = images

    def forward(self, rows: Ints, weights: Convolutions) -> Tensor:
        """Samples (C, B) -> (C, B, 400)."""
        self.weights = weights
        self.input = torch.unflatten(self.images.batch(rows.reshape(-1)).inputs, 0, rows.shape)
        self.first = pool(convolve(self.input, weights.weight1, weights.bias1))
        self.second = pool(convolve(self.first.value, weights.weight2, weights.bias2))
        return self.second.value.flatten(2)

    def backward(self, slope: Tensor, gradient: Convolutions) -> None:
        """Both layers' gradients."""
        deep = self.second.spread(torch.unflatten(slope, 2, (16, 5, 5)))
        gradient.weight2.copy_(weight_gradient(self.first.value, deep))
        gradient.bias2.copy_(deep.sum((1, 3, 4)))
        shallow = self.first.spread(input_gradient(deep, self.weights.weight2))
        gradient.weight1.copy_(weight_gradient(self.input, shallow))
        gradient.bias1.copy_(shallow.sum((1, 3, 4)))
