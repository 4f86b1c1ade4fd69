"""Where feasibility ends, against the solver and by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leanfed.allocation.bench import paper_problem
from leanfed.allocation.frontier import least_bandwidth, least_energy
from leanfed.allocation.plan import plan
from leanfed.allocation.problem import Problem


def two_clients(**changes: object) -> Problem:
    """Base layers take 1 s and 2 s, heads as long again; computing takes 1 W and 8 W."""
    values = {
        "weights": [0.5, 0.5],
        "channel_gain": 1e-10,
        "power_w": 0.1,
        "cpu_hz": [2e9, 1e9],
        "batch_size": 1,
        "cycles_per_sample": 4e9,
        "energy_coefficient": [1.25e-28, 8e-27],
        "deadline_s": 3.0,
        "energy_budget_j": None,
        "bandwidth_hz": 1e6,
        "noise_w_per_hz": 1e-17,
        "base_size": 1000,
        "head_size": 1000,
        "value_bits": 32,
        "theta1": 0.1,
        "theta2": 1.0,
    }
    return Problem.of(**{**values, **changes})


def test_least_energy_by_hand() -> None:
    problem = two_clients()
    half = least_energy(problem, [0.9, 1.1, 2.1], 0.5)
    everyone = least_energy(problem, [0.9, 1.1, 2.1], 1.0)
    np.testing.assert_allclose(half, [np.inf, 1.0, 1.0])  # the first client: 1 s at 1 W
    np.testing.assert_allclose(everyone, [np.inf, np.inf, 16.0])  # the second: 2 s at 8 W


def test_the_least_bandwidth_carries_exactly_the_bits_in_the_time_left() -> None:
    problem = two_clients()
    found = float(least_bandwidth(problem, [3.0], 0.5, 1.0)[0])
    snr = 1e-10 * 0.1 / (1e-17 * found)
    assert found * np.log2(1.0 + snr) * 2.0 == pytest.approx(32_000)  # 32,000 bits in the 2 s after computing
    assert least_bandwidth(problem, [0.9], 0.5, 1.0)[0] == np.inf
    assert least_bandwidth(problem, [3.0], 0.5, 0.0)[0] == 0.0


@given(st.integers(0, 50), st.floats(0.02, 1.0), st.sampled_from(["exact", "paper"]))
def test_a_floor_is_feasible_just_above_the_frontier_and_not_below(seed: int, k: float, payload: str) -> None:
    problem = paper_problem(6, seed)
    least = float(least_bandwidth(problem, problem.deadline_s[:1], 1.0, k, payload)[0])
    if not np.isfinite(least):
        return
    above = plan(problem.with_(k_min=k, bandwidth_hz=least * 1.001), payload=payload)
    below = plan(problem.with_(k_min=k, bandwidth_hz=least * 0.999), payload=payload)
    assert (str(above.status), above.excluded) == ("solved", ())
    assert str(below.status) == "infeasible" or below.excluded


def test_more_clients_and_less_time_need_more() -> None:
    problem = paper_problem(20, 1)
    deadlines = np.linspace(0.3, 3.0, 12)
    half, everyone = (least_bandwidth(problem, deadlines, portion, 0.3) for portion in (0.5, 1.0))
    assert (half <= everyone).all()
    assert (np.diff(half[np.isfinite(half)]) <= 1e-6).all()
