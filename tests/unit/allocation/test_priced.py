"""Own rates at one price of the band, beside every choice of a small menu tried."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leanfed.allocation.bench import paper_problem
from leanfed.allocation.curves import bits_of
from leanfed.allocation.fast_form import needed
from leanfed.allocation.limits import plan_cost
from leanfed.allocation.priced import Menu, Priced, priced
from leanfed.allocation.problem import Problem
from leanfed.allocation.tuned_form import Worths, plan_tuned

NOBODY = np.zeros(4, dtype=bool)


def small(seed: int, **changes: float) -> Problem:
    return paper_problem(4, seed).with_(k_min=0.0, k_max=1.0, r_min=0.5, **changes)


def menu_of(problem: Problem, rates: tuple[float, ...] = (0.01, 0.2), heads: tuple[float, ...] = (0.5, 1.0)) -> Menu:
    pairs = [(k, r) for k in rates for r in heads]
    k, r = (np.repeat(np.array(column)[:, np.newaxis], problem.clients, axis=1) for column in zip(*pairs, strict=True))
    return Menu(k, r, bits_of(k, problem.base_size, problem.value_bits), problem.weights * np.sqrt(k) * r)


def best_of_all(problem: Problem, menu: Menu, deadline_s: float, due: np.ndarray) -> float:
    """The most worth that any option (or none) of every client brings together on one band."""
    share = needed(problem, menu.bits, deadline_s, menu.r)
    choices = [[-1, *np.flatnonzero(np.isfinite(share[:, n]))] for n in range(problem.clients)]
    found = -np.inf
    for options in itertools.product(*choices):
        taking = [(option, n) for n, option in enumerate(options) if option >= 0]
        if sum(share[place] for place in taking) <= 1.0 and all(options[n] >= 0 for n in np.flatnonzero(due)):
            found = max(found, sum(menu.worth[place] for place in taking))
    return found


@given(
    seed=st.integers(0, 40),
    band_hz=st.sampled_from([3e4, 1e5, 4e5, 1e7]),
    deadline_s=st.floats(0.1, 0.8),
    due=st.lists(st.booleans(), min_size=4, max_size=4),
)
def test_no_choice_exceeds_the_bound_and_the_plan_is_between(
    seed: int, band_hz: float, deadline_s: float, due: list[bool]
) -> None:
    problem = small(seed, bandwidth_hz=band_hz)
    menu, called = menu_of(problem), np.array(due)
    (found,) = priced(problem, menu, np.array([deadline_s]), called)
    came = called & found.taking
    most = best_of_all(problem, menu, deadline_s, came)
    assert found.worth <= most * (1 + 1e-12) <= found.bound * (1 + 1e-9)
    share = needed(problem, found.bits, deadline_s, found.r)
    assert share[found.taking].sum() <= 1.0
    assert found.due == came.sum()


def test_those_due_come_even_if_they_bring_nothing() -> None:
    gain = np.array([1e-10, 1e-10, 1e-10, 1e-13])  # the last is far away, and of little weight
    problem = small(3, bandwidth_hz=1e5).with_(channel_gain=gain, weights=[0.4, 0.4, 0.199, 0.001])
    menu = menu_of(problem)
    (alone,) = priced(problem, menu, np.array([0.4]), NOBODY)
    out = np.flatnonzero(~alone.taking & np.isfinite(needed(problem, menu.bits, 0.4, menu.r).min(axis=0)))
    assert len(out)  # else nobody has to be called
    due = np.isin(np.arange(4), out[:1])
    (called,) = priced(problem, menu, np.array([0.4]), due)
    assert called.taking[due].all()
    assert called.worth <= alone.bound


@pytest.mark.parametrize("share", [1e-2, 1e-4, 1e-9])
def test_some_clients_of_many_are_planned_for_as_if_they_were_all(share: float) -> None:
    """Weights are shares of everybody's samples: those of a few hundred of a million clients are small."""
    worths = Worths((0.12, 0.31, 0.5, 0.81, 0.93), 0.6, 0.8)
    alone = paper_problem(60, 7, bandwidth_hz=1e6).with_(k_min=0.0, k_max=1.0, r_min=0.5)
    few = alone.with_(weights=alone.weights * share)
    plans = [
        plan_tuned(lambda steps, one=one: one.with_(head_work=float(steps)), worths, 0).fast for one in (alone, few)
    ]
    assert plans[1].worth_per_s / share**0.75 == pytest.approx(plans[0].worth_per_s, rel=0.03)  # as prices fall


