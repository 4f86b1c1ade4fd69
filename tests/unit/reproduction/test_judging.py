"""Rules on numbers made by hand."""

from __future__ import annotations

import pytest

from leanfed.reproduction.judging import Book, Bound, Every, Less, Number, Ratio, Rule, Trend, lowest, spread

A, B, C, NEVER, NONE = ({"method": name} for name in ("a", "b", "c", "never", "none"))


@pytest.fixture
def book() -> Book:
    return Book(
        [
            Number(A, None, {0: 2.0, 1: 3.0}),
            Number(B, 9.0, {0: 4.0, 1: 4.0}),
            Number(C, None, {0: 3.0, 1: 2.0}),
            Number(NEVER, None, {0: 1.0, 1: None}),
        ]
    )


@pytest.mark.parametrize(
    ("rule", "outcome", "ours"),
    [
        (Ratio(A, B, at_most=0.63), "holds", "0.62 (0.50-0.75, 2)"),  # (2/4 + 3/4) / 2 = 0.625
        (Ratio(A, B, at_most=0.62), "fails", "0.62 (0.50-0.75, 2)"),
        (Ratio(A, B, at_least=0.63), "fails", "0.62 (0.50-0.75, 2)"),
        (Ratio(NEVER, B, at_most=9), "fails", "not reached"),
        (Ratio(A, NEVER, at_most=9), "not judged", "no yardstick"),
        (Ratio(A, NONE, at_most=9), "not judged", "not measured"),
        (Less(A, B), "holds", "2.5 against 4"),
        (Less(A, C), "fails", "2.5 against 2.5"),  # lower in seed 0, higher in seed 1
        (Less(A, C, slack=1.1), "holds", "2.5 against 2.5"),
        (Less(A, NEVER), "fails", "2.5 against 1 in 1 of 2 seeds"),  # seed 0 is later
        (Less(NEVER, B), "fails", "1 in 1 of 2 seeds against 4"),
        (Bound(A, above=2.4), "holds", "2.5"),
        (Bound(A, above=2.5), "fails", "2.5"),
        (Bound(A, below=2.4), "fails", "2.5"),
        (Trend((A, B)), "holds", "2.5, 4"),
        (Trend((A, B), rising=False), "fails", "2.5, 4"),
        (Trend((A, C)), "fails", "2.5, 2.5"),  # a level series has no trend
        (Trend((A, B, C)), "fails", "2.5, 4, 2.5"),
        (Trend((A, B, NEVER)), "holds", "2.5, 4, not reached"),
        (Trend((A, NONE)), "not judged", "not measured"),
        (lowest(A, [B, C]), "fails", "1 of 2: 2.5 against 4; 2.5 against 2.5"),
        (Every((Less(A, B), Less(A, NONE))), "holds", "1 of 1: 2.5 against 4; not measured"),
        (Every((Less(A, NONE),)), "not judged", "not measured"),
    ],
    ids=str,
)
def test_a_rule_judges_as_by_hand(book: Book, rule: Rule, outcome: str, ours: str) -> None:
    verdict = rule.judge(book)
    assert (verdict.outcome, verdict.ours) == (outcome, ours)
    assert bool(verdict.reason) == (outcome != "holds")
    assert rule.says()


def test_the_parts_of_a_large_claim_are_counted_not_listed(book: Book) -> None:
    wrong = tuple(Bound(A, above=bound) for bound in (3.0, 4.0, 5.0, 6.0, 7.0))
    verdict = Every((Less(A, B),) * 10 + wrong).judge(book)
    assert verdict.ours == "10 of 15"
    assert verdict.reason.endswith("; a is 2.5, not above 5; and 2 more")


def test_only_seeds_that_both_have_are_compared() -> None:
    book = Book([Number(A, None, {0: 1.0, 1: 9.0}), Number(B, None, {0: 2.0})])
    assert Ratio(A, B, at_most=0.5).judge(book).values == (0.5,)


def test_a_mean_needs_every_seed() -> None:
    assert Number(A, None, {0: 1.0, 1: None}).mean is None
    assert Number(A, None, {}).mean is None
    assert spread([0.5]) == "0.50 (1)"
