"""Pruning, Eq. (3): which weights take part in this round's computation."""

from __future__ import annotations

from typing import Literal

from leanfed.records import Section


class Pruning(Section):
    """How a head is pruned each round, and what happens to the pruned weights."""

    unit: Literal["weight", "unit"] = "weight"
    """What is kept or pruned: single weights, or whole units of layers inside the head (rows with the columns that read
    them), of each such layer the share r and at least one. Devices and simulations that train client by client then
    compute with narrower modules; so do exported models."""
    score: Literal["magnitude", "importance", "random", "random-redrawn"] = "magnitude"
    """magnitude |w|; importance (w g)^2 with the last round's gradient; random: one fixed order per client. Of a unit:
    the sum over its weights, of w^2 for magnitude."""
    head_memory: Literal["discard", "keep"] = "discard"
    """discard: pruned weights are set to zero (Algorithm 1); keep: they are masked in the computation but kept."""
    masked_gradient: bool = False
    """true: pruned weights get no update; false, as in the paper's text: they regrow by one step."""

    def notes(self) -> tuple[str, ...]:
        """Warnings about these settings, shown before a run."""
        if self.score != "random-redrawn":
            return ()
        return ("prune.score = 'random-redrawn' erases heads: use it to check the theory, not to learn.",)
