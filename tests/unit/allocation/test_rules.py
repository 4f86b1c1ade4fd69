from typing import Any

import numpy as np
import pytest

from leanfed.allocation.bench import paper_problem
from leanfed.allocation.curves import bits_of, rate_of
from leanfed.allocation.limits import plan_cost
from leanfed.allocation.plan import plan
from leanfed.allocation.rules import equal_shares, fastest_rates, fastest_split, fixed_rates, random_search


def test_fastest_split_equalises_latency_and_uses_the_whole_band():
    problem = paper_problem(7, 0, bandwidth_hz=7e5)
    sent, r = bits_of(np.full(7, 0.3), problem.base_size, 32), np.linspace(0, 1, 7)
    shares, latency_s = fastest_split(problem, sent, r)
    reached = problem.base_s + problem.head_s * r + sent / rate_of(shares, problem.bandwidth_hz, problem.snr)
    assert shares.sum() == pytest.approx(1.0)
    assert reached == pytest.approx(np.full(7, latency_s))


def test_fastest_split_of_two_alike_clients_is_half_and_half():
    problem = paper_problem(2, 0).with_(channel_gain=1e-11, power_w=0.2, cpu_hz=1e9)
    shares, latency_s = fastest_split(problem, np.full(2, 1e6), np.zeros(2))
    assert shares == pytest.approx([0.5, 0.5])
    assert latency_s == pytest.approx(problem.base_s[0] + 1e6 / rate_of(0.5, 1e7, problem.snr[0]))


def test_no_other_split_is_faster():
    problem = paper_problem(5, 3, bandwidth_hz=5e5)
    sent, r = np.full(5, 4e5), np.full(5, 0.5)
    _, latency_s = fastest_split(problem, sent, r)
    generator = np.random.default_rng(0)
    for shares in generator.dirichlet(np.full(5, 5.0), 300):
        slowest = (problem.base_s + problem.head_s * r + sent / rate_of(shares, 5e5, problem.snr)).max()
        assert slowest >= latency_s * (1 - 1e-9)


def test_a_client_without_a_link_or_payload_gets_no_share():
    problem = paper_problem(3, 0).with_(channel_gain=[0.0, 1e-11, 1e-11])
    shares, _ = fastest_split(problem, np.array([1e6, 1e6, 0.0]), np.zeros(3))
    assert shares == pytest.approx([0.0, 1.0, 0.0])


def test_fixed_rates_are_kept_where_they_fit():
    roomy = paper_problem(10, 0, bandwidth_hz=1e9)
    solution = fixed_rates(roomy, k=0.4, r=0.6)
    assert np.all(solution.k == 0.4)
    assert np.all(solution.r == 0.6)
    assert np.all(solution.l == 0.1)


def test_fixed_rates_give_up_k_before_r():
    tight = paper_problem(10, 0, bandwidth_hz=2e5)
    solution = fixed_rates(tight, k=0.9, r=0.6)
    assert np.all(solution.r == 0.6)
    assert np.all(solution.k < 0.9)


def test_min_max_bandwidth_helps_fixed_rates():
    problem = paper_problem(30, 2, bandwidth_hz=3e6).with_(energy_budget_j=None)
    assert fastest_rates(problem, k=0.5, r=0.5).k.min() >= fixed_rates(problem, k=0.5, r=0.5).k.min()


def test_random_search_is_replayed_by_its_seed_and_no_worse_than_equal_shares():
    problem = paper_problem(6, 1, bandwidth_hz=6e5)
    first, again, other = (random_search(problem, seed=seed) for seed in (0, 0, 1))
    assert first.l.tolist() == again.l.tolist() != other.l.tolist()
    assert first.objective <= equal_shares(problem).objective


def test_a_floor_beyond_an_equal_share_leaves_the_client_out():
    problem = paper_problem(10, 0, bandwidth_hz=2e5).with_(k_min=[0.0] * 9 + [0.5])
    solution = equal_shares(problem)
    assert [entry.client for entry in solution.excluded] == [9]
    assert "the floor of k, 0.5," in solution.excluded[0].why


@pytest.mark.parametrize("solver", [fixed_rates, fastest_rates])
@pytest.mark.parametrize("k", [0.25, 0.5, 0.7, 1.0])
def test_one_bit_a_value_costs_the_most_with_half_of_them(solver: Any, k: float) -> None:
    """With positions to send, half of the values take more bits than all: room for all is not room for half."""
    problem = paper_problem(10, 0, bandwidth_hz=3e5).with_(value_bits=1)
    plan = solver(problem, k=k, r=0.6, payload="exact")
    latency, joules = plan_cost(problem, plan.k, plan.r, plan.l, "exact")
    assert (latency <= problem.deadline_s * (1 + 1e-9)).all()
    assert (joules <= problem.energy_budget_j * (1 + 1e-9)).all()


@pytest.mark.parametrize("solver", ["certified", "fast", "equal", "fixed", "dca"])
def test_clients_without_weight_can_be_left_alone_with_the_band(solver: str) -> None:
    problem = paper_problem(2, 0).with_(weights=[0.0, 1.0], channel_gain=[1e-11, 0.0], k_min=0.01)
    made = plan(problem, solver=solver)
    assert [entry.client for entry in made.excluded] == [1]
    assert made.relative_gap in (None, 0.0)
