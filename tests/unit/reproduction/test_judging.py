"""Rules on numbers made by hand."""

from __future__ import annotations

import numpy as np
import pytest

from leanfed.reproduction.judging import (
    Book,
    Bound,
    Every,
    Less,
    Near,
    Number,
    Ratio,
    Rule,
    Share,
    Trend,
    lowest,
    spread,
)

A, B, C, NEVER, NONE = ({"method": name} for name in ("a", "b", "c", "never", "none"))

A_OVER_B = "0.62 (0.50-0.75, 2)"


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
        (Ratio(A, B, below=0.63), "holds", "0.62 (0.50-0.75, 2)"),  # (2/4 + 3/4) / 2 = 0.625
        (Ratio(A, B, below=0.625), "fails", "0.62 (0.50-0.75, 2)"),
        (Ratio(NEVER, B, below=9), "fails", "not reached"),
        (Ratio(A, NEVER, below=9), "not judged", "no yardstick"),
        (Ratio(A, NONE, below=9), "not judged", "not measured"),
        (Share(A, B, 0.6), "within", "0.62 (0.50-0.75, 2)"),  # 0.545 to 0.66
        (Share(A, B, 0.68), "within", "0.62 (0.50-0.75, 2)"),  # 0.618 to 0.748
        (Share(A, B, 0.69), "better", "0.62 (0.50-0.75, 2)"),  # 0.627 to 0.759
        (Share(A, B, 0.56), "worse", "0.62 (0.50-0.75, 2)"),  # 0.509 to 0.616
        (Share(NEVER, B, 0.6), "worse", "not reached"),
        (Share(A, NEVER, 0.6), "not judged", "no yardstick"),
        (Share(A, NONE, 0.6), "not judged", "not measured"),
        (Less(A, B), "holds", "2.5 against 4"),
        (Less(A, C), "fails", "2.5 against 2.5"),  # lower in seed 0, higher in seed 1
        (Less(A, C, slack=1.1), "holds", "2.5 against 2.5"),
        (Less(A, B, slack=-0.9), "holds", "2.5 against 4"),  # lower by more than 0.9: by 2 and by 1
        (Less(A, B, slack=-1.1), "fails", "2.5 against 4"),
        (Near(A, C, 1.0), "holds", "2.5 against 2.5"),  # one above, one below, by 1
        (Near(A, C, 0.9), "fails", "2.5 against 2.5"),
        (Near(A, B, 2.0), "holds", "2.5 against 4"),
        (Near(B, A, 1.9), "fails", "4 against 2.5"),  # whichever is larger
        (Near(A, NEVER, 9.0), "fails", "2.5 against 1 in 1 of 2 seeds"),
        (Near(A, NONE, 9.0), "not judged", "not measured"),
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
        (Trend((A, B, B)), "fails", "2.5, 4, 4"),  # at its cap: 0.77, 1, 1 does not rise
        (Trend((A, B, B), slack=0.1), "holds", "2.5, 4, 4"),
        (Trend((A, B, C, B), slack=1.6), "fails", "2.5, 4, 2.5, 4"),  # the ends differ by 1.5 only
        (Trend((A, B, C, B), slack=1.4), "fails", "2.5, 4, 2.5, 4"),  # a step goes wrong by 1.5
        (Trend((A, NEVER, NEVER)), "fails", "2.5, not reached, not reached"),
        (lowest(A, [B, C]), "fails", "1 of 2: 2.5 against 4; 2.5 against 2.5"),
        (Every((Less(A, B), Less(A, NONE))), "not judged", "1 of 1 judged: 2.5 against 4; not measured"),
        (Every((Less(B, A), Less(A, NONE))), "fails", "0 of 1 judged: 4 against 2.5; not measured"),
        (Every((Less(A, B), Bound(A, above=2.4))), "holds", "2 of 2: 2.5 against 4; 2.5"),
        (Every((Share(A, B, 0.6), Share(B, B, 1.0))), "within", f"2 within: {A_OVER_B}; 1.00 (1.00-1.00, 2)"),
        (Every((Share(A, B, 0.6), Share(A, B, 0.9))), "better", f"1 within, 1 better: {A_OVER_B}; {A_OVER_B}"),
        (Every((Share(A, B, 0.9), Share(A, B, 0.5))), "worse", f"1 better, 1 worse: {A_OVER_B}; {A_OVER_B}"),
        (Every((Share(A, B, 0.9), Less(B, A))), "fails", f"1 better, 1 fail: {A_OVER_B}; 4 against 2.5"),
        (Every((Share(A, B, 0.9), Less(A, NONE))), "not judged", f"1 better: {A_OVER_B}; not measured"),
        (Every((Less(A, NONE),)), "not judged", "not measured"),
    ],
    ids=str,
)
def test_a_rule_judges_as_by_hand(book: Book, rule: Rule, outcome: str, ours: str) -> None:
    verdict = rule.judge(book)
    assert (verdict.outcome, verdict.ours) == (outcome, ours)
    assert bool(verdict.reason) == (outcome not in ("holds", "within"))
    assert rule.says()
    assert rule.cells()


def test_the_parts_of_a_large_claim_are_counted_not_listed(book: Book) -> None:
    wrong = tuple(Bound(A, above=bound) for bound in (3.0, 4.0, 5.0, 6.0, 7.0))
    verdict = Every((Less(A, B),) * 10 + wrong).judge(book)
    assert verdict.ours == "10 of 15"
    assert verdict.reason.endswith("; a is 2.5, not above 5; and 2 more")


def test_only_seeds_that_both_have_are_compared() -> None:
    book = Book([Number(A, None, {0: 1.0, 1: 9.0}), Number(B, None, {0: 2.0})])
    assert Ratio(A, B, below=0.6).judge(book).values == (0.5,)


def test_a_mean_needs_every_seed() -> None:
    assert Number(A, None, {0: 1.0, 1: None}).mean is None
    assert Number(A, None, {}).mean is None
    assert spread([0.5]) == "0.50 (1)"


@pytest.mark.parametrize("count", range(2, 11))
def test_the_interval_is_students(count: int) -> None:
    from scipy import stats  # here, for it takes a second to import

    values = [0.5 + 0.1 * (place % 3) for place in range(count)]
    expected = stats.t.interval(0.95, count - 1, np.mean(values), stats.sem(values))
    assert Number(A, None, dict(enumerate(values))).interval == pytest.approx(expected, rel=1e-3)


def test_there_is_no_interval_of_one_seed_or_of_a_target_that_was_missed() -> None:
    assert Number(A, None, {0: 1.0}).interval is None
    assert Number(A, None, {0: 1.0, 1: None}).interval is None
