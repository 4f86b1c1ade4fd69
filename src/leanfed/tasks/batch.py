"""A batch of samples, for one client or several."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

CPU: Final = torch.device("cpu")


@dataclass(frozen=True)
class Batch:
    """Inputs and their labels; in a cohort both have a leading client axis.

    Inputs are normalised images (samples, channels, height, width), tokens (samples, 3, length), or, for a learner that
    has the samples already, their row numbers (samples,).
    """

    inputs: Tensor
    labels: Tensor  # (samples,)

    def to(self, device: torch.device) -> Batch:
        """The batch on a device; from pinned memory to a GPU, so that the copy goes on beside the computation."""
        if self.inputs.device == device:
            return self
        parts = (part.pin_memory() if device.type == "cuda" else part for part in (self.inputs, self.labels))
        return Batch(*(part.to(device, non_blocking=True) for part in parts))

    def alone(self) -> Batch:
        """The batch of a cohort of one: (1, samples, ...)."""
        return Batch(self.inputs.unsqueeze(0), self.labels.unsqueeze(0))
