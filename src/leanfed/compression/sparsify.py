"""Sparsification of gradients, Eq. (5): how the entries to send are chosen."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from leanfed.records import Section

RESIDUAL = "residual"  # the memory of error feedback


class Sparsification(Section):
    """How the entries of a gradient are chosen."""

    select: Literal["topk", "random"] = "topk"
    """topk: the largest magnitudes, exact count, lower position first among equals; random: drawn every round."""
    rescale: bool = False
    """random only: divide what is sent by k, so that its expectation is the whole gradient."""
    error_feedback: bool = False
    """Remember what was not sent and add it to the next gradient."""

    @model_validator(mode="after")
    def _rescaling_is_for_random_without_memory(self) -> Sparsification:
        if self.rescale and (self.select != "random" or self.error_feedback):
            raise ValueError("rescale = true needs select = 'random' and error_feedback = false; change one of them")
        return self

    def holds(self, size: int) -> dict[str, int]:
        """The memory of error feedback by name, with its size: the unsent part of a gradient of `size` entries."""
        return {RESIDUAL: size} if self.error_feedback else {}
