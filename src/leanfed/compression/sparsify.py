"""Sparsification of gradients, Eq. (5): how the entries to send are chosen."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from leanfed.records import Section

RESIDUAL = "residual"  # the memory of error feedback


class Sparsification(Section):
    """How the entries of a gradient are chosen."""

    select: Literal["topk", "random", "common"] = "topk"
    """topk: the largest magnitudes, exact count, lower position first among equals; random: drawn every round by each
    client; common: drawn every round from the run's seed, the same for all clients and known to the server, so that no
    positions travel."""
    rescale: bool = False
    """random: multiply what is sent by d / n, n of d entries (1 / k), so that its expectation is the whole gradient.
    common does so in any case, but for error_feedback, which sends later what it did not send."""
    error_feedback: bool = False
    """Remember what was not sent and add it to the next gradient."""

    @model_validator(mode="after")
    def _rescaling_is_for_drawn_entries_without_memory(self) -> Sparsification:
        if self.rescale and (self.select == "topk" or self.error_feedback):
            raise ValueError(
                "rescale = true needs select = 'random' or 'common' and error_feedback = false; change one of them"
            )
        return self

    @property
    def rescales(self) -> bool:
        """Whether what is sent is multiplied by d / n."""
        return self.rescale or (self.select == "common" and not self.error_feedback)

    @property
    def form(self) -> Literal["sparse", "common"]:
        """Whether the positions of what is sent travel with it."""
        return "common" if self.select == "common" else "sparse"

    def holds(self, size: int) -> dict[str, int]:
        """The memory of error feedback by name, with its size: the unsent part of a gradient of `size` entries."""
        return {RESIDUAL: size} if self.error_feedback else {}
