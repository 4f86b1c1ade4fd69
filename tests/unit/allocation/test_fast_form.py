"""The deadline chosen with the plan, by hand."""

import numpy as np
import pytest

from leanfed.allocation import Problem, Status
from leanfed.allocation.bench import paper_problem
from leanfed.allocation.curves import bits_of, rate_of
from leanfed.allocation.fast_form import ENERGY_KEPT, energy_kept, keep_rates, plan_fast, worth
from leanfed.allocation.limits import plan_cost

K = 0.05


def fleet(cpu_hz, **changes):
    """Clients alike in all but their clock: 1e8 cycles each, a band that is wide enough to hardly matter."""
    count = len(cpu_hz)
    values = {
        "weights": np.full(count, 1 / count),
        "channel_gain": 1e-9,
        "power_w": 0.2,
        "cpu_hz": np.array(cpu_hz, dtype=float),
        "batch_size": 1,
        "cycles_per_sample": 1e8,
        "energy_coefficient": 0.0,
        "deadline_s": None,
        "energy_budget_j": None,
        "bandwidth_hz": 1e10,
        "noise_w_per_hz": 4e-21,
        "base_size": 50_000,
        "head_size": 10_000,
        "value_bits": 32,
        "theta1": 0.1,
        "theta2": 1.0,
        "k_min": K,
        "k_max": K,
        "r_min": 0.5,
    }
    return Problem.of(**{**values, **changes})


def test_the_curve_passes_through_its_measurements_and_rises():
    for k, kept in ENERGY_KEPT:
        assert energy_kept(k) == pytest.approx(kept)
    assert np.all(np.diff(energy_kept(np.geomspace(1e-5, 1, 200))) > 0)
    assert energy_kept(0.0) == 0
    assert energy_kept(np.sqrt(0.01 * 0.05)) == pytest.approx((0.31 + 0.65) / 2)  # half-way in ln k


def test_one_slow_client_of_four_sits_out():
    # 0.1, 0.1, 0.1 and 1 s: three in 0.1 s are worth 7.5 per second, four in 1 s are worth 1.
    fast = plan_fast(fleet([1e9, 1e9, 1e9, 1e8]))
    assert [entry.client for entry in fast.solution.excluded] == [3]
    assert "the round's 0.1 s end before its" in fast.solution.excluded[0].why
    assert fast.deadline_s == pytest.approx(0.1, rel=2e-2)
    assert fast.worth_per_s == pytest.approx(0.75 * float(worth(K)) / fast.deadline_s)
    assert fast.solution.r[:3].tolist() == [1, 1, 1]


def test_a_slightly_slower_client_is_waited_for():
    # Four in 0.11 s are worth more per second than three in 0.1 s.
    fast = plan_fast(fleet([1e9, 1e9, 1e9, 0.91e9]))
    assert fast.solution.excluded == ()


def test_a_client_that_is_due_comes_in_whatever_it_costs():
    fast = plan_fast(fleet([1e9, 1e9, 1e9, 1e8]), due=np.array([False, False, False, True]))
    assert fast.due == (3,)
    assert fast.solution.l[3] > 0
    assert fast.deadline_s >= 1.0


def test_a_due_client_without_a_link_holds_nobody_up():
    problem = fleet([1e9, 1e9, 1e9, 1e8], channel_gain=np.array([1e-9, 1e-9, 1e-9, 0.0]))
    fast = plan_fast(problem, due=np.array([False, False, False, True]))
    assert fast.due == ()
    assert fast.deadline_s == pytest.approx(0.1, rel=2e-2)


def test_two_equal_clients_get_half_the_band_and_end_together():
    problem = fleet([1e9, 1e9], bandwidth_hz=1e5)
    fast = plan_fast(problem)
    assert fast.solution.l == pytest.approx([0.5, 0.5])
    upload_s = bits_of(K, 50_000, 32) / rate_of(0.5, 1e5, problem.snr)
    assert fast.deadline_s == pytest.approx(0.1 + float(upload_s[0]))


def test_the_band_is_used_up_and_the_deadline_is_met_by_all():
    problem = paper_problem(100, 4).with_(k_min=0.01, k_max=0.1, r_min=0.5)
    fast = plan_fast(problem)
    inside = fast.solution.l > 0
    latency, energy = plan_cost(problem, fast.solution.k, fast.solution.r, fast.solution.l)
    assert np.all(latency[inside] <= fast.deadline_s * (1 + 1e-9))
    assert latency[inside].max() == pytest.approx(fast.deadline_s)
    assert np.all(energy[inside] <= 0.3 * (1 + 1e-9))
    assert fast.solution.l.sum() == pytest.approx(1)
    assert len(fast.solution.excluded) == np.sum(~inside)


def test_the_choice_is_the_best_of_what_was_weighed():
    fast = plan_fast(paper_problem(100, 4).with_(k_min=0.01, k_max=0.1, r_min=0.5))
    reasons = fast.reasons()
    assert len(reasons["alternatives"]) == 6
    assert all(row["worth_per_s"] <= fast.worth_per_s * (1 + 1e-12) for row in reasons["alternatives"])
    assert reasons["alternatives"][-1]["participants"] == 100  # what it would be with everyone


def test_a_tight_energy_budget_leaves_out_those_who_burn_too_much():
    # zeta omega^2 cycles = 1e-27 x 1e18 x 1e8 = 0.1 J at 1 GHz, 0.4 J at 2 GHz.
    fast = plan_fast(fleet([1e9, 2e9], energy_coefficient=1e-27, energy_budget_j=0.2))
    assert [entry.client for entry in fast.solution.excluded] == [1]
    assert "energy budget" in fast.solution.excluded[0].why


def test_the_head_shrinks_where_the_budget_does_not_pay_for_a_whole_one():
    # 0.2 J in all, of which the head takes a sixth: 0.19 J pay for 0.7 of it, less what the upload takes.
    problem = fleet([1e9], energy_coefficient=2e-27, energy_budget_j=0.19)
    fast = plan_fast(problem)
    assert fast.solution.r == pytest.approx([0.7], rel=1e-3)
    _, energy = plan_cost(problem, fast.solution.k, fast.solution.r, fast.solution.l)
    assert energy <= 0.19 * (1 + 1e-9)


def test_nobody_in_reach_is_a_status():
    fast = plan_fast(fleet([1e9, 1e9], deadline_s=0.05))
    assert fast.solution.status is Status.INFEASIBLE
    assert len(fast.solution.excluded) == 2


def test_keep_rates_span_the_bounds():
    assert keep_rates(fleet([1e9])) == pytest.approx([K])
    assert keep_rates(fleet([1e9], k_min=0.0, k_max=0.1))[[0, -1]] == pytest.approx([0.01, 0.1])
    assert keep_rates(fleet([1e9], k_min=0.0, k_max=0.001)) == pytest.approx([0.001])
