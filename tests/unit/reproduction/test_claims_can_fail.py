"""Every claim of the catalogue has numbers under which it holds and numbers under which it does not.

The committed results are the start. They are changed by rule, not by hand: values of a method scaled, dealt out anew or
taken away, every method made the same, and everything replaced by what naming each client's largest class gets.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import leanfed.reproduction.paper  # noqa: F401  (fills the catalogue)
from leanfed.files import read_json
from leanfed.reproduction.catalogue import ENTRIES, Claim
from leanfed.reproduction.evidence import claims_of, measured_of
from leanfed.reproduction.judging import (
    GOOD,
    Book,
    Bound,
    Every,
    Labels,
    Less,
    Near,
    Number,
    Ratio,
    Rule,
    Share,
    Trend,
    key_of,
)
from leanfed.reproduction.paper.figures import FINAL, GAIN, GUESS, OWN_PACE, SUSTAINED

RESULTS = Path(__file__).resolve().parents[3] / "results"
# An entry whose runs have only begun has no results yet.
THERE = [name for name in ENTRIES if (RESULTS / name / "results.json").is_file()]
CLAIMS = [(name, place) for name in THERE for place in range(len(ENTRIES[name].claims))]
UNTRAINED = ("bandwidth", "parameters", "convergence")  # entries whose numbers no guess could give
Value = float | None
Change = Callable[[Number, Value], Value]


@cache
def committed(name: str) -> Book:
    return ENTRIES[name].book(measured_of(read_json(RESULTS / name / "results.json")))


def case(name: str, place: int) -> tuple[Book, Claim]:
    """A claim and the committed numbers that it depends on, the guesses beside them included."""
    claim = ENTRIES[name].claims[place]
    read = {key_of(labels) for labels in claim.rule.cells()}
    numbers = committed(name).numbers
    return Book(one for one in numbers if key_of(one.labels) in read or one.labels.get("method") == GUESS), claim


def changed(book: Book, change: Change) -> Book:
    return Book(
        Number(one.labels, one.published, {seed: change(one, value) for seed, value in one.ours.items()})
        for one in book.numbers
    )


def scaled(labels: Labels, factor: float) -> Change:
    return lambda one, value: value * factor if value is not None and one.labels == labels else value


def never(labels: Labels) -> Change:
    return lambda one, value: None if one.labels == labels else value


def mutations(book: Book, rule: Rule) -> Iterator[Book]:
    """Numbers of the rule's cells scaled or taken away one by one, reversed, dealt out at random, made the same."""
    cells = [dict(key) for key in dict.fromkeys(key_of(labels) for labels in rule.cells())]
    for labels in cells:
        yield from (changed(book, scaled(labels, factor)) for factor in (0.01, 0.5, 2.0, 100.0, -1.0))
        yield changed(book, never(labels))
    yield dealt(book, cells, cells[::-1])
    draws = np.random.default_rng(0)
    for _ in range(20):
        yield dealt(book, cells, [cells[place] for place in draws.permutation(len(cells))])
    yield dealt(book, cells, [cells[0]] * len(cells))


def dealt(book: Book, cells: list[dict[str, str]], others: list[dict[str, str]]) -> Book:
    """Each cell with the numbers of another."""
    taken = {key_of(cell): dict(book.ours(other)) for cell, other in zip(cells, others, strict=True)}
    return changed(book, lambda one, value: next(iter(taken.get(key_of(one.labels), {0: value}).values()), value))


def guessed(book: Book) -> Book:
    """Every method names each client's largest class: no target is met, nothing is gained, all losses are alike."""
    guesses = {
        one.labels.get("partition") or one.labels["panel"]: mean
        for one in book.numbers
        if one.labels.get("method") == GUESS and (mean := one.mean) is not None
    }

    def guess(one: Number, value: Value) -> Value:
        quantity = one.labels.get("quantity", "")
        if quantity == OWN_PACE:
            return 0.1 if "FedMask" in one.labels["method"] else 1.0  # whoever has the shorter rounds is first
        if "lead over" in quantity or quantity == GAIN:
            return 0.0
        if quantity.startswith(
            ("seconds to", "seconds over", SUSTAINED, "latency", "energy", "uplink", "megabits", "TFLOPs")
        ):
            return None
        if "loss" in quantity:
            return 2.3
        if any(word in quantity for word in ("accuracy", "decile", "F1")):
            return guesses.get(one.labels.get("partition") or one.labels.get("panel", ""), 0.5)
        return value

    return changed(book, guess)


