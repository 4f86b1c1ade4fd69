"""Rules that judge a claim on numbers: orderings, ratios and trends, seed by seed.

A value of None was not reached (an accuracy that a run never had): as a cost it is larger than any number. What was not
measured at all is not judged, and neither is a claim of which a part was not measured, be it in one seed; a claim that
fails on the seeds that are there fails. Where the paper states a value,
the verdict is two-sided: within its range, better or worse.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final, Literal, final, get_args

from typing_extensions import override

from leanfed.runs.statistics import T_975

Labels = Mapping[str, str]
Values = Mapping[int, float | None]
SHOWN, REASONS = 8, 3  # parts of a claim that are shown one by one, and reasons of those that fail
Outcome = Literal["holds", "within", "better", "worse", "fails", "not judged"]
OUTCOMES: Final[tuple[Outcome, ...]] = get_args(Outcome)
GOOD: Final = ("holds", "within", "better")  # what the claim says is so, or more than so
BAD: Final = ("worse", "fails")


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

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the mean by Student's t; None for a single seed, or if a seed has no value.

        >>> Number({}, None, {20: 1.0, 21: 3.0}).interval
        (-10.706, 14.706)
        """
        mean, values = self.mean, [value for value in self.ours.values() if value is not None]
        if mean is None or not 1 < len(values) <= len(T_975) + 1:
            return None
        half = T_975[len(values) - 2] * math.sqrt(
            sum((v - mean) ** 2 for v in values) / (len(values) - 1) / len(values)
        )
        return mean - half, mean + half


class Book:
    """All numbers of an entry, looked up by their labels."""

    def __init__(self, numbers: Iterable[Number]) -> None:
        self.numbers = list(numbers)
        self._by_key = {key_of(number.labels): number for number in self.numbers}

    def ours(self, labels: Labels) -> Values:
        """The value of each seed; empty if nothing was measured."""
        number = self._by_key.get(key_of(labels))
        return {} if number is None else number.ours

    def pairs(self, a: Labels, b: Labels) -> list[tuple[float | None, float | None]]:
        """The values of both in every seed that has both, by seed."""
        x, y = self.ours(a), self.ours(b)
        return [(x[seed], y[seed]) for seed in sorted(x.keys() & y.keys())]

    def lacking(self, *cells: Labels) -> list[int]:
        """The seeds that some of these numbers have and others do not."""
        there = Counter(seed for labels in cells for seed in self.ours(labels))
        return sorted(seed for seed, count in there.items() if count < len(cells))


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


def unless_lacking(book: Book, verdict: Verdict, *cells: Labels) -> Verdict:
    """The verdict on the seeds that all have; what holds on these alone is not judged."""
    seeds = book.lacking(*cells)
    if not seeds or verdict.outcome in BAD:
        return verdict
    told = ", ".join(map(str, seeds))
    return replace(verdict, outcome="not judged", reason=f"not all of it is there for seed {told}")


class Rule(ABC):
    """A rule by which a claim is judged."""

    kind: str

    @abstractmethod
    def judge(self, book: Book) -> Verdict:
        """The verdict on these numbers."""

    @abstractmethod
    def says(self) -> str:
        """The rule and its bounds as a phrase, for the results page."""

    @abstractmethod
    def cells(self) -> tuple[Labels, ...]:
        """Labels of all numbers that the verdict depends on."""


@final
@dataclass(frozen=True)
class Ratio(Rule):
    """a / b, taken seed by seed, is on average below a bound."""

    a: Labels
    b: Labels
    below: float
    kind = "ratio"

    def judge(self, book: Book) -> Verdict:
        """A ratio whose a is not reached fails; one whose b is not reached is not judged."""
        ratios = _ratios(book, self.a, self.b)
        if isinstance(ratios, Verdict):
            return ratios
        mean = sum(ratios) / len(ratios)
        found = Verdict.of(mean < self.below, spread(ratios), ratios, f"{mean:.2f} is not below {self.below:.3g}")
        return unless_lacking(book, found, self.a, self.b)

    @override
    def says(self) -> str:
        return f"{phrase(self.a)} over {phrase(self.b)}, mean of seeds below {self.below:.3g}"

    @override
    def cells(self) -> tuple[Labels, ...]:
        return self.a, self.b


