"""Crossings and ends at equal cost, by hand."""

from __future__ import annotations

import pytest

from leanfed.charts.costs import first_crossing, score_at, sustained_crossing

SWINGING = [0.57, 0.81, 0.86, 0.61, 0.87, 0.91, 0.78, 0.95]
SECONDS = [float(second) for second in range(1, 9)]


@pytest.mark.parametrize(
    ("target", "first", "sustained"),
    [
        (0.8, 1 + 0.23 / 0.24, 7 + 0.02 / 0.17),  # 0.78 after the seventh second is two points below
        (0.9, 5 + 0.03 / 0.04, 7 + 0.12 / 0.17),
        (0.784, 1 + 0.214 / 0.24, 4 + 0.174 / 0.26),  # 0.78 is 0.4 points below: tolerated; 0.61 is not
        (0.615, 1 + 0.045 / 0.24, 1 + 0.045 / 0.24),  # 0.61 is half a point below
        (0.616, 1 + 0.046 / 0.24, 4 + 0.006 / 0.26),
        (0.5, 1.0, 1.0),  # from the first evaluation on
        (0.96, None, None),
    ],
)
def test_a_curve_that_swings_is_there_for_good_later_than_for_the_first_time(
    target: float, first: float | None, sustained: float | None
) -> None:
    assert first_crossing(SECONDS, SWINGING, target) == (first and pytest.approx(first))
    assert sustained_crossing(SECONDS, SWINGING, target) == (sustained and pytest.approx(sustained))


def test_a_target_that_is_lost_at_the_end_is_never_kept() -> None:
    assert first_crossing([1, 2, 3], [0.7, 0.9, 0.7], 0.8) == pytest.approx(1.5)
    assert sustained_crossing([1, 2, 3], [0.7, 0.9, 0.7], 0.8) is None
    assert sustained_crossing([1, 2, 3], [0.7, 0.9, 0.7], 0.8, tolerance=0.2) == pytest.approx(1.5)
    assert sustained_crossing([], [], 0.8) is None


def test_a_rising_curve_has_one_crossing() -> None:
    for target in (0.2, 0.5, 0.75):
        crossing = first_crossing([10, 20, 30], [0.1, 0.6, 0.9], target)
        assert sustained_crossing([10, 20, 30], [0.1, 0.6, 0.9], target) == crossing


@pytest.mark.parametrize(("cost", "score"), [(10, 0.5), (12, 0.55), (20, 0.75), (25, 0.7), (9.9, None), (30.1, None)])
def test_a_score_at_a_cost_is_interpolated_and_never_guessed(cost: float, score: float | None) -> None:
    assert score_at([10, 20, 30], [0.5, 0.75, 0.65], cost) == (score and pytest.approx(score))
