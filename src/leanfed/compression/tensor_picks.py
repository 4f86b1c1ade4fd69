"""Selection of the largest entries by torch alone, on any device, implementing `compression.picks`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from leanfed.compression.exact import GRADIENTS, on_grid
from leanfed.compression.picks import Chosen, Picks, places
from leanfed.records import Floats, Ints


@final
@dataclass(frozen=True)
class Masked(Chosen):
    """Chosen entries as a mask."""

    rows: Tensor  # (rows, size or more)
    kept: Tensor  # (rows, size) bool
    counts: Sequence[int]  # how many each row keeps

    @override
    def positions(self, row: int) -> Tensor:
        return places(self.kept[row], self.counts[row])

    @override
    def mask(self) -> Tensor:
        return self.kept.to(torch.float32)

    @override
    def rest(self) -> Tensor:
        return self._entries().masked_fill(self.kept, 0.0)

    @override
    def add_to(self, total: Tensor, weight: Floats) -> None:
        for row, factor in enumerate(weight.tolist()):
            values = self._entries()[row].masked_fill(~self.kept[row], 0.0)
            total.add_(on_grid(values.to(torch.float64).mul_(factor), GRADIENTS))

    def _entries(self) -> Tensor:
        return self.rows[:, : self.kept.shape[1]]


@final
class TensorPicks(Picks):
    """|x| > t, and of those with |x| = t the first ones, where t is the smallest of the largest: nothing waits."""

    @override
    def largest(self, rows: Tensor, counts: Ints, size: int) -> Masked:
        magnitudes = rows[:, :size].abs().nan_to_num_(nan=math.inf, posinf=math.inf)  # what is no number is sent, too
        clipped = np.clip(counts, 0, size).tolist()
        kept = [_kept(row, count) for row, count in zip(magnitudes, clipped, strict=True)]
        return Masked(rows, torch.stack(kept), clipped)


def _kept(magnitudes: Tensor, count: int) -> Tensor:
    """(size,) whether an entry is among the `count` largest; among equals the lower position wins."""
    if count <= 0 or count >= len(magnitudes):
        return torch.full_like(magnitudes, float(count > 0)).to(torch.bool)
    threshold = torch.topk(magnitudes, count, sorted=False).values.min()
    above, equal = magnitudes > threshold, magnitudes == threshold
    return above | (equal & (equal.cumsum(0) <= count - above.sum()))
