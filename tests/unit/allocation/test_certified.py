"""Every row of the edge-case table, and what a certificate must keep."""

import json

import numpy as np
import pytest
from scipy.special import gammaln

from leanfed.allocation import Problem, Status, solve_certified
from leanfed.allocation.bench import paper_problem
from leanfed.allocation.limits import least_cost, plan_cost
from leanfed.records import kept_counts

KEYS = [
    "status", "objective", "lower_bound", "relative_gap", "k", "r", "l", "price", "excluded", "starved", "seconds",
    "solver", "payload",
]  # fmt: skip


def small(clients=6, seed=0, **changes):
    return paper_problem(clients, seed, bandwidth_hz=1e5 * clients).with_(**changes)


def assert_feasible(problem, solution, payload="exact"):
    latency, energy = plan_cost(problem, solution.k, solution.r, solution.l, payload)
    inside = np.ones(problem.clients, dtype=bool)
    inside[[entry.client for entry in solution.excluded]] = False
    assert np.all(latency[inside] <= problem.deadline_s[inside] * (1 + 1e-9))
    assert np.all(energy[inside] <= problem.energy_budget_j[inside] * (1 + 1e-9))
    assert solution.l.sum() <= 1 + 1e-12
    assert np.all(solution.l >= 0)
    for rate in (solution.k, solution.r):
        assert np.all((rate >= 0) & (rate <= 1))
        assert np.all(rate[~inside] == 0)
    assert np.all(solution.l[~inside] == 0)


def test_output_has_exactly_the_agreed_keys():
    output = solve_certified(small()).to_json()
    assert list(output) == KEYS
    assert json.loads(json.dumps(output, allow_nan=False)) == output
    assert output["status"] == "solved"


def test_a_client_too_slow_for_the_deadline_is_left_out_with_the_time_it_needs():
    problem = small(cpu_hz=[1e9] * 5 + [1e8])
    solution = solve_certified(problem)
    assert solution.status is Status.SOLVED
    (entry,) = solution.excluded
    assert entry.client == 5
    assert "a deadline of" in entry.why
    assert entry.needs == pytest.approx(problem.base_s[5])
    assert_feasible(problem, solution)
    assert solve_certified(problem.with_(deadline_s=entry.needs * (1 + 1e-9))).excluded == ()


def test_a_client_without_energy_for_its_base_is_left_out_with_the_energy_it_needs():
    problem = small(energy_budget_j=[0.3, 1e-4, 0.3, 0.3, 0.3, 0.3])
    (entry,) = solve_certified(problem).excluded
    assert entry.client == 1
    assert "an energy budget of" in entry.why
    assert entry.needs == pytest.approx((problem.compute_power_w * problem.base_s)[1])


@pytest.mark.parametrize("floors", [{}, {"r_min": 0.4}, {"r_min": 1.0}, {"k_min": 0.2}, {"k_min": 1.0, "r_min": 1.0}])
@pytest.mark.parametrize("limit", ["deadline_s", "energy_budget_j"])
def test_a_limit_met_exactly_is_met(floors, limit):
    problem = small(1, deadline_s=None, energy_budget_j=None, **floors)
    latency, energy = least_cost(problem, "exact")
    problem = problem.with_(**{limit: (latency if limit == "deadline_s" else energy).tolist()})
    solution = solve_certified(problem)
    assert solution.status is Status.SOLVED
    assert solution.k[0] == pytest.approx(floors.get("k_min", 0.0), abs=1e-6)
    assert solution.r[0] == pytest.approx(floors.get("r_min", 0.0), abs=1e-6)
    assert_feasible(problem, solution)


def test_nobody_feasible_is_a_status():
    solution = solve_certified(small(deadline_s=1e-6))
    assert solution.status is Status.INFEASIBLE
    assert len(solution.excluded) == 6
    assert solution.objective is None
    json.dumps(solution.to_json(), allow_nan=False)


def test_a_client_without_a_share_keeps_its_head():
    solution = solve_certified(small(8, bandwidth_hz=1e5))
    silent = solution.l == 0
    assert silent.any()
    assert np.all(solution.k[silent] == 0)
    assert np.all(solution.r[silent] > 0.5)