def test_who_comes_late_counts_less_than_who_comes_soon() -> None:
    """All for all of the time, or 0.45 of them in half of it: in proportion all would win."""
    problem = small(1, bandwidth_hz=1e15)
    (found,) = priced(problem, menu_of(problem), np.array([0.8]), NOBODY)
    few = replace(found, deadline_s=0.4, worth=0.45 * found.worth)
    assert few.worth / few.deadline_s < found.worth / found.deadline_s
    assert few.per_s > found.per_s == pytest.approx(found.worth**0.75 / 0.8)


def test_a_band_without_end_costs_nothing_and_all_take_the_most() -> None:
    problem = small(1, bandwidth_hz=1e15)
    (found,) = priced(problem, menu_of(problem), np.array([0.8]), NOBODY)
    assert found.taking.all()
    assert set(found.k) == {0.2}
    assert found.bound == pytest.approx(found.worth)


def test_a_slower_processor_keeps_less_of_its_head_and_a_better_channel_sends_more() -> None:
    hz, near = np.array([3e9, 1e9, 1.3e9, 1.3e9]), np.array([1e-11, 1e-11, 1e-10, 1e-12])
    problem = small(0, bandwidth_hz=3e5).with_(cpu_hz=hz, channel_gain=near, power_w=0.2)
    many = menu_of(problem, tuple(np.geomspace(0.01, 1.0, 12)), tuple(np.linspace(0.5, 1.0, 6)))
    (found,) = priced(problem, many, np.array([0.35]), NOBODY)
    assert found.taking.all()
    assert found.r[1] <= found.r[0]
    assert found.k[2] > found.k[3]


@pytest.mark.parametrize("band_hz", [1e6, 1e7])
def test_the_tuned_plan_fits_its_limits_and_says_how_far_it_may_be_from_the_best(band_hz: float) -> None:
    worths = Worths((0.12, 0.31, 0.5, 0.81, 0.93), 0.6, 0.8)
    problem = paper_problem(100, 5, bandwidth_hz=band_hz).with_(k_min=0.0, k_max=1.0, r_min=0.5)
    plan = plan_tuned(lambda steps: problem.with_(head_work=float(steps)), worths, 0)
    made, own = plan.fast.solution, problem.with_(head_work=float(plan.head_steps))
    latency, joules = plan_cost(own, made.k, made.r, made.l, "exact")
    part = made.k > 0
    assert latency[part].max() == pytest.approx(plan.fast.deadline_s, rel=1e-6)
    assert (joules[part] <= own.energy_budget_j[part] * (1 + 1e-9)).all()
    assert made.l.sum() <= 1.0 + 1e-9
    assert len(set(made.k[part])) > 1  # rates of their own
    assert plan.fast.bound is not None
    assert 0.0 <= plan.fast.bound < 0.005


def test_choices_are_the_same_whatever_deadlines_are_tried_beside() -> None:
    problem = small(7, bandwidth_hz=2e5)
    menu, deadlines = menu_of(problem), np.array([0.2, 0.4, 0.8])
    together = priced(problem, menu, deadlines, NOBODY)
    for one, deadline_s in zip(together, deadlines, strict=True):
        (alone,) = priced(problem, menu, np.array([deadline_s]), NOBODY)
        assert same(one, alone)


def same(a: Priced, b: Priced) -> bool:
    return bool((a.taking == b.taking).all() and (a.k == b.k)[a.taking].all() and a.worth == b.worth)
