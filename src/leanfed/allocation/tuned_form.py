"""What an upload and a head step are worth is measured on the run, and every client has rates of its own.

A round's worth is the sum over participants of gamma_n x upload(k_n) x heads(h) x r_n, and the round brings that to the
power of 3/4 (`progress`); the plan that brings the most per second wins. Head steps h are chosen with one k for all;
then the deadline, who takes part, and every client's k and r, at one price of the band (`priced`).

* upload(k) = a / (a + (1 - a) (1 - b)), where a is the measured share of the squared norm in the k largest entries.
  With error feedback an entry that is not sent waits (1 - a)/a rounds on average, beside the 1/(1 - b) rounds over
  which the server averages anyway. Without an average (b = 0) it is a itself.
* heads(h) = 1 - c^h, where c is the measured factor by which one step shortens the gradient of a head.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from leanfed.allocation.curves import Floats, bits_of
from leanfed.allocation.fast_form import FastPlan, Upload, deadlines, left_out, plan_fast, tighten
from leanfed.allocation.limits import Mask
from leanfed.allocation.priced import Menu, Priced, priced, progress
from leanfed.allocation.problem import Problem
from leanfed.allocation.solution import assemble
from leanfed.quantities import KEPT

RATES: Final = tuple(KEPT.values())  # at which clients measure
KEEP_RATES: Final = 25  # between k_min and k_max; the first choice weighs every other one
STEPS: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)  # of a head, tried
PAST: Final = 40  # rounds that count
WEIGHT: Final = 0.8  # of a round, where the next one has 1; so many rounds hold all but a ten-thousandth
# Tried for every client's own rates: first all over, then near the best of these.
SPARSE: Final = 3  # of so many keep rates one, all over
NEAR: Final = 3  # keep rates on either side of the usual one
HEADS: Final = (2, 4)  # keep rates of a head, from r_min to 1: all over, near the best
SPREAD, USUAL = 8, 0.1  # deadlines all over: the last is that of everybody at this keep rate
CLOSE, CLOSER = (0.75, 0.83, 0.91, 1.0, 1.1, 1.22), (0.92, 0.97, 1.02, 1.08)  # shares of the best deadline so far
ROUGHLY: Final = 10  # halvings of the price, all over
HALVINGS: Final = 25  # of the deadline, until the band is just enough
LOOK: Final = 10  # heads that take one step take two in every tenth round, so that their worth stays known


N = TypeVar("N", int, float)


@dataclass(frozen=True)
class Worths:
    """What is known of a run's gradients; before it is measured, a power law and a guess."""

    kept: tuple[float, ...] = tuple(rate**0.25 for rate in RATES)  # shares of the squared norm
    contraction: float = 0.75  # of a head's gradient in one step
    average: float = 0.0  # weight of the past in the server's average

    @classmethod
    def measured(cls, rows: Sequence[Mapping[str, Any]], names: Sequence[str], average: float) -> Worths:
        """From the rows of past rounds: smoothed, beginning with the guess."""
        prior = cls(average=average)
        told = [[row[name] for row in rows if row.get(name) is not None] for name in names]
        known = [_smoothed(guess, seen) for guess, seen in zip((*prior.kept, prior.contraction), told, strict=True)]
        return cls(tuple(np.maximum.accumulate(known[:-1]).tolist()), known[-1], average)

    def energy(self, k: ArrayLike) -> Floats:
        """The share of the squared norm at keep rates, linear in ln k between measurements; in proportion to k below.

        >>> Worths().energy([0.0015, 0.01, 1.0]).round(4).tolist()
        [0.117, 0.3162, 1.0]
        """
        rates, keep = np.array([*RATES, 1.0]), np.asarray(k, dtype=float)
        inside = np.interp(np.log(np.maximum(keep, rates[0])), np.log(rates), [*self.kept, 1.0])
        return np.asarray(inside * np.minimum(keep / rates[0], 1.0))

    def upload(self, k: ArrayLike) -> Floats:
        """What an upload is worth, 1 for a whole gradient."""
        share = self.energy(k)
        waits = (1.0 - share) * (1.0 - self.average)
        return np.divide(share, share + waits, out=np.zeros(share.shape), where=share > 0.0)

    def heads(self, steps: int) -> float:
        """What so many steps of a head are worth, 1 for a head that has learned all of its batch."""
        return 1.0 - self.contraction**steps

    def one_more(self, steps: int) -> float:
        """What one more step of each head would add, as a share of a round."""
        return self.heads(steps + 1) / self.heads(steps) - 1.0 if self.contraction < 1.0 else 1.0 / steps


