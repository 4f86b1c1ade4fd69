"""A batch as a model takes it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """Inputs and their labels."""

    inputs: Tensor  # pictures (samples, channels, height, width), normalised, or tokens (samples, 3, length)
    labels: Tensor  # (samples,)
