"""Samples that are arrays of any shape: series, tables, token numbers, pictures already scaled."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from leanfed.records import Ints
from leanfed.tasks.datasets import Scaling

if TYPE_CHECKING:
    from leanfed.tasks.batch import Batch

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Rows:
    """Arrays as they were given, scaled when they are drawn.

    What is scaled and what has a fraction becomes float32; whole numbers that are not scaled stay whole (int64), as
    token numbers must.
    """

    values: Array  # (n, ...)
    labels: Array  # (n,) or (n, places) of int64, or float32
    scaling: Scaling | None = None

    def batch(self, rows: Ints, change: Callable[[Any], Any] | None = None) -> Batch:
        """The given rows; `change` is for pictures."""
        import torch

        from leanfed.tasks.batch import Batch

        values = np.asarray(self.values[rows])
        whole = self.scaling is None and values.dtype.kind in "iu"
        inputs = torch.from_numpy(values.astype(np.int64 if whole else np.float32))
        if self.scaling is not None:
            axes = (-1, *(1,) * (values.ndim - 2))
            mean, deviation = (
                torch.from_numpy(part).reshape(axes) for part in (self.scaling.mean, self.scaling.deviation)
            )
            inputs.sub_(mean).div_(deviation)
        return Batch(inputs, torch.from_numpy(np.asarray(self.labels[rows])))

    def digest(self) -> bytes:
        """SHA-256 of the samples."""
        return hashlib.sha256(np.ascontiguousarray(self.values).data).digest()


def standard_scaling(values: Array) -> Scaling:
    """Mean and deviation of each channel, the first axis of a sample, over all samples; a constant is not divided."""
    axes = (0, *range(2, values.ndim))
    mean = np.mean(values, axis=axes, dtype=np.float64)
    deviation = np.std(values, axis=axes, dtype=np.float64)
    deviation = np.where(deviation > 0, deviation, 1.0)
    return Scaling(np.atleast_1d(mean).astype(np.float32), np.atleast_1d(deviation).astype(np.float32))
