"""What several seeds say: intervals, paired differences with a test, ranks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

import numpy as np

from leanfed.records import Floats

# Student's t, 97.5 %, by degrees of freedom from 1 to 30.
T_975: Final = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
NORMAL_975: Final = 1.96  # with more degrees of freedom; at 31 t is 2.040
FLIPPED: Final = 14  # pairs whose signs are flipped in all ways; of more, DRAWN ways are drawn
DRAWN: Final = 10_000


@dataclass(frozen=True)
class Spread:
    """Mean, standard deviation and 95 % interval of the mean (Student's t) over seeds."""

    count: int
    mean: float
    deviation: float  # of a sample, over n - 1; NaN of one value
    half: float  # of the interval; NaN of one value

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The spread of some values.

        >>> Spread.of([1.0, 3.0])
        Spread(count=2, mean=2.0, deviation=1.4142135623730951, half=12.706)
        """
        count, mean = len(values), float(np.mean(values))
        if count < 2:
            return cls(count, mean, math.nan, math.nan)
        deviation = float(np.std(values, ddof=1))
        t = T_975[count - 2] if count - 2 < len(T_975) else NORMAL_975
        return cls(count, mean, deviation, t * deviation / math.sqrt(count))


@dataclass(frozen=True)
class Paired:
    """How much one method is above another on the same seeds, and how surprising that would be if neither were."""

    difference: Spread
    p: float  # two-sided, by flipping the signs of the differences; at least 2 / 2^pairs


def paired(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Paired | None:
    """The differences on the seeds that both have; None where they share none.

    >>> paired({0: 2.0, 1: 3.0, 2: 4.0}, {0: 1.0, 1: 1.0, 2: 1.0, 9: 5.0}).p
    0.25
    """
    seeds = sorted(ours.keys() & theirs.keys())
    if not seeds:
        return None
    gaps = np.array([ours[seed] - theirs[seed] for seed in seeds])
    return Paired(Spread.of(gaps.tolist()), flip_test(gaps))


def flip_test(gaps: Floats) -> float:
    """The share of sign patterns whose mean is at least as far from zero as the one seen."""
    if len(gaps) <= FLIPPED:
        signs = np.array(list(product((1.0, -1.0), repeat=len(gaps))))
    else:  # the pattern that was seen is one of them
        drawn = np.random.default_rng(0).choice((1.0, -1.0), (DRAWN, len(gaps)))
        signs = np.concatenate([np.ones((1, len(gaps))), drawn])
    means = np.abs(signs @ gaps)
    return float(np.mean(means >= abs(gaps.sum()) - 1e-12 * np.abs(gaps).sum()))


def mean_ranks(blocks: Sequence[Mapping[str, float]], *, rising: bool) -> dict[str, float]:
    """Each method's mean rank over blocks that hold all of them (a seed at a grid point); 1 is best, ties share.

    >>> mean_ranks([{"a": 0.9, "b": 0.8}, {"a": 0.7, "b": 0.7}], rising=True)
    {'a': 1.25, 'b': 1.75}
    """
    names = sorted({name for block in blocks for name in block})
    whole = [block for block in blocks if len(block) == len(names)]
    ranks: dict[str, list[float]] = {name: [] for name in names}
    for block in whole:
        for name in names:
            better = sum((block[other] > block[name]) == rising and block[other] != block[name] for other in names)
            equal = sum(block[other] == block[name] for other in names)
            ranks[name].append(better + (equal + 1) / 2)
    return {name: float(np.mean(found)) for name, found in ranks.items() if found}
