"""Which entries of many rows are kept: the contract, and the version that calls compression.selection."""

from __future__ import annotations

from typing import Protocol, final

import numpy as np
import torch
from torch import Tensor

from leanfed.compression.selection import largest
from leanfed.records import Floats, Ints


class Picks(Protocol):
    """Exact top-k of every row, with the tie rule of compression.selection.largest."""

    def mask(self, magnitudes: Tensor, counts: Ints) -> Tensor:
        """Ones where a row's `counts[row]` largest magnitudes are, else zeros; (rows, size)."""
        ...

    def add_largest(self, values: Tensor, counts: Ints, gamma: Floats, total: Tensor, rest: Tensor | None) -> None:
        """total (size,) += sum over rows of gamma x the largest among the row's first `size` entries.

        `values` (rows, size or more) is contiguous; `rest` (rows, size) gets what was left out.
        """
        ...


@final
class NumpyPicks:
    """One row at a time with numpy."""

    def mask(self, magnitudes: Tensor, counts: Ints) -> Tensor:
        """Ones where the largest are."""
        mask = torch.zeros_like(magnitudes)
        for row, scores, count in zip(mask, magnitudes.numpy(), counts.tolist(), strict=True):
            row[torch.from_numpy(largest(scores, count))] = 1
        return mask

    def add_largest(self, values: Tensor, counts: Ints, gamma: Floats, total: Tensor, rest: Tensor | None) -> None:
        """Row by row."""
        for i, (row, count, weight) in enumerate(
            zip(values[:, : len(total)], counts.tolist(), gamma.tolist(), strict=True)
        ):
            positions = torch.from_numpy(largest(np.abs(row.numpy()), count))
            total.index_add_(0, positions, row[positions], alpha=weight)
            if rest is not None:
                rest[i] = row.index_fill(0, positions, 0)
