"""Rules that judge a claim on numbers: orderings, ratios and trends, seed by seed.

A value of None means that a target was not reached: as a cost it is larger than any number. What was not measured at
all is not judged.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, final

from typing_extensions import override

Labels = Mapping[str, str]
Values = Mapping[int, float | None]
SHOWN, REASONS = 8, 3  # parts of a claim that are shown one by one, and reasons of those that fail
Outcome = Literal["holds", "fails", "not judged"]


def key_of(labels: Labels) -> tuple[tuple[str, str], ...]:
    """Labels as a key: the same whatever their order."""
    return tuple(sorted(labels.items()))


@dataclass(frozen=True)
class Number:
    """One cell of a table: its labels, the paper's value, and the value of each seed."""

    labels: Labels
    published: float | None
    ours: Values

    @property
    def mean(self) -> float | None:
        """The mean over the seeds; None if a seed has no value."""
        values = [value for value in self.ours.values() if value is not None]
        return sum(values) / len(values) if values and len(values) == len(self.ours) else None


class Book:
    """All numbers of an entry, looked up by their labels."""

    def __init__(self, numbers: Iterable[Number]) -> None:
        self.numbers = list(numbers)
        self._by_key = {key_of(number.labels): number for number in self.numbers}

    def ours(self, labels: Labels) -> Values:
        """The value of each seed; empty if nothing was measured."""
        number = self._by_key.get(key_of(labels))
        return {} if number is None else number.ours


@dataclass(frozen=True)
class Verdict:
    """The verdict on a claim."""

    outcome: Outcome
    ours: str
    values: tuple[float, ...] = ()  # per seed, if the rule has one number per seed
    reason: str = ""

    @classmethod
    def of(cls, holds: bool, ours: str, values: Sequence[float] = (), reason: str = "") -> Verdict:
        """A verdict from whether the claim holds; the reason is used only if it does not."""
        return cls("holds" if holds else "fails", ours, tuple(values), "" if holds else reason)


NOT_MEASURED = Verdict("not judged", "not measured", reason="the runs it needs are not there")


class Rule(ABC):
    """A rule by which a claim is judged."""

    kind: str

    @abstractmethod
    def judge(self, book: Book) -> Verdict:
        """The verdict on these numbers."""

    @abstractmethod
    def says(self) -> str:
        """The rule and its bounds as a phrase, for the results page."""


@final
@dataclass(frozen=True)
class Ratio(Rule):
    """a / b, taken seed by seed, is on average at most `at_most` (and at least `at_least`)."""

    a: Labels
    b: Labels
    at_most: float = math.inf
    at_least: float = 0.0
    kind = "ratio"

    def judge(self, book: Book) -> Verdict:
        """A ratio fails if a was not reached; it is not judged if b was not reached."""
        a, b = book.ours(self.a), book.ours(self.b)
        seeds = sorted(a.keys() & b.keys())
        if not seeds:
            return NOT_MEASURED
        if any(a[seed] is None for seed in seeds):
            return Verdict("fails", "not reached", reason="not reached")
        if any(b[seed] is None for seed in seeds):
            return Verdict("not judged", "no yardstick", reason="the yardstick is not reached")
        ratios = [float(a[seed] or 0.0) / float(b[seed] or math.nan) for seed in seeds]
        mean = sum(ratios) / len(ratios)
        holds = self.at_least <= mean <= self.at_most
        return Verdict.of(holds, spread(ratios), ratios, f"{mean:.2f} is not {self._bounds()}")

    @override
    def says(self) -> str:
        return f"{phrase(self.a)} over {phrase(self.b)}, mean of seeds {self._bounds()}"

    def _bounds(self) -> str:
        low = f"at least {self.at_least:.3g}" if self.at_least > 0.0 else ""
        high = f"at most {self.at_most:.3g}" if self.at_most < math.inf else ""
        return " and ".join(part for part in (low, high) if part)


@final
@dataclass(frozen=True)
class Less(Rule):
    """a < b + slack in every seed."""

    a: Labels
    b: Labels
    slack: float = 0.0
    kind = "ordering"

    def judge(self, book: Book) -> Verdict:
        """What was not reached counts as larger than any number; if neither was reached, the rule fails."""
        a, b = book.ours(self.a), book.ours(self.b)
        seeds = sorted(a.keys() & b.keys())
        if not seeds:
            return NOT_MEASURED
        pairs = [(_cost(a[seed]), _cost(b[seed])) for seed in seeds]
        ours = f"{average(x for x, _ in pairs)} against {average(y for _, y in pairs)}"
        wrong = [seed for seed, (x, y) in zip(seeds, pairs, strict=True) if not x < y + self.slack]
        differences = [x - y for x, y in pairs if math.isfinite(x) and math.isfinite(y)]
        return Verdict.of(not wrong, ours, differences, f"{compared(self.a, self.b)}: {ours}")

    @override
    def says(self) -> str:
        slack = f" + {self.slack:g}" if self.slack else ""
        return f"{phrase(self.a)} < {phrase(self.b)}{slack} in every seed"


