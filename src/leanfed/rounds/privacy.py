"""Differential privacy of the shared part: clip every upload, add noise to the sum, count what was spent.

Neighbours are fleets with and without one client. What is released are the rounds' shared weights; heads, residuals and
masks stay on their devices, so all that the *other* clients ever see is private in a client's data (joint DP). Not
covered: the server itself, which sees single uploads, and what nodes report beside them (losses, sample counts, tests).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field, field_validator, model_validator
from torch import Tensor

from leanfed.algorithms.uploads import Listed, Upload
from leanfed.compression import exact
from leanfed.records import Floats, Ints, Section
from leanfed.streams import stream
from leanfed.theory.accounting import Accountant, epsilon_of, noise_for, rounds_within

CLIP_RATE = 0.2  # of adaptive clipping (Andrew et al. 2021)
LEAST_COUNT_NOISE = 2.0  # of the count of unclipped uploads, in noise multipliers of the sum


class Privacy(Section):
    """What is protected, by how much noise, and within which budget."""

    unit: Literal["none", "client"] = "none"
    """Whose data is protected: nobody's, or every client's as a whole."""
    epsilon: float | None = Field(default=None, gt=0, le=1e6)
    """The budget. Alone, the noise is chosen so that all rounds just fit; with noise_multiplier, the run ends before
    the round that would pass it."""
    noise_multiplier: float | None = Field(default=None, ge=0, le=1e6)
    """z: the noise on the sum over the clip; None: chosen by epsilon."""
    delta: float | None = Field(default=None, gt=0, lt=1)
    """None: N^-1.1."""
    clip: float | None = Field(default=1.0, gt=0)
    """C, the largest norm of an upload, in round 0 if it is adaptive; None: nothing is clipped, without noise only."""
    adaptive: bool = True
    """Let C follow a quantile of the uploads' norms by a noised count; the noise on the sum makes room for it."""
    quantile: float = Field(default=0.5, gt=0, lt=1)
    """Of the norms, that an adaptive C follows: a higher one shortens fewer uploads, and asks for more noise."""
    accountant: Accountant = "rdp"
    """exact: for rounds without sampling; rdp: Renyi orders; pld: dp-accounting's distribution (extra `privacy`)."""

    @field_validator("unit", mode="before")
    @classmethod
    def _single_samples_are_not_covered(cls, value: Any) -> Any:
        if value == "sample":
            raise ValueError(
                "single samples are not protected by themselves: heads are trained on them without noise and enter "
                "every base gradient, so that one sample moves a whole batch's sum by up to 2 B clips, not by one; set "
                "unit = 'client', which protects all samples of a client together"
            )
        return value

    @model_validator(mode="after")
    def _noise_has_a_source(self) -> Privacy:
        if self.unit == "none":
            return self
        if self.epsilon is None and self.noise_multiplier is None:
            raise ValueError("unit = 'client' needs epsilon, noise_multiplier or both")
        if self.clip is None and (self.noise_multiplier != 0 or self.adaptive):
            raise ValueError("without clip no noise is enough; set noise_multiplier = 0 and adaptive = false, or clip")
        return self


@dataclass(frozen=True)
class Ledger:
    """The privacy of one run: what a round releases, and what so many rounds cost."""

    settings: Privacy
    sampling: float  # q of a Poisson cohort; 1: no cohort is drawn that way
    expected: float  # q N, the public divisor
    clients: int
    rounds: int  # of the settings
    seed: int

    @property
    def delta(self) -> float:
        """The delta of the settings, or N^-1.1."""
        return self.clients**-1.1 if self.settings.delta is None else self.settings.delta

    @cached_property
    def noise(self) -> float:
        """z of a round as a whole."""
        if self.settings.noise_multiplier is not None:
            return self.settings.noise_multiplier
        assert self.settings.epsilon is not None
        return noise_for(self.settings.accountant, self.sampling, self.settings.epsilon, self.rounds, self.delta)

    def epsilon(self, rounds: int) -> float:
        """What the first rounds cost."""
        return epsilon_of(self.settings.accountant, self.sampling, self.noise, rounds, self.delta)

    @property
    def affordable(self) -> int:
        """Rounds that the budget allows."""
        budget, given = self.settings.epsilon, self.settings.noise_multiplier
        if budget is None or given is None:
            return self.rounds
        return rounds_within(self.settings.accountant, self.sampling, given, budget, self.rounds, self.delta)


@dataclass(frozen=True)
class Release:
    """What a round lets out."""

    mean: Tensor  # (size,) float32
    clip: float  # for the next round
    weights: Floats  # of the uploads


def release(
    ledger: Ledger, clip: float, size: int, uploads: Sequence[Upload], number: int, support: Ints | None = None
) -> Release:
    """(sum of u_n min(1, C/|u_n|) + N(0, z^2 C^2 I)) / (q N); every client has the weight one, the divisor is public.

    A `support` drawn without looking at any data, which all uploads share, is noised alone: the rest is zero anyway.

    With adaptive clipping C is multiplied by exp(-0.2 (b - quantile)), b the noised share of uploads that were not
    clipped, and the sum has the noise (z^-2 - (2 s)^-2)^-1/2, where s is the count's, so that both together cost z.
    """
    lengths = np.array([float(np.sqrt(np.square(u.values.numpy(), dtype=np.float64).sum())) for u in uploads])
    factor = np.minimum(1.0, np.divide(clip, lengths, out=np.ones_like(lengths), where=lengths > 0))
    weights = factor / ledger.expected
    total = exact.zeros(size)
    Listed(uploads).add_to(total, weights)
    rng = stream(ledger.seed, "privacy", number)
    on_sum, on_count = noises(ledger)
    if on_sum > 0:
        places = slice(None) if support is None else torch.from_numpy(support)
        drawn = torch.from_numpy(rng.standard_normal(size if support is None else len(support)))
        total[places] += drawn * (on_sum * clip / ledger.expected)
    if ledger.settings.adaptive:
        unclipped = (float((lengths <= clip).sum()) + on_count * rng.standard_normal()) / ledger.expected
        clip *= math.exp(-CLIP_RATE * (min(max(unclipped, 0.0), 1.0) - ledger.settings.quantile))
    return Release(total.to(torch.float32), clip, weights)


def noises(ledger: Ledger) -> tuple[float, float]:
    """Noise multipliers of the sum and of the count of unclipped uploads, which together cost the ledger's."""
    noise = ledger.noise
    if not ledger.settings.adaptive or noise == 0.0:
        return noise, 0.0
    on_count = max(ledger.expected / 20.0, LEAST_COUNT_NOISE * noise)
    return (noise**-2 - (2.0 * on_count) ** -2) ** -0.5, on_count
