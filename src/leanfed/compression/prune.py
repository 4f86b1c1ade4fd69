"""Pruning, Eq. (3): which weights take part in this round's computation."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from leanfed.compression.selection import drawn, largest
from leanfed.records import Section, kept_count

Vector = npt.NDArray[np.float32]


class Pruning(Section):
    """How a head is pruned each round, and what becomes of the pruned weights."""

    score: Literal["magnitude", "importance", "random", "random-redrawn"] = "magnitude"
    """magnitude |w|; importance (w g)^2 with the last round's gradient; random: one fixed order per client."""
    head_memory: Literal["discard", "keep"] = "discard"
    """discard: pruned weights are gone (Algorithm 1); keep: the mask rules the computation, dense weights survive."""
    masked_gradient: bool = False
    """true: pruned weights get no update; false, as in the paper's text: they regrow by one step."""

    def notes(self) -> tuple[str, ...]:
        """What a user should know of these settings before a run."""
        if self.score != "random-redrawn":
            return ()
        return ("prune.score = 'random-redrawn' erases heads: use it to check the theory, not to learn.",)


def keep_mask(
    weights: Vector, rate: float, settings: Pruning, *, last_gradient: Vector | None, rng: np.random.Generator
) -> npt.NDArray[np.bool_]:
    """The indicator r of Eq. (3): true for the kept share of the weights, exact count, lower position among equals.

    `rng` is the stream of the client, or of client and round where the mask is redrawn.
    """
    count = kept_count(rate, len(weights))
    if settings.score.startswith("random"):
        kept = drawn(len(weights), count, rng)
    elif settings.score == "importance" and last_gradient is not None:
        kept = largest((weights * last_gradient) ** 2, count)
    else:
        kept = largest(np.abs(weights), count)
    mask = np.zeros(len(weights), dtype=bool)
    mask[kept] = True
    return mask
