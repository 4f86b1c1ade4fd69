"""The largest entries of many rows: chosen once, then summed, masked, listed or taken out as the caller needs.

The count per row is exact, with the tie rule of `compression.selection.largest`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, final

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from leanfed.compression.exact import add_at
from leanfed.compression.selection import largest
from leanfed.records import Floats, Ints


class Chosen(Protocol):
    """Chosen entries among the first `size` of each row; valid as long as the rows do not change."""

    def positions(self, row: int) -> Tensor:
        """(count,) positions in one row, increasing."""
        ...

    def mask(self) -> Tensor:
        """(rows, size): one where an entry was chosen, else zero."""
        ...

    def rest(self) -> Tensor:
        """(rows, size): the rows with zeros at the chosen entries; the residual of error feedback."""
        ...

    def add_to(self, total: Tensor, weight: Floats) -> None:
        """total (size,) += sum over the rows of weight x the chosen entries, in one pass (see `compression.exact`)."""
        ...


class Picks(Protocol):
    """How the largest entries are found: in plain numpy or by compiled kernels."""

    def largest(self, rows: Tensor, counts: Ints, size: int) -> Chosen:
        """The `counts[row]` largest magnitudes among each row's first `size` entries; `rows` is contiguous."""
        ...


def places(mask: Tensor, count: int) -> Tensor:
    """(count,) where a row (size,) that has `count` entries other than zero has them, increasing."""
    if mask.device.type == "cpu":
        return torch.nonzero(mask).flatten()
    # The n-th is where the running count exceeds n; `nonzero` would have the host wait for how many there are.
    running = (mask != 0).cumsum(0)
    return torch.searchsorted(running, torch.arange(count, device=mask.device), right=True)


@final
@dataclass(frozen=True)
class Positions(Chosen):
    """Chosen entries as a list of positions per row."""

    rows: Tensor  # (rows, size or more)
    size: int
    places: Sequence[Tensor]  # (count,) int64 each

    @override
    def positions(self, row: int) -> Tensor:
        return self.places[row]

    @override
    def mask(self) -> Tensor:
        mask = torch.zeros(len(self.places), self.size, device=self.rows.device)
        for row, places in enumerate(self.places):
            mask[row, places] = 1
        return mask

    @override
    def rest(self) -> Tensor:
        rest = self.rows[:, : self.size].clone()
        for row, places in enumerate(self.places):
            rest[row, places] = 0
        return rest

    @override
    def add_to(self, total: Tensor, weight: Floats) -> None:
        for row, (places, factor) in enumerate(zip(self.places, weight.tolist(), strict=True)):
            add_at(total, places, self.rows[row, places], factor)


@final
class NumpyPicks(Picks):
    """One row at a time with `compression.selection.largest`."""

    @override
    def largest(self, rows: Tensor, counts: Ints, size: int) -> Positions:
        magnitudes = np.abs(rows.numpy()[:, :size])
        places = [largest(row, count) for row, count in zip(magnitudes, counts.tolist(), strict=True)]
        return Positions(rows, size, [torch.from_numpy(row) for row in places])