def test_less_than_one_value_is_no_upload():
    solution = solve_certified(small(50, bandwidth_hz=2e6, base_size=40, cycles_per_sample=8e3))
    assert np.all((solution.k == 0) | (solution.k * 40 >= 1 - 1e-9))


@pytest.mark.parametrize("field", ["channel_gain", "power_w"])
def test_no_gain_or_no_power_trains_locally(field):
    values = getattr(small(), field).copy()
    values[2] = 0.0
    problem = small(**{field: values})
    solution = solve_certified(problem)
    assert solution.k[2] == 0
    assert solution.r[2] > 0
    assert 2 in solution.starved
    assert_feasible(problem, solution)


def test_nobody_linked_shares_the_band_evenly():
    solution = solve_certified(small(channel_gain=0.0))
    assert solution.status is Status.SOLVED
    assert solution.l.tolist() == pytest.approx([1 / 6] * 6)
    assert np.all(solution.k == 0)


def test_theta1_zero_still_keeps_heads_and_theta2_zero_still_uploads():
    only_k, only_r = small(theta1=0.0), small(theta2=0.0)
    plan_k, plan_r = solve_certified(only_k), solve_certified(only_r)
    assert plan_k.lower_bound <= plan_k.objective
    assert plan_k.relative_gap < 1e-6
    assert plan_r.relative_gap < 1e-6
    assert np.all(plan_r.r > 0.3)
    assert plan_r.k.max() > 0.05
    assert np.all(solve_certified(small(theta1=0.0, bandwidth_hz=1e9)).r == 1.0)
    assert_feasible(only_k, plan_k)
    assert_feasible(only_r, plan_r)


@pytest.mark.parametrize(
    "changes",
    [
        {"deadline_s": None},
        {"energy_budget_j": None},
        {"deadline_s": None, "energy_budget_j": None},
        {"head_size": 0},
        {"cycles_per_sample": 0.0},
        {"energy_coefficient": 0.0},
        {"head_size": 0, "energy_coefficient": 0.0, "energy_budget_j": None},
        {"weights": [0.0, 0.2, 0.2, 0.2, 0.2, 0.2]},
        {"value_bits": 1},
        {"base_size": 1},
        {"k_max": 0.0},
        {"k_max": 0.9999999, "value_bits": 2},
        {"channel_gain": 1.0},
        {"channel_gain": 1e-18},
        {"batch_size": 0},
    ],
    ids=str,
)
@pytest.mark.parametrize("payload", ["exact", "paper"])
def test_extreme_but_legal_values_work(changes, payload):
    problem = small(**changes)
    solution = solve_certified(problem, payload=payload)
    assert solution.status is Status.SOLVED
    assert solution.lower_bound <= solution.objective
    assert solution.relative_gap <= 1e-5 + 2.0 / problem.base_size.min()  # uploads of less than one value are dropped
    assert_feasible(problem, solution, payload)


def test_without_limits_everything_is_kept():
    solution = solve_certified(small(deadline_s=None, energy_budget_j=None))
    assert np.all(solution.k == 1)
    assert np.all(solution.r == 1)


def test_one_client_gets_the_band():
    problem = small(1, bandwidth_hz=2e4)
    solution = solve_certified(problem)
    assert solution.l.tolist() == pytest.approx([1.0])
    assert solution.relative_gap <= 1e-9
    assert_feasible(problem, solution)


def test_identical_clients_are_solved():
    alike = {"channel_gain": 1e-11, "power_w": 0.2, "cpu_hz": 1e9}
    for clients in (2, 7, 40):
        problem = small(clients, **alike)
        solution = solve_certified(problem)
        assert solution.relative_gap <= 1e-3
        assert_feasible(problem, solution)


def test_a_slack_band_has_price_zero_and_an_exact_bound():
    solution = solve_certified(paper_problem(20, 0, bandwidth_hz=1e9))
    assert solution.price == 0
    assert solution.relative_gap <= 1e-12
    assert solution.l.sum() == pytest.approx(1.0)
    assert np.all(solution.k == 1)


