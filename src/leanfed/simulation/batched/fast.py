"""LeNet-5's convolutions for a chunk of clients by compiled kernels, implementing `trunk.Trunk`."""

from __future__ import annotations

from typing import Any, final

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from leanfed.compression.kernel_picks import warm_picks
from leanfed.records import Ints
from leanfed.simulation.batched import kernels
from leanfed.simulation.batched.trunk import DEEP, Convolutions, Trunk
from leanfed.tasks.task import Images


def pixel_table(images: Images) -> Tensor:
    """The normalised value of each of the 256 pixel values, bit for bit as in `Images.batch`."""
    levels = torch.arange(256, dtype=torch.float32)
    return levels.div_(255).sub_(images.mean.flatten()).div_(images.deviation.flatten())


@final
class KernelTrunk(Trunk):
    """Buffers for at most `clients` clients of `batch` samples, filled by the kernels.

    One that does not train keeps what lies between the layers for one sample at a time.
    """

    def __init__(self, images: Images, clients: int, batch: int, *, trains: bool = True) -> None:
        self.pixels = np.asarray(images.pixels).reshape(len(images.pixels), -1)
        self.table = pixel_table(images).numpy()
        self.trains = trains
        samples, kept = clients * batch, clients * batch if trains else 1
        self.images = torch.zeros(kept * kernels.IMAGE)
        self.middle, self.winners1 = (torch.zeros(kept * kernels.MIDDLE) for _ in range(2))
        self.deep = torch.zeros(samples, DEEP)
        self.winners2 = torch.zeros(samples, DEEP, dtype=torch.int32)
        self.scratch, self.inner, self.alive = torch.zeros(32), torch.zeros(kernels.MIDDLE), torch.zeros(16).long()
        self.taps1, self.bias1 = torch.zeros(clients, 25, 8), torch.zeros(clients, 8)
        self.taps2, self.bias2 = torch.zeros(clients, 5, 5, 6, 16), torch.zeros(clients, 16)
        self.tiles = torch.zeros(clients, 16, 8, 40)
        self.sums1, self.sum_bias1 = torch.zeros(clients, 6, 5, 8), torch.zeros(clients, 6)
        self.sums2, self.sum_bias2 = torch.zeros(clients, 16, 6, 32), torch.zeros(clients, 16)

    @override
    def forward(self, rows: Ints, weights: Convolutions) -> Tensor:
        """Samples (C, B) -> (C, B, 400); valid until the next call."""
        clients, batch = rows.shape
        self._pack(weights)
        self.own1, self.own2 = int(len(weights.weight1) > 1), int(len(weights.weight2) > 1)
        own, packed, buffers = (self.own1, self.own2), self._weights(), self._buffers()
        kernels.forward(self.pixels, self.table, rows.reshape(-1), batch, *own, int(self.trains), packed, buffers)
        deep = self.deep[: clients * batch].view(clients, batch, DEEP)
        return deep.add_(_poison(weights).view(-1, 1, 1))

    @override
    def backward(self, slope: Tensor, gradient: Convolutions) -> None:
        """Both layers' gradients, unpacked from the kernels' padded rows."""
        assert self.trains, "a trunk for tests has kept nothing that a gradient could start from"
        clients, batch = slope.shape[:2]
        sums = tuple(_flat_rows(t[:clients]) for t in (self.sums1, self.sum_bias1, self.sums2, self.sum_bias2))
        kernels.backward(_flat(slope), batch, self.own2, self._weights(), self._buffers(), sums)
        gradient.weight1.copy_(self.sums1[:clients, :, :, :5].unsqueeze(2))
        gradient.bias1.copy_(self.sum_bias1[:clients])
        patches = torch.unflatten(self.sums2[:clients, :, :5, :30], 3, (5, 6))  # (C, out, row, column, in)
        gradient.weight2.copy_(patches.permute(0, 1, 4, 2, 3))
        gradient.bias2.copy_(self.sum_bias2[:clients])

    def _pack(self, weights: Convolutions) -> None:
        """Copy the weights into the order in which the kernels read them, padded to whole vectors."""
        first, second = len(weights.weight1), len(weights.weight2)
        self.taps1[:first, :, :6] = weights.weight1.flatten(2).transpose(1, 2)
        self.bias1[:first, :6] = weights.bias1
        self.taps2[:second] = weights.weight2.permute(0, 3, 4, 2, 1)
        self.bias2[:second] = weights.bias2
        torch.unflatten(self.tiles[:second, :, 1:6, 8:38], 3, (5, 6)).copy_(weights.weight2.permute(0, 1, 3, 4, 2))

    def _weights(self) -> tuple[Any, ...]:
        return tuple(_flat(t) for t in (self.taps1, self.bias1, self.taps2, self.bias2, self.tiles))

    def _buffers(self) -> tuple[Any, ...]:
        samples = (self.images, self.middle, self.winners1, self.deep, self.winners2)
        return tuple(_flat(t) for t in (*samples, self.scratch, self.inner, self.alive))


def _poison(weights: Convolutions) -> Tensor:
    """0, or NaN for a client whose weights are not finite: a lane-wise maximum may drop NaN, the loss must not."""
    return sum((w.flatten(1).sum(1) * 0 for w in weights), start=torch.zeros(1))


def _flat(tensor: Tensor) -> np.ndarray[Any, Any]:
    return tensor.view(-1).numpy()


def _flat_rows(tensor: Tensor) -> np.ndarray[Any, Any]:
    return tensor.flatten(1).numpy()


def warm_kernels() -> None:
    """Compile every kernel by calling it on a tiny input with the types of real calls."""
    blank = Images(np.zeros((1, 1, 32, 32), dtype=np.uint8), np.zeros(1, dtype=np.int64), torch.zeros(1), torch.ones(1))
    trunk = KernelTrunk(blank, 1, 1)
    weights = Convolutions(
        torch.zeros(1, 6, 1, 5, 5), torch.zeros(1, 6), torch.zeros(1, 16, 6, 5, 5), torch.zeros(1, 16)
    )
    trunk.backward(trunk.forward(np.zeros((1, 1), dtype=np.int64), weights).clone(), weights)
    warm_picks()
