"""The tuned form: what it measures by, and that its plans bring more than any with one keep rate for all."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leanfed.algorithms.contract import SIGNALS
from leanfed.allocation.bench import paper_problem
from leanfed.allocation.fast_form import plan_fast
from leanfed.allocation.priced import progress
from leanfed.allocation.problem import Problem
from leanfed.allocation.tuned_form import (
    STEPS,
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


def best_alike(problem: Problem) -> float:
    """The most progress per second of any number of head steps and one keep rate, heads whole where they fit."""
    found = 0.0
    for steps, k in itertools.product(STEPS, keep_rates(problem)):
        own = problem.with_(head_work=float(steps))
        plan = plan_fast(own, upload=_upload(own, k, "exact", LEARNED, steps))
        if plan.worth_per_s > 0.0:
            found = max(found, progress(plan.worth_per_s * plan.deadline_s) / plan.deadline_s)
    return found


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))])
@pytest.mark.parametrize(
    ("clients", "band_hz", "gain"), [(20, 2e5, 0.98), (20, 1e7, 0.98), (100, 2e4, 1.04), (100, 1e6, 1.04)]
)
def test_own_rates_bring_more_than_any_pair_for_all_and_later_rounds_climb_to_them(
    clients: int, band_hz: float, gain: float, seed: int
) -> None:
    """Few clients are left a little on the table: the band is cut into few pieces, and few deadlines are tried."""
    problem = paper_problem(clients, seed, bandwidth_hz=band_hz).with_(k_min=0.0, k_max=1.0, r_min=0.5)
    plan = planned(problem, LEARNED)
    assert plan.fast.worth_per_s >= gain * best_alike(problem)
    last = 1
    for number in range(1, 12):
        later = planned(problem, LEARNED, number, last=last)
        last = later.head_steps
    assert later.fast.worth_per_s >= 0.98 * plan.fast.worth_per_s


def test_on_links_that_differ_much_plans_do_not_wander() -> None:
    """The best deadline is looked for all over in every round, so a plan never drifts from a better one."""
    rng = np.random.default_rng(0)
    limits = {"deadline_s": 8.0, "energy_budget_j": None, "power_w": 0.2, "fixed_s": 0.3, "batch_size": 32}
    sizes = {"base_size": 50692, "head_size": 11014, "value_bits": 32, "theta1": 0.1, "theta2": 1.0}
    links = {"link_bit_per_s": rng.uniform(5e4, 2e6, 12), "sample_s": rng.uniform(1e-3, 3e-2, 12)}
    problem = Problem.of(weights=np.full(12, 1 / 12), k_min=0.0, k_max=1.0, r_min=0.5, **links, **limits, **sizes)
    last, found = None, []
    for number in range(6):
        plan = planned(problem, Worths(), number, last=last, due=np.arange(12) == 3)
        last = plan.head_steps
        found.append(plan.fast.worth_per_s)
        assert plan.fast.due == (3,)
    assert min(found) > 0.98 * max(found)


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