@dataclass(frozen=True, eq=False)
class TunedPlan:
    """A plan of the fast form, the head steps that it is made for, and what they are worth."""

    fast: FastPlan
    head_steps: int
    worths: Worths

    def reasons(self) -> dict[str, Any]:
        """Why this plan, as plain values and in words."""
        k, worths = self.fast.k, self.worths
        more = worths.upload([k, min(1.0, 2.0 * k)])
        double = float(more[1] / more[0] - 1.0) if more[0] > 0.0 else 0.0
        words = (
            f"one more head step is worth {100 * worths.one_more(self.head_steps):.2g} % of a round now, twice the "
            f"upload {100 * double:.2g} %; the largest {100 * k:.3g} % hold {100 * float(worths.energy(k)):.2g} % of a "
            "gradient's energy"
        )
        return {**self.fast.reasons(), "head_steps": self.head_steps, "words": words}


def plan_tuned(
    problem_at: Callable[[int], Problem],
    worths: Worths,
    number: int,
    *,
    steps: Sequence[int] = STEPS,
    last: int | None = None,
    due: Mask | None = None,
    payload: str = "exact",
) -> TunedPlan:
    """The plan of a round with the most progress per second over deadlines, participants, rates and head steps.

    All numbers of head steps are tried, or with those of the `last` round the ones next to it.
    """
    found: dict[int, tuple[_Search, Priced]] = {}
    for each in steps if last is None else _near(steps, last, 1):
        search = _Search.over(problem_at(each), worths, each, due, payload)
        found[each] = search, search.rough()
    chosen = max(found, key=lambda each: _value(found[each][1]))
    if chosen == 1 and number % LOOK == 0 and len(steps) > 1:
        chosen = steps[1]
    search, rough = found[chosen]
    if not rough.taking.any():  # it says why
        upload = _upload(search.problem, search.rates[0], payload, worths, chosen)
        return TunedPlan(plan_fast(search.problem, due=due, payload=payload, upload=upload), chosen, worths)
    return TunedPlan(search.near(rough), chosen, worths)


