"""A batch of samples, for one client or several."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leanfed.tasks.transfer import CPU as CPU
from leanfed.tasks.transfer import sent


@dataclass(frozen=True)
class Batch:
    """Inputs and their labels; in a cohort both have a leading client axis.

    Inputs are normalised images (samples, channels, height, width), tokens (samples, 3, length), or, for a learner that
    has the samples already, their row numbers (samples,).
    """

    inputs: Tensor
    labels: Tensor  # (samples,)

    def to(self, device: torch.device) -> Batch:
        """The batch on a device, or on its way there."""
        return self if self.inputs.device == device else Batch(sent(self.inputs, device), sent(self.labels, device))

    def alone(self) -> Batch:
        """The batch of a cohort of one: (1, samples, ...)."""
        return Batch(self.inputs.unsqueeze(0), self.labels.unsqueeze(0))
