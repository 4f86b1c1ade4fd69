"""LeNet-5's convolutions for a chunk of clients: the interface, and the implementation in plain torch.

A weight has a leading dimension of one (the same for all clients) or C (one set per client).
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, final

import torch
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from leanfed.records import Ints
from leanfed.tasks.task import Images

DEEP = 16 * 25  # values per sample after the second pooling, channel-first


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
        """Write the gradients of the last forward pass; `slope` (C, B, 400) is overwritten."""
        ...


class Pooled(NamedTuple):
    """2x2 max-pooling with ReLU, and which entry of each window is its maximum."""

    value: Tensor  # (..., h, w)
    right: Tensor  # (..., 2h, w) whether the right one of each pair of columns is larger
    lower: Tensor  # (..., h, w) whether the lower one of the two is larger

    def spread(self, slope: Tensor) -> Tensor:
        """The slope at the pooled value, assigned to the maxima; (..., h, w) -> (..., 2h, 2w)."""
        slope = torch.where(self.value > 0, slope, 0)
        rows = torch.stack([slope.where(~self.lower, 0), slope.where(self.lower, 0)], -2).flatten(-3, -2)
        return torch.stack([rows.where(~self.right, 0), rows.where(self.right, 0)], -1).flatten(-2)


def pool(x: Tensor) -> Pooled:
    """Max-pooling and ReLU; among equal entries the first in reading order is taken, as in MaxPool2d."""
    left, right = x[..., 0::2], x[..., 1::2]
    columns = torch.maximum(left, right)
    upper, lower = columns[..., 0::2, :], columns[..., 1::2, :]
    return Pooled(torch.maximum(upper, lower).relu_(), right > left, lower > upper)


# One call per client below: how a convolution rounds depends on the number of samples, and a client's numbers must not
# depend on the others in its chunk. Near-ties in the pooling, common in flat background, are then resolved as in the
# reference.


def convolve(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """(C, B, in, H, W) -> (C, B, out, H - 4, W - 4), with one set of weights or one per client."""
    each = zip(x, _per_client(weight, len(x)), _per_client(bias, len(x)), strict=True)
    return torch.stack([functional.conv2d(*mine) for mine in each])


def input_gradient(slope: Tensor, weight: Tensor) -> Tensor:
    """The gradient of `convolve` with respect to its input, from the slope at its output."""
    each = zip(slope, _per_client(weight, len(slope)), strict=True)
    return torch.stack([functional.conv_transpose2d(*mine) for mine in each])


def weight_gradient(x: Tensor, slope: Tensor) -> Tensor:
    """Each client's own (C, out, in, 5, 5): its samples are the channels of one convolution."""
    each = zip(x.transpose(1, 2), slope.transpose(1, 2), strict=True)  # (in, B, H, W) and (out, B, h, w)
    return torch.stack([functional.conv2d(*mine) for mine in each]).transpose(1, 2)


def _per_client(weight: Tensor, clients: int) -> Tensor:
    return weight.expand(clients, *weight.shape[1:])


@final
class TorchTrunk(Trunk):
    """Plain torch: a second reference, and the implementation without numba."""

    def __init__(self, images: Images) -> None:
        self.images = images

    @override
    def forward(self, rows: Ints, weights: Convolutions) -> Tensor:
        self.weights = weights
        self.input = torch.unflatten(self.images.batch(rows.reshape(-1)).inputs, 0, rows.shape)
        self.first = pool(convolve(self.input, weights.weight1, weights.bias1))
        self.second = pool(convolve(self.first.value, weights.weight2, weights.bias2))
        return self.second.value.flatten(2)

    @override
    def backward(self, slope: Tensor, gradient: Convolutions) -> None:
        deep = self.second.spread(torch.unflatten(slope, 2, (16, 5, 5)))
        gradient.weight2.copy_(weight_gradient(self.first.value, deep))
        gradient.bias2.copy_(deep.sum((1, 3, 4)))
        shallow = self.first.spread(input_gradient(deep, self.weights.weight2))
        gradient.weight1.copy_(weight_gradient(self.input, shallow))
        gradient.bias1.copy_(shallow.sum((1, 3, 4)))
