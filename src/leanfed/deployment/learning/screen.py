"""Bounds on what one client's update may be and claim, relative to the others': a bad node cannot end a run.

An update whose norm is more than `norm_bound` times the round's median is refused, and so is a training loss that no
honest client could have; a round whose loss is far above the usual is a sign that the base itself has diverged.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from leanfed.algorithms.uploads import Upload
from leanfed.deployment.learning.messages import MessageError

ENOUGH = 3  # updates of one round from which on their median speaks for itself
KEPT = 40  # norms of accepted updates that are remembered for smaller rounds
USUAL_ROUNDS = 5
HIGHEST_LOSS, LOSS_BOUND = 10.0, 100.0  # a loss up to the first is nobody's fault; beyond, relative to the median
ABOVE_FIRST = 2.0  # a diverged base is worse than the one at the beginning


def norm_of(upload: Upload) -> float:
    """Euclidean norm, in float64."""
    return float(torch.linalg.vector_norm(upload.values.to(torch.float64)))


def lower_median(values: Sequence[float]) -> float:
    """The middle value; of an even number the smaller, so that one of two cannot vouch for itself.

    >>> lower_median([3.0, 1e30, 1.0]), lower_median([1.0, 1e30])
    (3.0, 1.0)
    """
    return sorted(values)[(len(values) - 1) // 2]


@dataclass
class Screen:
    """The bounds of a run; what it remembers goes into the checkpoint."""

    norm_bound: float  # 0: none
    divergence: float  # 0: none
    norms: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))
    losses: deque[float] = field(default_factory=lambda: deque(maxlen=USUAL_ROUNDS))
    first_loss: float | None = None

    def offenders(self, updates: Mapping[int, tuple[Upload, float]]) -> dict[int, MessageError]:
        """client -> why its update is refused; `updates` has every client's upload and its training loss."""
        found: dict[int, MessageError] = {}
        norms = {
            client: norm_of(upload) for client, (upload, _) in updates.items() if upload.values.is_floating_point()
        }
        usual = self._usual_norm(list(norms.values()))
        if self.norm_bound and usual:
            for client, norm in norms.items():
                if norm > self.norm_bound * usual:
                    why = (
                        f"its norm is {norm:.3g}, the usual one {usual:.3g}, and {self.norm_bound:g} times that allowed"
                    )
                    found[client] = MessageError("too-large", why)
        losses = {client: loss for client, (_, loss) in updates.items()}
        middle = lower_median(list(losses.values())) if losses else 0.0
        for client, loss in losses.items():
            if loss < 0 or loss > max(HIGHEST_LOSS, LOSS_BOUND * middle):
                found.setdefault(
                    client, MessageError("implausible", f"a loss of {loss:.3g}, where {middle:.3g} is usual")
                )
        self.norms.extend(norm for client, norm in norms.items() if client not in found)
        return found

    def _usual_norm(self, norms: list[float]) -> float:
        return lower_median(norms if len(norms) >= ENOUGH else [*self.norms, *norms] or [0.0])

    def diverged(self, loss: float) -> str | None:
        """Why the base that gave this mean loss is not to be built upon, or None; a good loss is remembered."""
        if self.first_loss is None:
            self.first_loss = loss
        usual = lower_median(self.losses) if self.losses else self.first_loss
        if not math.isfinite(loss):
            return "the loss is not finite"
        if self.divergence and loss > max(self.divergence * usual, ABOVE_FIRST * self.first_loss):
            return f"the loss is {loss:.3g}, where {usual:.3g} was usual"
        self.losses.append(loss)
        return None

    def tighten(self) -> None:
        """Halve the bound after a roll-back, down to 1.5: what has passed once shall not pass again."""
        self.norm_bound = max(1.5, self.norm_bound / 2) if self.norm_bound else 5.0

    def to_json(self) -> dict[str, Any]:
        """Plain values for the checkpoint."""
        return {
            "norms": list(self.norms),
            "losses": list(self.losses),
            "first_loss": self.first_loss,
            "norm_bound": self.norm_bound,
        }

    def remember(self, values: Mapping[str, Any]) -> None:
        """Take up what a checkpoint holds; a bound that was tightened stays."""
        self.norms.extend(values.get("norms", ()))
        self.losses.extend(values.get("losses", ()))
        self.first_loss = values.get("first_loss")
        self.norm_bound = min(self.norm_bound, values.get("norm_bound", self.norm_bound)) or self.norm_bound


def capped(samples: Mapping[int, int], ratio: float) -> dict[int, int]:
    """Samples as they count: nobody for more than `ratio` times the median of all (0: no cap).

    >>> capped({0: 100, 1: 120, 2: 10**8}, 10.0)
    {0: 100, 1: 120, 2: 1200}
    """
    if not samples or not ratio:
        return dict(samples)
    most = max(1, int(ratio * lower_median(list(samples.values()))))
    return {client: min(count, most) for client, count in samples.items()}
