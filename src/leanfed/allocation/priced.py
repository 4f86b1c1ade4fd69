"""Own rates for every client, at one price of the band.

Within a deadline T each of a client's options, a pair of k and r, needs a share l of the band and brings gamma times
its worth. The best choice of an option (or none) for everybody with sum of l <= 1 is a knapsack with multiple choice.
At a price p of the band clients choose by themselves, each the option with the most worth - p l, and for any p

    p + sum over clients of max(0, worth - p l)

is at least what any choice brings. The least price at which the band suffices gives a plan and, beside it, that bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from leanfed.allocation.curves import Floats
from leanfed.allocation.fast_form import needed
from leanfed.allocation.limits import Mask
from leanfed.allocation.problem import Problem
from leanfed.records import Ints

HALVINGS: Final = 20  # of the interval of prices
TOGETHER: Final = 0.75  # the power of a round's worth that it brings


def progress(worth: float) -> float:
    """What a round brings: worth^(3/4).

    So many heads learn as clients come, but the mean of their uploads comes nearer to everybody's only with the root of
    their number. An accuracy needs both: the geometric mean of n and its root is n^(3/4).

    >>> progress(16.0)
    8.0
    """
    return float(worth**TOGETHER)


@dataclass(frozen=True, eq=False)
class Menu:
    """What every client may choose: a row for each option."""

    k: Floats  # (O, N)
    r: Floats  # (O, N)
    bits: Floats  # (O, N)
    worth: Floats  # (O, N) weighted by gamma; below zero: no option


@dataclass(frozen=True, eq=False)
class Priced:
    """The choice of every client within one deadline."""

    deadline_s: float
    taking: Mask  # (N,)
    k: Floats  # (N,)
    r: Floats  # (N,)
    bits: Floats  # (N,)
    worth: float  # of all who take part
    bound: float  # that no choice from the menu exceeds, with those due that take part
    due: int  # how many of those due take part

    @property
    def per_s(self) -> float:
        """Progress per second."""
        return progress(self.worth) / self.deadline_s

    def row(self) -> dict[str, float]:
        """What was weighed, as plain values; k is the median of those who take part."""
        k = float(np.median(self.k[self.taking])) if self.taking.any() else 0.0
        participants = int(self.taking.sum())
        return {"deadline_s": self.deadline_s, "k": k, "participants": participants, "worth_per_s": self.per_s}


@dataclass(frozen=True, eq=False)
class _Offer:
    """What every option brings and takes within each of some deadlines."""

    worth: Floats  # (T, N, O); minus infinity: not to be had
    share: Floats  # (T, N, O)
    forced: Mask  # (T, N) who takes part at any price

    @classmethod
    def of(cls, problem: Problem, menu: Menu, deadlines_s: Floats, due: Mask) -> _Offer:
        """Options that meet a deadline; of those due as many as fit must come, by the least that each can take."""
        share = needed(problem, menu.bits, deadlines_s[:, np.newaxis, np.newaxis], menu.r)  # (T, O, N)
        offered = np.isfinite(share) & (menu.worth >= 0.0)
        forced = _that_fit(np.where(offered, share, np.inf).min(axis=1), due)
        # A client's options side by side: the best of them is looked for at every price.
        worth, taken = (
            np.ascontiguousarray(values.swapaxes(1, 2))
            for values in (np.where(offered, menu.worth, -np.inf), np.where(offered, share, 0.0))
        )
        return cls(worth, taken, forced)

    def chosen(self, price: Floats) -> tuple[Ints, Mask, Floats, Floats]:
        """At a price of the band: every client's option, the first among equals, who takes part, net worth, share."""
        net = self.worth - price[:, np.newaxis, np.newaxis] * self.share
        option = net.argmax(axis=2)
        place = option + np.arange(0, net.size, net.shape[2]).reshape(option.shape)
        best = net.ravel()[place]
        return option, (best > 0.0) | (self.forced & (best > -np.inf)), best, self.share.ravel()[place]


def priced(problem: Problem, menu: Menu, deadlines_s: Floats, due: Mask, *, halvings: int = HALVINGS) -> list[Priced]:
    """The choices within each of some deadlines; of those due as many as fit come in, whatever they bring."""
    unit = _unit(menu)
    offer = _Offer.of(problem, replace(menu, worth=menu.worth / unit), deadlines_s, due)
    price, bound = _prices(offer, halvings)
    option, taking, _, _ = offer.chosen(price)
    clients = np.arange(problem.clients)
    return [
        Priced(
            float(deadlines_s[t]),
            taking[t],
            menu.k[option[t], clients],
            menu.r[option[t], clients],
            menu.bits[option[t], clients],
            unit * float(offer.worth[t, clients, option[t]][taking[t]].sum()),
            unit * float(bound[t]),
            int((taking[t] & due).sum()),
        )
        for t in range(len(deadlines_s))
    ]


def _unit(menu: Menu) -> float:
    """A power of two that prices are looked for in, so that they are as fine for few clients of many as for all.

    It is 1 where all together bring an eighth or more, else 4 to 8 times what they bring.

    >>> one = np.ones((1, 1))
    >>> [_unit(Menu(one, one, one, worth * one)) for worth in (1.0, 0.125, 0.1, 0.0)]
    [1.0, 1.0, 0.5, 1.0]
    """
    most = float(np.maximum(menu.worth, 0.0).max(axis=0).sum())
    return min(1.0, 2.0 ** (math.floor(math.log2(most)) + 3)) if most > 0.0 else 1.0


def _that_fit(least: Floats, due: Mask) -> Mask:
    """(T, N): those due whose least shares fit the band together, the smallest first."""
    wanted = np.where(due & np.isfinite(least), least, np.inf)
    order = np.argsort(wanted, axis=1, kind="stable")
    fits = np.cumsum(np.take_along_axis(wanted, order, axis=1), axis=1) <= 1.0
    forced = np.zeros(least.shape, dtype=bool)
    np.put_along_axis(forced, order, fits, axis=1)
    return forced


def _prices(offer: _Offer, halvings: int) -> tuple[Floats, Floats]:
    """(T,) the least prices, to within the halvings, at which the band suffices, and the least bounds that were met."""
    count = len(offer.share)
    low, high, bound = np.zeros(count), np.ones(count), np.full(count, np.inf)

    def enough(price: Floats) -> Mask:
        _, taking, net, share = offer.chosen(price)
        np.minimum(bound, price + np.where(taking, net, 0.0).sum(axis=1), out=bound)
        return np.asarray(np.where(taking, share, 0.0).sum(axis=1) <= 1.0)

    free = enough(low)
    dear = enough(high) | free
    while not dear.all() and high.max() < 1e18:
        low, high = np.where(dear, low, high), np.where(dear, high, 8.0 * high)
        dear = enough(high) | free
    high = np.where(free, 0.0, high)
    for _ in range(halvings):
        middle = 0.5 * (low + high)
        fits = enough(middle)
        low, high = np.where(fits, low, middle), np.where(fits, middle, high)
    return high, bound