class Repair:
    """Changes numbers until a rule holds, part by part."""

    def __init__(self, book: Book, rule: Rule) -> None:
        self.turn = 0  # the smaller is lowered in one turn, the larger raised in the next
        self.values = {key_of(labels): 1.0 for labels in rule.cells()}  # also of what no seed has reached
        self.values |= {key_of(one.labels): one.mean or 1.0 for one in book.numbers}
        for _ in range(30):
            if rule.judge(self.book()).outcome in ("holds", "within"):
                break
            self.turn += 1
            self.mend(rule)

    def book(self, only: Iterable[Labels] | None = None) -> Book:
        keys = self.values if only is None else [key_of(labels) for labels in only]
        return Book(Number(dict(key), None, {0: self.values.get(key, 1.0)}) for key in keys)

    def of(self, labels: Labels) -> float:
        return self.values.setdefault(key_of(labels), 1.0)

    def put(self, labels: Labels, value: float) -> None:
        self.values[key_of(labels)] = value

    def mend(self, rule: Rule) -> None:
        if not isinstance(rule, Every) and rule.judge(self.book(rule.cells())).outcome in ("holds", "within"):
            return
        match rule:
            case Every(rules):
                for part in rules:
                    self.mend(part)
            case Less(a, b, slack) if self.turn % 2:
                self.put(a, self.of(b) + slack - 0.01 * abs(self.of(b)) - 1e-6)
            case Less(a, b, slack):
                self.put(b, self.of(a) - slack + 0.01 * abs(self.of(a)) + 1e-6)
            case Near(a, b, _):
                self.put(b, self.of(a))
            case Ratio(a, b, below):
                self.put(a, 0.5 * below * self.of(b))
            case Share(a, b, paper, _):
                self.put(a, paper * self.of(b))
            case Bound(a, above, below):
                self.put(a, (above + below) / 2 if np.isfinite(above + below) else max(above, -1e9) + 1.0)
                if np.isinf(above):
                    self.put(a, below - 1.0)
            case Trend(series, rising, _):
                for place, labels in enumerate(series if rising else series[::-1]):
                    self.put(labels, 1.0 + place)


@pytest.mark.parametrize("name", THERE)
def test_the_committed_numbers_give_the_committed_verdicts(name: str) -> None:
    assert claims_of(ENTRIES[name], committed(name)) == read_json(RESULTS / name / "results.json")["claims"]


@pytest.mark.parametrize(("name", "place"), CLAIMS)
def test_some_numbers_change_the_verdict(name: str, place: int) -> None:
    book, claim = case(name, place)
    before = claim.rule.judge(book).outcome
    others = itertools.chain([Repair(book, claim.rule).book()], mutations(book, claim.rule))
    assert any(claim.rule.judge(other).outcome != before for other in others), claim.text


@pytest.mark.parametrize(("name", "place"), CLAIMS)
def test_some_numbers_make_it_hold_and_some_make_it_fail(name: str, place: int) -> None:
    book, claim = case(name, place)
    mended = Repair(book, claim.rule).book()
    assert claim.rule.judge(mended).outcome in ("holds", "within"), claim.text
    # Each single number has a say: some change of it alone makes the mended claim fail.
    for labels in claim.rule.cells():
        others = [changed(mended, scaled(labels, factor)) for factor in (0.0, 0.01, 100.0, -100.0)]
        others.append(changed(mended, never(labels)))
        assert any(claim.rule.judge(other).outcome not in ("holds", "within") for other in others), labels


@pytest.mark.parametrize(("name", "place"), [one for one in CLAIMS if one[0] not in UNTRAINED])
def test_nothing_holds_for_a_majority_guess(name: str, place: int) -> None:
    book, claim = case(name, place)
    if not any(labels["quantity"].startswith("mean ") for labels in claim.rule.cells()):  # planned rates, not learned
        assert claim.rule.judge(guessed(book)).outcome not in GOOD, claim.text


def test_a_form_that_does_not_learn_is_near_nobody() -> None:
    """Comparable means on both sides: 10 % is not within two points of 96 %."""
    book = committed("mnist-accuracy")
    claim = next(
        one for one in ENTRIES["mnist-accuracy"].claims if "within two points" in one.text and "fast" in one.text
    )
    assert claim.rule.judge(book).outcome == "holds"
    ours = [one.labels for one in book.numbers if one.labels["method"] == "FLPDSP-OPT fast"]
    poor = changed(book, lambda one, value: 0.1 if one.labels in ours and one.labels["quantity"] == FINAL else value)
    assert claim.rule.judge(poor).outcome == "fails"
