"""Sums that do not depend on their order: float64 numbers on a grid, whose additions are exact.

An addend gamma x is computed in float64 and rounded to a multiple of the grid by adding and subtracting a number so
large that float64 has no finer digits there. Multiples of 2^-40 below 2^13 are float64 numbers, so every addition after
that is exact: any order, chunk, thread or rank gives the same bits. An addend of 2^11 or more is rounded more coarsely:
its sum keeps its accuracy and may depend on the order. `reach` tells how near the addends of a sum come to that.

>>> from itertools import permutations
>>> import torch
>>> rows, weights = torch.tensor([[0.1], [0.7], [-0.3]]), [0.2, 0.5, 0.3]
>>> def total(order):
...     sums = torch.zeros(1, dtype=torch.float64)
...     for n in order:
...         add_row(sums, rows[n], weights[n])
...     return float(sums)
>>> len({total(order) for order in permutations(range(3))})
1
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Final, cast

import numpy as np
import torch
from torch import Tensor

from leanfed.records import Floats

GRADIENTS: Final = 1.5 * 2.0**12  # a grid of 2^-40, for addends below 2^11
STATISTICS: Final = 1.5 * 2.0**22  # a grid of 2^-30, for addends below 2^21, such as variances and counts
ADDEND: Final = 1.0  # limit of an addend's `reach`
TOTAL: Final = 4.0  # limit of the `reach` of all addends together


def largest(rows: Tensor) -> Floats:
    """(C,) the largest magnitude in each row (C, size) of float32 or bool; NaN where a row has one."""
    if rows.numel() and rows.dtype != torch.bool and rows.device.type == "cpu":
        values = rows.detach().numpy()  # numpy takes a twentieth of the time that torch does
        return np.asarray(np.maximum(values.max(1), -values.min(1)), dtype=np.float64)
    return np.asarray(magnitudes(rows).cpu().numpy(), dtype=np.float64)


def magnitudes(rows: Tensor) -> Tensor:
    """`largest` as a tensor on the rows' own device."""
    if rows.numel() == 0 or rows.dtype == torch.bool:
        return torch.full((len(rows),), float(rows.numel() > 0), device=rows.device)
    low, high = torch.aminmax(rows, dim=1)
    return torch.maximum(high, -low)


def reach(largest: Floats, weights: Floats, grid: float = GRADIENTS) -> Floats:
    """(C,) the largest |weight x entry| of each row in units of what the grid holds, a third of `grid`.

    A sum is exact in any order if all of them are below `ADDEND` and their own sum is below `TOTAL`.

    >>> reach(np.array([1024.0, 8192.0]), np.array([0.5, 0.5])).tolist()
    [0.25, 2.0]
    """
    return np.asarray(largest * np.abs(weights) * (3.0 / grid))


def zeros(size: int, device: torch.device | str = "cpu") -> Tensor:
    """An empty sum."""
    return torch.zeros(size, dtype=torch.float64, device=device)


def add_rows(total: Tensor, rows: Tensor, weights: Floats, grid: float = GRADIENTS) -> None:
    """total (size,) float64 += sum over the float32 rows of weight x the row's first `size` entries, on the grid."""
    kernel = _kernel() if total.device.type == "cpu" else None
    if kernel is not None:
        kernel(rows.numpy(), np.asarray(weights, dtype=np.float64), total.numpy(), grid)
        return
    for row, weight in zip(rows, np.asarray(weights).tolist(), strict=True):
        total.add_(on_grid(row[: len(total)].to(torch.float64).mul_(weight), grid))


@cache
def _kernel() -> Callable[..., None] | None:
    """The compiled sum if numba is installed; torch gives the same bits."""
    if find_spec("numba") is None:
        return None
    from leanfed.compression.topk import add_whole_rows

    return cast(Callable[..., None], add_whole_rows)


def add_row(total: Tensor, row: Tensor, weight: float, grid: float = GRADIENTS) -> None:
    """`add_rows` for a single row."""
    add_rows(total, row.unsqueeze(0), np.array([weight]), grid)


def add_at(total: Tensor, positions: Tensor, values: Tensor, weight: float) -> None:
    """total[positions] += weight x values, on the grid of gradients; positions are distinct."""
    total.index_add_(0, positions, on_grid(values.to(torch.float64).mul_(weight), GRADIENTS))


def on_grid(values: Tensor, grid: float) -> Tensor:
    """Float64 values rounded to the grid, in place."""
    return values.add_(grid).sub_(grid)
