"""LeNet-5 for a chunk of clients at once: every client's loss and its own gradient, written out layer by layer.

Weights come in two parts, shared and private, each with a leading dimension of one (the same for all clients) or C
(one set per client). So the same code serves any cut of the model, one or several local steps, and any method.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from torch import Tensor
from torch.nn import functional

from leanfed.algorithms.contract import Weights
from leanfed.compression.picks import Picks
from leanfed.simulation.batched.trunk import Convolutions, Trunk
from leanfed.tasks.batch import Batch
from leanfed.tasks.split import Split

DENSE = ("conv3", "fc1", "fc2")  # conv3's input is as large as its kernel


class DenseLayer(NamedTuple):
    """A fully connected layer (conv3 is one)."""

    weight: Tensor  # (1 or C, out, in)
    bias: Tensor  # (1 or C, out)


def apply_dense(x: Tensor, layer: DenseLayer) -> Tensor:
    """(C, B, in) -> (C, B, out)."""
    if len(layer.weight) == 1:
        return functional.linear(x, layer.weight[0], layer.bias[0])
    return torch.baddbmm(layer.bias.unsqueeze(1), x, layer.weight.transpose(1, 2))


def write_gradient(x: Tensor, slope: Tensor, gradient: DenseLayer) -> None:
    """Write each client's gradient of a layer, from the layer's input and the slope at its output."""
    torch.bmm(slope.transpose(1, 2), x, out=gradient.weight)
    torch.sum(slope, 1, out=gradient.bias)


def slope_before(slope: Tensor, layer: DenseLayer) -> Tensor:
    """The slope at a layer's input, (C, B, in)."""
    if len(layer.weight) == 1:
        return slope @ layer.weight[0]
    return torch.bmm(slope, layer.weight)


def cross_entropy(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Each client's mean loss (C,) over its batch, and the slope of that mean at the logits (C, B, classes)."""
    # Softmax works row by row. The exponential of the logarithm above would not do: torch rounds the last entries of a
    # tensor differently from the others, so a client's slope would depend on the number of clients.
    at_label = labels.unsqueeze(2)
    loss = -functional.log_softmax(logits, 2).gather(2, at_label).squeeze(2).mean(1)
    slope = functional.softmax(logits, 2).scatter_add_(2, at_label, torch.full(at_label.shape, -1.0))
    return loss, slope.div_(labels.shape[1])


def dense_pass(
    x: Tensor, layers: Sequence[DenseLayer], gradients: Sequence[DenseLayer], labels: Tensor
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Forward and backward pass through dense layers with ReLU between them; writes each layer's gradient.

    Returns each client's loss (C,), the slope at the first layer's output, and the input of each layer.
    """
    entering = [x]
    for layer in layers[:-1]:
        entering.append(apply_dense(entering[-1], layer).relu_())
    loss, slope = cross_entropy(apply_dense(entering[-1], layers[-1]), labels)
    for i in reversed(range(1, len(layers))):
        write_gradient(entering[i], slope, gradients[i])
        slope = slope_before(slope, layers[i]).mul_(entering[i] > 0)
    write_gradient(x, slope, gradients[0])
    return loss, slope, entering


@dataclass(frozen=True)
class _Place:
    """Where a parameter lies in the flat vector."""

    part: int  # 0 shared, 1 private
    start: int  # within its part
    offset: int  # of its part in [shared | private]
    shape: torch.Size

    def of(self, weights: Weights) -> Tensor:
        """The parameter in a chunk's weights."""
        return self.slice(weights[self.part], self.start)

    def of_gradient(self, gradient: Tensor) -> Tensor:
        """The parameter's part of a (C, d) gradient."""
        return self.slice(gradient, self.offset + self.start)

    def slice(self, matrix: Tensor, start: int) -> Tensor:
        """(rows, d) -> (rows, *shape), a view."""
        return matrix[:, start : start + math.prod(self.shape)].view(-1, *self.shape)


@final
class LeNetLearner:
    """LeNet-5 as a `Learner`: batches hold row numbers (C, B) of the trunk's samples.

    The gradient buffer has at most `clients` rows and is overwritten by every call.
    """

    def __init__(self, split: Split, initial: Tensor, trunk: Trunk, picks: Picks, clients: int) -> None:
        self.split = split
        self.initial = initial  # (d,)
        self.trunk = trunk
        self.picks = picks
        self.gradient = torch.zeros(clients, split.size)  # (C, d) as [shared | private]
        self._places: dict[str, _Place] = {}
        for part, (shapes, offset) in enumerate(((split.shared, 0), (split.private, split.shared_size))):
            start = 0
            for name, shape in shapes.items():
                self._places[name] = _Place(part, start, offset, shape)
                start += math.prod(shape)
        dense = [f"{name}.weight" in split.private for name in DENSE]
        inside = all(name.partition(".")[0] in DENSE for name in split.private)
        self._first_private = dense.index(True) if inside and any(dense) else None
        self._entering: list[Tensor] = []  # inputs of the dense layers in the last call

    def loss_and_gradient(self, weights: Weights, batch: Batch) -> tuple[Tensor, Tensor]:
        """Every client's mean loss (C,) and gradient (C, d) on its samples."""
        gradient = self.gradient[: len(batch.labels)]
        convolutions, layers = self._read({n: p.of(weights) for n, p in self._places.items()})
        to_convolutions, to_layers = self._read({n: p.of_gradient(gradient) for n, p in self._places.items()})
        x = self.trunk.forward(batch.inputs.numpy(), convolutions)
        loss, slope, self._entering = dense_pass(x, layers, to_layers, batch.labels)
        self.trunk.backward(slope_before(slope, layers[0]), to_convolutions)
        return loss, gradient

    def head_gradient(self, weights: Weights, batch: Batch) -> Tensor:
        """(C, d_private): a head of dense layers starts from its stored input, any other repeats the whole pass."""
        gradient, first = self.gradient[: len(batch.labels)], self._first_private
        if first is None:
            self.loss_and_gradient(weights, batch)
        else:
            _, layers = self._read({n: p.of(weights) for n, p in self._places.items()})
            _, to_layers = self._read({n: p.of_gradient(gradient) for n, p in self._places.items()})
            dense_pass(self._entering[first], layers[first:], to_layers[first:], batch.labels)
        return gradient[:, gradient.shape[1] - weights.private.shape[1] :]

    def logits(self, weights: Weights, inputs: Tensor) -> Tensor:
        """Every client's logits (C, B, classes) on its samples (C, B)."""
        convolutions, layers = self._read({n: p.of(weights) for n, p in self._places.items()})
        x = self.trunk.forward(inputs.numpy(), convolutions)
        for layer in layers[:-1]:
            x = apply_dense(x, layer).relu_()
        return apply_dense(x, layers[-1])

    def _read(self, named: dict[str, Tensor]) -> tuple[Convolutions, tuple[DenseLayer, ...]]:
        """Named parameters as layers, conv3 as a dense layer."""
        first = Convolutions(*(named[f"{layer}.{kind}"] for layer in ("conv1", "conv2") for kind in ("weight", "bias")))
        dense = (DenseLayer(named[f"{n}.weight"].flatten(2), named[f"{n}.bias"]) for n in DENSE)
        return first, tuple(dense)
