from itertools import pairwise

import numpy as np
import pytest

from leanfed.allocation import Status, dca, solve_certified
from leanfed.allocation.bench import paper_problem
from leanfed.allocation.dca import solve_dca


@pytest.fixture(scope="module")
def problem():
    return paper_problem(30, 0, bandwidth_hz=3e6)


@pytest.mark.parametrize("payload", ["paper", "exact"])
def test_comes_within_two_percent_of_the_certified_optimum(problem, payload):
    best, ours = solve_certified(problem, payload=payload), solve_dca(problem, payload=payload)
    assert ours.objective >= best.lower_bound - 1e-12
    assert ours.objective <= best.objective + 0.02 * abs(best.objective)


def test_the_trace_falls_and_ends_with_the_status(problem):
    solution = solve_dca(problem, payload="paper", max_steps=15)
    values = [entry["objective"] for entry in solution.trace]
    assert len(values) == solution.steps == 15
    # Every tangent touches and bounds, so no step can lose; the interior-point method is accurate to about 1e-8.
    assert all(after <= before + 1e-6 for before, after in pairwise(values))
    assert solution.status is Status.STEP_LIMIT
    assert solution.objective <= values[-1] + 1e-6


def test_a_slack_band_converges():
    solution = solve_dca(paper_problem(20, 0, bandwidth_hz=1e8))
    assert solution.status is Status.SOLVED
    assert solution.trace[-1]["residual"] <= 1e-4
    assert np.all(solution.k > 0.999)


def test_a_warm_start_needs_fewer_steps_to_get_as_far(problem):
    cold = solve_dca(problem, payload="paper", max_steps=30)
    nearby = problem.with_(bandwidth_hz=problem.bandwidth_hz * 1.01)
    warm = solve_dca(nearby, payload="paper", max_steps=5, start=cold)
    assert warm.objective <= solve_dca(nearby, payload="paper", max_steps=5).objective + 1e-9


def test_statuses_are_kept_apart(problem):
    assert solve_dca(problem.with_(deadline_s=1e-9)).status is Status.INFEASIBLE
    assert solve_dca(problem.with_(k_min=1.0, bandwidth_hz=1e4)).status is Status.INFEASIBLE
    assert solve_dca(problem, max_steps=1).status is Status.STEP_LIMIT


def test_a_failing_solver_is_a_status_and_leaves_a_feasible_plan(problem, monkeypatch):
    monkeypatch.setattr("leanfed.allocation.dca._solve", lambda convex: False)
    solution = solve_dca(problem)
    assert solution.status is Status.SOLVER_FAILED
    assert solution.l.sum() == pytest.approx(1.0)
    assert solution.objective is not None


def test_an_answer_does_not_depend_on_what_was_solved_before(problem):
    # A run that goes on after a stop solves in a new process: the same plan must come out of it.
    dca._compiled.cache_clear()
    first = solve_dca(problem)
    again = solve_dca(problem)
    for name in ("k", "r", "l"):
        assert np.array_equal(getattr(first, name), getattr(again, name))


@pytest.mark.parametrize("bandwidth_hz", [3e6, 2e5, 2e4])
def test_who_would_send_less_than_one_value_sends_nothing_and_leaves_its_share(bandwidth_hz):
    problem = paper_problem(30, 0, bandwidth_hz=bandwidth_hz)
    solution = solve_dca(problem, max_steps=10)
    silent = solution.k == 0.0
    assert np.all(solution.k[~silent] * problem.base_size[~silent] >= 1.0)
    assert not solution.l[silent].any()
    assert solution.l.sum() == pytest.approx(1.0)
