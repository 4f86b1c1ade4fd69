"""Selection of the largest entries by compiled kernels, implementing `compression.picks`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from leanfed.compression import exact, topk
from leanfed.compression.picks import Chosen, Picks
from leanfed.records import Floats, Ints


@final
@dataclass(frozen=True)
class Cuts(Chosen):
    """Chosen entries as a threshold and the last tie of each row: 12 bytes per row, whatever the count."""

    rows: Tensor  # (rows, size or more)
    size: int
    counts: Ints  # (rows,)
    threshold: np.ndarray[Any, np.dtype[np.int32]]  # (rows,) the bits of a magnitude
    last: Ints  # (rows,) position of the last entry kept that equals the threshold

    @override
    def positions(self, row: int) -> Tensor:
        count = int(np.clip(self.counts[row], 0, self.size))
        bits = _bits(self.rows)[row]
        return torch.from_numpy(topk.places_of(bits, self.threshold[row], self.last[row], self.size, count))

    @override
    def mask(self) -> Tensor:
        mask = torch.empty(len(self.rows), self.size)
        topk.mask_rows(_bits(self.rows), self.threshold, self.last, mask.numpy())
        return mask

    @override
    def rest(self) -> Tensor:
        rest = torch.empty(len(self.rows), self.size)
        topk.rest_rows(self.rows.numpy(), _bits(self.rows), self.threshold, self.last, rest.numpy())
        return rest

    @override
    def add_to(self, total: Tensor, weight: Floats) -> None:
        cut = (self.threshold, self.last)
        topk.add_rows(self.rows.numpy(), _bits(self.rows), *cut, weight, total.numpy(), exact.GRADIENTS)


@final
class KernelPicks(Picks):
    """Exact top-k as in `compression.topk`, with one worker's scratch buffers for rows of at most `size` entries."""

    def __init__(self, size: int) -> None:
        self._counts = np.zeros(topk.BINS, dtype=np.int64)
        self._near = np.zeros(size + 1, dtype=np.int32)

    @override
    def largest(self, rows: Tensor, counts: Ints, size: int) -> Cuts:
        threshold, last = np.empty(len(rows), dtype=np.int32), np.empty(len(rows), dtype=np.int64)
        topk.cut_rows(_bits(rows), counts, size, threshold, last, self._counts, self._near)
        return Cuts(rows, size, counts, threshold, last)


def _bits(rows: Tensor) -> np.ndarray[Any, np.dtype[np.int32]]:
    return rows.numpy().view(np.int32)


def warm_picks() -> None:
    """Compile every kernel by calling it with the types of real calls."""
    chosen = KernelPicks(8).largest(torch.ones(2, 8), np.array([3, 5]), 8)
    chosen.add_to(exact.zeros(8), np.ones(2))
    exact.add_rows(exact.zeros(8), torch.ones(2, 8), np.ones(2))
    for call in (chosen.mask, chosen.rest, lambda: chosen.positions(1)):
        call()
    topk.positions(np.arange(8, dtype=np.int32), 3)