@final
@dataclass(frozen=True)
class Bound(Rule):
    """The mean over seeds lies strictly above (or below) a bound."""

    a: Labels
    above: float = -math.inf
    below: float = math.inf
    kind = "bound"

    def judge(self, book: Book) -> Verdict:
        """What was not reached is above every bound."""
        values = book.ours(self.a)
        if not values:
            return NOT_MEASURED
        mean = _cost(Number({}, None, values).mean)
        ours = average([mean])
        finite = [value for value in values.values() if value is not None]
        return Verdict.of(
            self.above < mean < self.below, ours, finite, f"{phrase(self.a)} is {ours}, not {self._bounds()}"
        )

    @override
    def says(self) -> str:
        return f"{phrase(self.a)} {self._bounds()}"

    def _bounds(self) -> str:
        low = f"above {self.above:g}" if self.above > -math.inf else ""
        high = f"below {self.below:g}" if self.below < math.inf else ""
        return " and ".join(part for part in (low, high) if part)


@final
@dataclass(frozen=True)
class Trend(Rule):
    """The means of a series rise (or, with rising = False, fall); a step may go wrong by at most `slack`."""

    series: tuple[Labels, ...]
    rising: bool = True
    slack: float = 0.0
    kind = "trend"

    def judge(self, book: Book) -> Verdict:
        """The first and last means are compared too: a constant series has no trend."""
        columns = [book.ours(labels) for labels in self.series]
        if not all(columns):
            return NOT_MEASURED
        means = [_cost(Number({}, None, column).mean) for column in columns]
        sign = 1 if self.rising else -1
        steps = [sign * (after - before) for before, after in pairwise(means)]
        holds = all(step >= -self.slack for step in steps) and sign * (means[-1] - means[0]) > 0
        ours = ", ".join(average([mean]) for mean in means)
        return Verdict.of(holds, ours, means, f"{ours} does not {'rise' if self.rising else 'fall'} throughout")

    @override
    def says(self) -> str:
        slack = f", but for {self.slack:g}" if self.slack else ""
        return (
            f"{'rises' if self.rising else 'falls'} over {'; '.join(phrase(labels) for labels in self.series)}{slack}"
        )


@final
@dataclass(frozen=True)
class Every(Rule):
    """All of several rules hold; rules that cannot be judged are ignored unless that is all of them."""

    rules: tuple[Rule, ...]

    @property
    def kind(self) -> str:  # type: ignore[override]
        """The kind of the rules in it."""
        return self.rules[0].kind

    def judge(self, book: Book) -> Verdict:
        """States how many rules hold, their numbers, and the reasons of those that fail."""
        parts = [rule.judge(book) for rule in self.rules]
        judged = [part for part in parts if part.outcome != "not judged"]
        if not judged:
            return NOT_MEASURED
        held = sum(part.outcome == "holds" for part in judged)
        each = ": " + "; ".join(part.ours for part in parts) if len(parts) <= SHOWN else ""
        reasons = list(dict.fromkeys(part.reason for part in judged if part.outcome == "fails"))
        more = f"; and {len(reasons) - REASONS} more" if len(reasons) > REASONS else ""
        return Verdict.of(
            held == len(judged), f"{held} of {len(judged)}{each}", reason="; ".join(reasons[:REASONS]) + more
        )

    @override
    def says(self) -> str:
        return " and ".join(rule.says() for rule in self.rules)


def lowest(a: Labels, others: Sequence[Labels]) -> Every:
    """a is below every other."""
    return Every(tuple(Less(a, other) for other in others))


def phrase(labels: Labels) -> str:
    """The values of some labels, as a phrase."""
    return ", ".join(labels.values())


def compared(a: Labels, b: Labels) -> str:
    """Two sets of labels as a phrase in which common labels appear once.

    >>> compared({"method": "x", "partition": "p"}, {"method": "y", "partition": "p"})
    'p, x against y'
    """
    shared = [value for name, value in a.items() if b.get(name) == value]
    own, other = ([v for name, v in one.items() if a.get(name) != b.get(name)] for one in (a, b))
    return ", ".join([*shared, f"{', '.join(own)} against {', '.join(other)}"])


def spread(values: Sequence[float]) -> str:
    """Mean and range over seeds.

    >>> spread([0.5, 0.75])
    '0.62 (0.50-0.75, 2)'
    """
    mean = sum(values) / len(values)
    if len(values) == 1:
        return f"{mean:.2f} (1)"
    return f"{mean:.2f} ({min(values):.2f}-{max(values):.2f}, {len(values)})"


def average(values: Iterable[float]) -> str:
    """The mean in four digits over the seeds that reached the target.

    >>> average([2.0, 3.0]), average([2.0, math.inf]), average([math.inf])
    ('2.5', '2 in 1 of 2 seeds', 'not reached')
    """
    listed = list(values)
    reached = [value for value in listed if math.isfinite(value)]
    if not reached:
        return "not reached"
    mean = f"{sum(reached) / len(reached):.4g}"
    return mean if len(reached) == len(listed) else f"{mean} in {len(reached)} of {len(listed)} seeds"


def _cost(value: float | None) -> float:
    return math.inf if value is None else value


def plain(verdict: Verdict) -> dict[str, Any]:
    """A verdict as plain values for JSON."""
    return {
        "verdict": verdict.outcome,
        "ours": verdict.ours,
        "values": [value for value in verdict.values if math.isfinite(value)],
        "reason": verdict.reason,
    }
