"""Differential privacy of the shared part: clip every upload, add noise to the sum, count what was spent.

Neighbours are fleets with and without one client. What is released are the rounds' shared weights; heads, residuals and
masks stay on their devices, so all that the *other* clients ever see is private in a client's data (joint DP). What
clients report beside uploads (losses, tests) is shown as it is, withheld, or noised within the same budget
(`Privacy.metrics`). Not covered: the server itself, which sees single uploads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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
Metrics = Literal["shown", "off", "noised"]


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
    metrics: Metrics = "shown"
    """Losses, test results, label counts and guesses: shown as they are, which no budget covers; off: never reported,
    with any unit; noised: the even mean of the round's participants with noise that the same budget pays for."""
    metrics_share: float = Field(default=0.1, gt=0, le=0.5)
    """Of z^-2, what noised metrics take; the noise on the sum of uploads makes room for it."""
    metrics_bound: float = Field(default=5.0, gt=0, le=1e6)
    """The largest loss that counts in a noised mean, in nats; a client's loss above it counts as this."""

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
            if self.metrics == "noised":
                raise ValueError(
                    "metrics = 'noised' needs unit = 'client', whose budget pays for the noise; or set metrics = 'off'"
                )
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
    clipped: 1/2 + (sum of (1 or 0) - 1/2 + N(0, s^2)) / (q N), which one client moves by 1 / (2 q N). `noises` has s.
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
        unclipped = 0.5 + (centred_count(lengths, clip) + on_count * rng.standard_normal()) / ledger.expected
        clip *= math.exp(-CLIP_RATE * (min(max(unclipped, 0.0), 1.0) - ledger.settings.quantile))
    return Release(total.to(torch.float32), clip, weights)


def centred_count(lengths: Floats, clip: float) -> float:
    """Uploads that are not clipped count 1/2, clipped ones -1/2: one client more or less moves it by 1/2, not by 1."""
    return float((lengths <= clip).sum()) - 0.5 * len(lengths)


def noises(ledger: Ledger) -> tuple[float, float]:
    """Noise multipliers of the sum and of the count of unclipped uploads.

    z^-2 = sum^-2 + (2 count)^-2 + share z^-2: with the share of noised metrics, if there are any, a round costs z.
    """
    noise, share = ledger.noise, ledger.settings.metrics_share if ledger.settings.metrics == "noised" else 0.0
    if noise == 0.0:
        return 0.0, 0.0
    if not ledger.settings.adaptive:
        return (noise**-2 * (1.0 - share)) ** -0.5 if share else noise, 0.0
    on_count = max(ledger.expected / 20.0, LEAST_COUNT_NOISE * noise)
    return (noise**-2 * (1.0 - share) - (2.0 * on_count) ** -2) ** -0.5, on_count


def centred_sum(values: Floats, bound: float) -> float:
    """The sum of min(x, B) / B - 1/2 over clients with the metric x >= 0: one client more or less moves it by 1/2.

    What is no number counts as B.
    """
    inside = np.clip(np.nan_to_num(values, nan=bound, posinf=bound), 0.0, bound)
    return math.fsum(inside / bound - 0.5)


def metric_noise(ledger: Ledger, count: int) -> float:
    """s of each of `count` centred sums that are released together: count (2 s)^-2 = share z^-2."""
    return 0.5 * ledger.noise * math.sqrt(count / ledger.settings.metrics_share)


def released_means(ledger: Ledger, number: int, metrics: Mapping[str, tuple[Floats, float]]) -> dict[str, float]:
    """B (1/2 + (sum of min(x, B) / B - 1/2 + N(0, s^2)) / (q N)) in [0, B], from (x of the participants, B) by name."""
    noise, rng = metric_noise(ledger, len(metrics)), stream(ledger.seed, "privacy", "metrics", number)
    found = {}
    for name, (values, bound) in metrics.items():
        share = 0.5 + (centred_sum(values, bound) + noise * float(rng.standard_normal())) / ledger.expected
        found[name] = bound * min(max(share, 0.0), 1.0)
    return found
