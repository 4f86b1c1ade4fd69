"""Pruning, Eq. (3): which weights take part in this round's computation."""

from __future__ import annotations

from typing import Literal

from leanfed.records import Section


class Pruning(Section):
    """How a head is pruned each round, and what happens to the pruned weights."""

    score: Literal["magnitude", "importance", "random", "random-redrawn"] = "magnitude"
    """magnitude |w|; importance (w g)^2 with the last round's gradient; random: one fixed order per client."""
    head_memory: Literal["discard", "keep"] = "discard"
    """discard: pruned weights are set to zero (Algorithm 1); keep: they are masked in the computation but kept."""
    masked_gradient: bool = False
    """true: pruned weights get no update; false, as in the paper's text: they regrow by one step."""

    def notes(self) -> tuple[str, ...]:
        """Warnings about these settings, shown before a run."""
        if self.score != "random-redrawn":
            return ()
        return ("prune.score = 'random-redrawn' erases heads: use it to check the theory, not to learn.",)