@dataclass(frozen=True, eq=False)
class _Search:
    """Of every client's own k and r, and of the deadline at which they bring the most per second."""

    problem: Problem
    rates: Sequence[float]  # of the base
    worths: Worths
    head_steps: int
    due: Mask
    payload: str

    @classmethod
    def over(cls, problem: Problem, worths: Worths, steps: int, due: Mask | None, payload: str) -> _Search:
        """All keep rates of a problem."""
        wanted = np.zeros(problem.clients, dtype=bool) if due is None else due
        return cls(problem, keep_rates(problem).tolist(), worths, steps, wanted, payload)

    def menu(self, rates: Sequence[float], heads: int) -> Menu:
        """All pairs of these keep rates of the base and so many of the head, within each client's bounds."""
        problem, wanted = self.problem, np.array(rates)[:, np.newaxis]
        upload = _upload(problem, wanted, self.payload, self.worths, self.head_steps)  # (rates, N) throughout
        floors = problem.r_min + (1.0 - problem.r_min) * np.linspace(0.0, 1.0, heads)[:, np.newaxis]  # (heads, N)
        worth, r = problem.weights * upload.worth, np.tile(floors, (len(rates), 1))
        k, bits, worth, able = (
            np.repeat(values, heads, axis=0) for values in (upload.k, upload.bits, worth, upload.able)
        )
        return Menu(k, r, bits, np.where(able, worth * r, -1.0))

    def rough(self) -> Priced:
        """The best of few deadlines, from the first client alone to all of them, and of few rates, all over."""
        spread = self.spread()
        menu = self.menu(self.sparse, HEADS[0])
        best = max(priced(self.problem, menu, spread, self.due, halvings=ROUGHLY), key=_value)
        about = priced(self.problem, menu, best.deadline_s * np.array(CLOSE), self.due, halvings=ROUGHLY)
        return max(best, *about, key=_value)

    def spread(self) -> Floats:
        """Deadlines from the first client alone with the least upload to all of them with a usual one."""
        found = []
        for k in (self.rates[0], _near(self.rates, USUAL, 0)[0]):
            bits = _upload(self.problem, k, self.payload, self.worths, self.head_steps).bits
            found += deadlines(self.problem, bits, self.problem.r_min, 2).tolist()
        return np.geomspace(min(found), max(found), SPREAD) if found else np.ones(1)  # any: nobody can take part

    @property
    def sparse(self) -> list[float]:
        """Some of the keep rates, the largest among them."""
        return list(self.rates[::-SPARSE][::-1])

    def near(self, rough: Priced) -> FastPlan:
        """The best plan near one that was found roughly."""
        began, problem = time.perf_counter(), self.problem
        usual = float(np.median(rough.k[rough.taking]))
        menu = self.menu(sorted({*self.sparse, *_near(self.rates, usual, NEAR)}), HEADS[1])
        tried = priced(problem, menu, rough.deadline_s * np.array(CLOSER), self.due)
        best = max(tried, key=_value)
        taking = best.taking
        some, k, r = problem.only(taking), best.k[taking], best.r[taking]
        deadline_s, shares = tighten(some, best.bits[taking], r, best.deadline_s, HALVINGS)
        solution = assemble(
            problem,
            taking,
            (k, r, shares),
            excluded=left_out(problem, ~taking, deadline_s, Upload(menu.k[0], menu.bits[0], menu.worth[0])),
            seconds=time.perf_counter() - began,
            solver="priced",
            payload=self.payload,
        )
        return FastPlan(
            solution,
            deadline_s,
            float(np.median(k)),
            progress(best.worth) / deadline_s,
            tuple(np.flatnonzero(self.due & taking).tolist()),
            tuple(one.row() for one in tried),
            bound=best.bound / best.worth - 1.0 if best.worth > 0.0 else None,
        )


def _value(one: Priced) -> tuple[int, float]:
    """What choices are compared by: those due that come, then progress per second."""
    return one.due, one.per_s


def _near(values: Sequence[N], to: float, reach: int) -> Sequence[N]:
    """The values at most so many places from the one nearest to a number.

    >>> _near([1, 2, 4, 8], 5, 1)
    [2, 4, 8]
    """
    place = min(range(len(values)), key=lambda each: abs(values[each] - to))
    return values[max(0, place - reach) : place + reach + 1]


def keep_rates(problem: Problem) -> Floats:
    """The keep rates to try: one for all clients, from one entry or k_min to k_max in equal ratios."""
    high = float(problem.k_max.max())
    low = max(float(problem.k_min.min()), min(1.0 / float(problem.base_size.max()), high))
    return np.unique(np.geomspace(low, high, KEEP_RATES)) if low < high else np.array([high])


def _upload(problem: Problem, k: float | Floats, payload: str, worths: Worths, steps: int) -> Upload:
    """An upload at one keep rate for all, within each client's bounds, after so many head steps."""
    each = np.clip(k, problem.k_min, problem.k_max)
    bits = bits_of(each, problem.base_size, problem.value_bits, payload)
    worth = worths.upload(each) * np.where(problem.head_size > 0, worths.heads(steps), 1.0)
    return Upload(each, bits, worth, each * problem.base_size >= 1.0, by_head=True)


def _smoothed(guess: float, values: Sequence[float]) -> float:
    """v <- WEIGHT v + (1 - WEIGHT) x over the values, from a guess.

    >>> round(_smoothed(1.0, [0.0, 0.0]), 2)
    0.64
    """
    for value in values:
        guess = WEIGHT * guess + (1.0 - WEIGHT) * value
    return guess
