"""The tuned form: what it measures by, and that its climb finds what a search of all pairs would."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leanfed.algorithms.contract import SIGNALS
from leanfed.allocation.bench import paper_problem
from leanfed.allocation.fast_form import weigh
from leanfed.allocation.problem import Problem
from leanfed.allocation.tuned_form import (
    STEPS,
    Choice,
    TunedPlan,
    Worths,
    _upload,
    keep_rates,
    plan_tuned,
)

LEARNED = Worths((0.2, 0.35, 0.55, 0.8, 0.95), 0.72, 0.8)


def planned(problem: Problem, worths: Worths, number: int = 1, **options: Any) -> TunedPlan:
    """A plan in which every head step costs as much as the first."""
    return plan_tuned(lambda steps: problem.with_(head_work=float(steps)), worths, number, **options)


@given(k=st.floats(1e-6, 1.0), average=st.floats(0.0, 0.99))
def test_an_upload_is_worth_its_energy_without_an_average_and_more_with_one(k: float, average: float) -> None:
    energy = float(LEARNED.energy(k))
    assert Worths(LEARNED.kept, 0.7, 0.0).upload(k) == pytest.approx(energy)
    assert energy - 1e-12 <= float(Worths(LEARNED.kept, 0.7, average).upload(k)) <= 1.0 + 1e-12


def test_by_hand() -> None:
    assert float(LEARNED.upload(0.1)) == pytest.approx(0.8 / (0.8 + 0.2 * 0.2))
    assert LEARNED.heads(2) == pytest.approx(1 - 0.72**2)
    assert LEARNED.one_more(1) == pytest.approx(0.72)
    assert Worths(contraction=1.0).one_more(4) == pytest.approx(0.25)


def test_measurements_replace_the_guess_and_gaps_do_not_matter() -> None:
    row = dict(zip(SIGNALS, (0.1, 0.2, 0.4, 0.7, 0.9, 0.5), strict=True))
    gaps = {**row, "head_contraction": None}
    many = Worths.measured([row] * 60, SIGNALS, 0.0)
    assert many.kept == pytest.approx((0.1, 0.2, 0.4, 0.7, 0.9), abs=1e-4)
    assert many.contraction == pytest.approx(0.5, abs=1e-4)
    assert Worths.measured([gaps] * 60, SIGNALS, 0.0).contraction == Worths().contraction
    assert Worths.measured([], SIGNALS, 0.3) == Worths(average=0.3)


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))])
@pytest.mark.parametrize("band_hz", [2e5, 1e7])
def test_the_first_choice_is_the_best_of_all_pairs_and_the_next_ones_climb_to_it(seed: int, band_hz: float) -> None:
    given_problem, values = paper_problem(20, seed).with_(bandwidth_hz=band_hz, k_min=0.0, k_max=1.0), []
    for steps, k in itertools.product(STEPS, keep_rates(given_problem)):
        problem = given_problem.with_(head_work=float(steps))
        values.append(weigh(problem, _upload(problem, k, "exact", LEARNED, steps), None)[1])
    plan = planned(given_problem, LEARNED)
    assert plan.fast.worth_per_s >= 0.98 * max(values)  # every other keep rate is weighed, then those beside the best
    choice = Choice(1.0, 1)
    for number in range(1, 12):
        later = planned(given_problem, LEARNED, number, last=choice)
        choice = Choice(later.fast.k, later.head_steps)
    assert later.fast.worth_per_s >= 0.95 * plan.fast.worth_per_s


def test_a_narrow_band_sends_less_and_heads_that_learn_slowly_step_more() -> None:
    wide = paper_problem(20, 1).with_(k_min=0.0, k_max=1.0)
    narrow = wide.with_(bandwidth_hz=1e5)
    assert planned(narrow, LEARNED).fast.k < planned(wide, LEARNED).fast.k
    slow, quick = (Worths(LEARNED.kept, contraction, 0.8) for contraction in (0.9, 0.3))
    assert planned(wide, slow).head_steps > planned(wide, quick).head_steps


def test_heads_of_one_step_are_looked_at_again() -> None:
    problem = paper_problem(10, 2).with_(k_min=0.0, k_max=1.0)
    done = Worths(LEARNED.kept, 0.01, 0.8)
    assert [planned(problem, done, number).head_steps for number in (9, 10)] == [1, 2]
    assert planned(problem, done, 10, steps=[5]).head_steps == 5
