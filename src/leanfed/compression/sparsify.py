"""Sparsification of gradients, Eq. (5): what is sent, and what is remembered for later."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt
from pydantic import model_validator

from leanfed.compression.selection import drawn, largest
from leanfed.records import Ints, Section, kept_count

Vector = npt.NDArray[np.float32]


class Sparsification(Section):
    """How the entries of a gradient are chosen."""

    select: Literal["topk", "random"] = "topk"
    """topk: the largest magnitudes, exact count, lower position first among equals; random: drawn every round."""
    rescale: bool = False
    """random only: divide what is sent by k, so that its mean is the whole gradient."""
    error_feedback: bool = False
    """Remember what was not sent and add it to the next gradient."""

    @model_validator(mode="after")
    def _rescaling_is_for_random_without_memory(self) -> Sparsification:
        if self.rescale and (self.select != "random" or self.error_feedback):
            raise ValueError("rescale = true needs select = 'random' and error_feedback = false; change one of them")
        return self


def sparsify(gradient: Vector, rate: float, settings: Sparsification, rng: np.random.Generator) -> tuple[Ints, Vector]:
    """Positions (increasing) and values that are sent for a keep rate k, Eq. (5)."""
    count = kept_count(rate, len(gradient))
    by_size = settings.select == "topk"
    positions = largest(np.abs(gradient), count) if by_size else drawn(len(gradient), count, rng)
    values = gradient[positions]
    return positions, values * np.float32(len(gradient) / count) if settings.rescale and count else values


def unsent(gradient: Vector, positions: Ints) -> Vector:
    """The memory of error feedback: the gradient with the sent entries taken out."""
    rest = gradient.copy()
    rest[positions] = 0
    return rest