def test_rounding_down_keeps_the_deadline_under_the_whole_number_count():
    problem = paper_problem(60, 3, bandwidth_hz=6e6)
    solution = solve_certified(problem)
    kept, heads = kept_counts(solution.k, problem.base_size), kept_counts(solution.r, problem.head_size)
    size = problem.base_size
    positions = (gammaln(size + 1) - gammaln(kept + 1) - gammaln(size - kept + 1)) / np.log(2)
    hertz = np.maximum(solution.l * problem.bandwidth_hz, 1e-9)
    rate = hertz * np.log2(1 + problem.channel_gain * problem.power_w / (problem.noise_w_per_hz * hertz))
    upload = np.where(kept > 0, (32 * kept + positions) / rate, 0.0)
    compute = problem.base_s + problem.head_s * heads / problem.head_size
    inside = solution.r + solution.k > 0
    assert np.all((compute + upload)[inside] <= problem.deadline_s[inside] * (1 + 1e-12))


def test_floors_and_ceilings_hold_and_clients_at_a_floor_are_listed():
    problem = paper_problem(30, 1, bandwidth_hz=3e6).with_(k_min=0.02, k_max=0.8, r_min=0.25)
    solution = solve_certified(problem)
    inside = np.setdiff1d(np.arange(30), [entry.client for entry in solution.excluded])
    assert np.all(solution.k[inside] >= 0.02 * (1 - 1e-9))
    assert np.all(solution.k[inside] <= 0.8)
    assert np.all(solution.r[inside] >= 0.25 * (1 - 1e-9))
    at_floor = inside[solution.k[inside] <= 0.02 * (1 + 1e-9)]
    assert set(at_floor.tolist()) == set(solution.starved)
    assert solution.relative_gap <= 1e-3
    assert_feasible(problem, solution)


def test_floors_that_do_not_fit_together_name_the_band_they_need():
    problem = paper_problem(30, 1, bandwidth_hz=3e5).with_(k_min=0.5)
    solution = solve_certified(problem)
    assert solution.status is Status.INFEASIBLE
    needs = max(entry.needs for entry in solution.excluded if "times the bandwidth of" in entry.why)
    assert needs > 3e5
    # A wider band carries a little less per hertz at fixed power, so what the floors need is a lower limit.
    assert solve_certified(problem.with_(bandwidth_hz=needs * 1.5)).status is Status.SOLVED


@pytest.mark.parametrize("deadline_s", [0.8, None])
def test_a_floor_without_a_link_needs_what_does_not_exist(deadline_s):
    problem = small(channel_gain=[0.0] + [1e-10] * 5, k_min=0.01, deadline_s=deadline_s, energy_budget_j=None)
    entries = {entry.client: entry for entry in solve_certified(problem).excluded}
    assert entries[0].needs is None
    assert "the floor of k" in entries[0].why


def test_the_paper_payload_is_feasible_under_the_papers_bits():
    problem = paper_problem(40, 2, bandwidth_hz=4e6)
    assert_feasible(problem, solve_certified(problem, payload="paper"), "paper")


def test_more_band_is_never_worse():
    values = [solve_certified(paper_problem(25, 4, bandwidth_hz=band)).objective for band in (5e5, 1e6, 2e6, 4e6)]
    assert values == sorted(values, reverse=True)


def test_client_order_does_not_matter():
    problem = paper_problem(20, 5, bandwidth_hz=2e6)
    order = np.random.default_rng(0).permutation(20)
    assert solve_certified(problem.only(order)).objective == pytest.approx(solve_certified(problem).objective, abs=2e-9)


def test_price_is_what_a_little_more_band_saves():
    problem = paper_problem(60, 6, bandwidth_hz=6e6)
    base, wider = solve_certified(problem), solve_certified(problem.with_(bandwidth_hz=6e6 * 1.01))
    saved = (base.objective - wider.objective) / 0.01
    # The price is per unit share at fixed noise power per hertz; 1 % more band at fixed power is worth slightly less.
    assert saved == pytest.approx(base.price, rel=0.2)


def test_problem_file_and_keywords_give_the_same_plan():
    problem = small()
    again = Problem.from_json(json.dumps(problem.to_json()))
    assert solve_certified(again).k.tolist() == solve_certified(problem).k.tolist()