@final
@dataclass(frozen=True)
class Share(Rule):
    """a / b, taken seed by seed, is on average what the paper states, up to a factor `room` either way.

    The three verdicts are within the range, better (a smaller share) and worse (a larger one, or a not reached).
    """

    a: Labels
    b: Labels
    paper: float
    room: float = 1.1
    kind = "share"

    def judge(self, book: Book) -> Verdict:
        """A share whose a is not reached is worse; one whose b is not reached is not judged."""
        ratios = _ratios(book, self.a, self.b)
        if isinstance(ratios, Verdict):
            return replace(ratios, outcome="worse") if ratios.outcome == "fails" else ratios
        mean = sum(ratios) / len(ratios)
        low, high = self.range
        outcome: Outcome = "better" if mean < low else "worse" if mean > high else "within"
        reason = "" if outcome == "within" else f"{mean:.2f} is not within {low:.2f} to {high:.2f}"
        return unless_lacking(book, Verdict(outcome, spread(ratios), tuple(ratios), reason), self.a, self.b)

    @property
    def range(self) -> tuple[float, float]:
        """What counts as the paper's share."""
        return self.paper / self.room, self.paper * self.room

    @override
    def says(self) -> str:
        low, high = self.range
        return f"{phrase(self.a)} over {phrase(self.b)}, mean of seeds within {low:.3f} to {high:.3f}"

    @override
    def cells(self) -> tuple[Labels, ...]:
        return self.a, self.b


@final
@dataclass(frozen=True)
class Less(Rule):
    """a < b + slack in every seed; `turned`, it is told from b's side: the claim is that b is above a."""

    a: Labels
    b: Labels
    slack: float = 0.0
    turned: bool = False
    kind = "ordering"

    def judge(self, book: Book) -> Verdict:
        """What was not reached counts as larger than any number; if neither was reached, the rule fails."""
        pairs = [(_cost(x), _cost(y)) for x, y in book.pairs(self.a, self.b)]
        if not pairs:
            return NOT_MEASURED
        first, second = (self.b, self.a) if self.turned else (self.a, self.b)
        told = [(y, x) for x, y in pairs] if self.turned else pairs
        ours = _against(told)
        differences = [x - y for x, y in told if math.isfinite(x) and math.isfinite(y)]
        wrong = sum(not x < y + self.slack for x, y in pairs)
        asked = f", by {-self.slack:g} asked" if self.slack < 0 else f", with {self.slack:g} allowed" * bool(self.slack)
        seeds = f" (wrong in {wrong} of {len(pairs)} seeds)" if len(pairs) > 1 else ""
        found = Verdict.of(not wrong, ours, differences, f"{compared(first, second)}: {ours}{asked}{seeds}")
        return unless_lacking(book, found, self.a, self.b)

    @override
    def says(self) -> str:
        first, sign, second = (self.b, ">", self.a) if self.turned else (self.a, "<", self.b)
        added = -self.slack if self.turned else self.slack
        slack = f" {'+' if added > 0 else '-'} {abs(added):g}" if added else ""
        return f"{phrase(first)} {sign} {phrase(second)}{slack} in every seed"

    @override
    def cells(self) -> tuple[Labels, ...]:
        return self.a, self.b


@final
@dataclass(frozen=True)
class Near(Rule):
    """a and b differ by at most `within` in every seed, whichever is larger."""

    a: Labels
    b: Labels
    within: float
    kind = "likeness"

    def judge(self, book: Book) -> Verdict:
        """What is not reached is near nothing."""
        pairs = [(_cost(x), _cost(y)) for x, y in book.pairs(self.a, self.b)]
        if not pairs:
            return NOT_MEASURED
        ours = _against(pairs)
        apart = [abs(x - y) for x, y in pairs]
        holds = all(gap <= self.within for gap in apart)
        reason = f"{compared(self.a, self.b)}: {ours}, more than {self.within:g} apart"
        found = Verdict.of(holds, ours, [gap for gap in apart if math.isfinite(gap)], reason)
        return unless_lacking(book, found, self.a, self.b)

    @override
    def says(self) -> str:
        return f"{phrase(self.a)} within {self.within:g} of {phrase(self.b)} in every seed"

    @override
    def cells(self) -> tuple[Labels, ...]:
        return self.a, self.b


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

    @override
    def cells(self) -> tuple[Labels, ...]:
        return (self.a,)

    def _bounds(self) -> str:
        low = f"above {self.above:g}" if self.above > -math.inf else ""
        high = f"below {self.below:g}" if self.below < math.inf else ""
        return " and ".join(part for part in (low, high) if part)


