"""Clients whose models differ in size: plans by brute force, and the problem file."""

import itertools
import json

import numpy as np
import pytest

from leanfed.allocation import Problem, solve_certified
from leanfed.allocation.cells import problem_text
from leanfed.allocation.curves import bits_of, keep_rate_of, rate_of
from leanfed.allocation.fast_form import keep_rates, plan_fast, worth
from leanfed.allocation.limits import plan_cost

BASE, HEAD = np.array([50_692, 12_673, 3_168, 50_692]), np.array([11_014, 2_754, 689, 11_014])


def problem_of(clients: int, **changes) -> Problem:
    values = {
        "weights": np.full(clients, 1 / clients),
        "channel_gain": np.array([4e-12, 1e-11, 6e-12, 2e-12])[:clients],
        "power_w": 0.2,
        "cpu_hz": np.array([1.2e9, 0.5e9, 0.4e9, 0.9e9])[:clients],
        "batch_size": 32,
        "cycles_per_sample": 8e6 * (np.array([1.0, 0.35, 0.14, 1.0]))[:clients],
        "energy_coefficient": 1e-28,
        "deadline_s": 0.4,
        "energy_budget_j": 0.1,
        "bandwidth_hz": 1.5e6,
        "noise_w_per_hz": 4e-21,
        "base_size": BASE[:clients],
        "head_size": HEAD[:clients],
        "value_bits": 32,
        "theta1": 0.3,
        "theta2": 1.0,
    }
    return Problem.of(**{**values, **changes})


def best_costs(problem: Problem, n: int, shares: np.ndarray) -> np.ndarray:
    """The least gamma (theta1 sqrt(1-r) - theta2 k) of a client at each share, over a fine grid of r, by hand."""
    r = np.linspace(0, 1, 401)[:, None]
    d_b, d_p = BASE[n], HEAD[n]
    compute_s = 32 * problem.cycles_per_sample[n] * (d_b + r * d_p) / (d_b + d_p) / problem.cpu_hz[n]
    watts = problem.energy_coefficient[n] * problem.cpu_hz[n] ** 3
    send_s = np.minimum(problem.deadline_s[n] - compute_s, (problem.energy_budget_j[n] - watts * compute_s) / 0.2)
    rate = rate_of(shares, problem.bandwidth_hz, problem.snr[n])[None, :]
    k = np.minimum(keep_rate_of(np.maximum(send_s, 0) * rate, d_b, 32), 1)
    cost = problem.weights[n] * (problem.theta1 * np.sqrt(1 - r) - problem.theta2 * k)
    return np.where(send_s >= 0, cost, np.inf).min(axis=0)


@pytest.mark.parametrize("theta1", [0.05, 0.3, 3.0])
def test_the_certified_plan_is_the_best_of_all_splits_between_two_sizes(theta1: float) -> None:
    problem = problem_of(2, theta1=theta1)
    shares = np.linspace(0, 1, 2001)
    best = float((best_costs(problem, 0, shares) + best_costs(problem, 1, 1 - shares)).min())
    plan = solve_certified(problem)
    assert plan.lower_bound <= best + 1e-9
    assert plan.objective <= best + 1e-9  # the grid's plans are feasible, so none may be better
    assert best - plan.objective < 2e-3
    latency, energy = plan_cost(problem, plan.k, plan.r, plan.l)
    assert np.all(latency <= 0.4 * (1 + 1e-9)) and np.all(energy <= 0.1 * (1 + 1e-9))


def test_the_fast_plan_is_near_the_best_of_all_subsets() -> None:
    """Every subset at every keep rate with the earliest deadline that it can meet together."""
    problem = problem_of(4, k_min=0.01, k_max=0.05, r_min=0.5, deadline_s=2.0, energy_budget_j=None)
    best = 0.0
    for k in keep_rates(problem):
        bits = bits_of(k, BASE, 32)
        for size in range(1, 5):
            for some in map(list, itertools.combinations(range(4), size)):
                pick = problem.only(some)
                low, high = 0.0, 2.0
                for _ in range(50):
                    middle = (low + high) / 2
                    left = np.maximum(middle - pick.compute_s(1.0), 1e-9)
                    need = [_share(bits[n] / s, problem.snr[n], 1.5e6) for n, s in zip(some, left, strict=True)]
                    low, high = (low, middle) if sum(need) <= 1 else (middle, high)
                best = max(best, float(pick.weights.sum() * worth(k)) / high)
    plan = plan_fast(problem)
    assert plan.worth_per_s <= best * (1 + 1e-6)
    assert plan.worth_per_s >= 0.97 * best


def _share(bits_per_s: float, snr: float, band_hz: float) -> float:
    """The share with this rate by bisection; 2 where the band is too small."""
    low, high = 0.0, 2.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if middle * band_hz * np.log2(1 + snr / middle) >= bits_per_s else (middle, high)
    return high


def test_equal_sizes_in_a_list_are_one_number_to_the_bit() -> None:
    one = problem_of(4, base_size=50_692, head_size=11_014)
    listed = problem_of(4, base_size=[50_692] * 4, head_size=[11_014] * 4)
    for solve in (solve_certified, lambda problem: plan_fast(problem).solution):
        first, second = solve(one), solve(listed)
        assert np.array_equal([first.k, first.r, first.l], [second.k, second.r, second.l])
    assert problem_text(one) == problem_text(listed)
    assert json.loads(problem_text(one))["base_size"] == 50_692


def test_sizes_in_a_problem_file_are_read_back() -> None:
    problem = problem_of(3)
    assert json.loads(problem_text(problem))["head_size"] == [11_014, 2_754, 689]
    assert Problem.from_json(problem_text(problem)).base_size.tolist() == [50_692, 12_673, 3_168]
    assert problem.only([2]).base_size.tolist() == [3_168]