@final
@dataclass(frozen=True)
class Trend(Rule):
    """The means of a series rise (or, with rising = False, fall) at every step, and a level step is none.

    With `slack` a step may go wrong by less than that, and the ends have to differ by more than it.
    """

    series: tuple[Labels, ...]
    rising: bool = True
    slack: float = 0.0
    kind = "trend"

    def judge(self, book: Book) -> Verdict:
        """Two in a row that are not reached are level."""
        columns = [book.ours(labels) for labels in self.series]
        common = set.intersection(*map(set, columns))
        if not common:
            return NOT_MEASURED
        columns = [{seed: column[seed] for seed in common} for column in columns]
        means = [_cost(Number({}, None, column).mean) for column in columns]
        sign = 1 if self.rising else -1
        steps = [sign * (after - before) for before, after in pairwise(means)]
        holds = all(step > -self.slack for step in steps) and sign * (means[-1] - means[0]) > self.slack
        ours = ", ".join(average([mean]) for mean in means)
        found = Verdict.of(holds, ours, means, f"{ours} does not {'rise' if self.rising else 'fall'} throughout")
        return unless_lacking(book, found, *self.series)

    @override
    def says(self) -> str:
        slack = f", but for {self.slack:g}" if self.slack else ""
        return (
            f"{'rises' if self.rising else 'falls'} over {'; '.join(phrase(labels) for labels in self.series)}{slack}"
        )

    @override
    def cells(self) -> tuple[Labels, ...]:
        return self.series


@final
@dataclass(frozen=True)
class Every(Rule):
    """All of several rules hold; one that fails makes it fail, and one that was not measured leaves it not judged."""

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
        outcome = _together([part.outcome for part in parts])
        each = ": " + "; ".join(part.ours for part in parts) if len(parts) <= SHOWN else ""
        reasons = list(dict.fromkeys(part.reason for part in judged if part.reason and part.outcome not in GOOD))
        if outcome == "not judged":
            reasons = [f"{len(parts) - len(judged)} of {len(parts)} parts were not measured"]
        elif outcome == "better":
            reasons = [part.reason for part in judged if part.outcome == "better"]
        more = f"; and {len(reasons) - REASONS} more" if len(reasons) > REASONS else ""
        return Verdict(outcome, f"{_counted(parts)}{each}", reason="; ".join(reasons[:REASONS]) + more)

    @override
    def says(self) -> str:
        return " and ".join(rule.says() for rule in self.rules)

    @override
    def cells(self) -> tuple[Labels, ...]:
        return tuple(labels for rule in self.rules for labels in rule.cells())


def _together(outcomes: Sequence[Outcome]) -> Outcome:
    """The outcome of a claim whose parts have these: the first of the list that any of them has."""
    order: tuple[Outcome, ...] = ("fails", "worse", "not judged", "better", "within", "holds")
    return next(word for word in order if word in outcomes)


def _counted(parts: Sequence[Verdict]) -> str:
    """How many parts hold; where some are two-sided, how many are within, better and worse."""
    counts = Counter(part.outcome for part in parts)
    judged = len(parts) - counts["not judged"]
    words = [f"{counts[word]} {word}" for word in OUTCOMES[1:4] if counts[word]]
    if not words:
        return f"{counts['holds']} of {judged}" + (" judged" if judged < len(parts) else "")
    words += [f"{counts['holds']} hold"] if counts["holds"] else []
    words += [f"{counts['fails']} fail"] if counts["fails"] else []
    return ", ".join(words)


def above(a: Labels, b: Labels, slack: float = 0.0) -> Less:
    """a > b - slack in every seed."""
    return Less(b, a, slack, turned=True)


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
    """The mean over the seeds that reached the target.

    >>> average([2.0, 3.0]), average([2.0, math.inf]), average([math.inf])
    ('2.5', '2 in 1 of 2 seeds', 'not reached')
    """
    listed = list(values)
    reached = [value for value in listed if math.isfinite(value)]
    if not reached:
        return "not reached"
    mean = digits(sum(reached) / len(reached))
    return mean if len(reached) == len(listed) else f"{mean} in {len(reached)} of {len(listed)} seeds"


def digits(value: float) -> str:
    """Three significant digits, four of an accuracy near one, no exponent.

    >>> digits(1234.56), digits(0.53071), digits(0.98849), digits(22.0)
    ('1235', '0.531', '0.9885', '22')
    """
    if value == 0.0 or not math.isfinite(value):
        return f"{value:g}"
    places = max(0, 2 - math.floor(math.log10(abs(value)))) + (0.9 <= value < 1)
    text = f"{value:.{places}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _ratios(book: Book, a: Labels, b: Labels) -> list[float] | Verdict:
    """a / b of every seed that has both, or the verdict where there is none."""
    pairs = book.pairs(a, b)
    if not pairs:
        return NOT_MEASURED
    if any(x is None for x, _ in pairs):
        return Verdict("fails", "not reached", reason="not reached")
    if any(not y for _, y in pairs):
        return Verdict("not judged", "no yardstick", reason="the yardstick is not reached")
    return [x / y for x, y in pairs if x is not None and y]


def _against(pairs: Sequence[tuple[float, float]]) -> str:
    """The means of both sides, as a phrase."""
    return f"{average(x for x, _ in pairs)} against {average(y for _, y in pairs)}"


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
