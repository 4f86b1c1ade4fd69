import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leanfed.allocation import Problem, Status, solve_certified
from leanfed.allocation.branches import build_branches
from leanfed.allocation.curves import bits_of, keep_rate_of, rate_of
from leanfed.allocation.fast_form import plan_fast
from leanfed.allocation.limits import compile_clients, feasible_clients, plan_cost
from leanfed.allocation.price import costs_at, full_ranges, respond
from leanfed.allocation.rules import equal_shares, fastest_split

QUIET = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
PAYLOADS = st.sampled_from(["exact", "paper"])


@st.composite
def problems(draw, most=8):
    clients = draw(st.integers(1, most))
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    spread = draw(st.sampled_from([0.1, 1.0, 4.0]))
    choose = generator.choice
    return Problem.of(
        weights=generator.dirichlet(np.full(clients, 2.0)),
        channel_gain=choose([1.0, 1.0, 1.0, 0.0], clients) * 10 ** generator.normal(-10, spread, clients),
        power_w=10 ** generator.uniform(-2, 0, clients),
        cpu_hz=10 ** generator.uniform(8.5, 9.5, clients),
        batch_size=32,
        cycles_per_sample=float(choose([0.0, 1e6, 8e6])),
        energy_coefficient=float(choose([0.0, 1e-28, 1e-27])),
        deadline_s=choose([None, 0.3, 1.0, 5.0]),
        energy_budget_j=choose([None, 0.1, 1.0]),
        bandwidth_hz=float(10 ** generator.uniform(3, 8)),
        noise_w_per_hz=4e-21,
        base_size=int(10 ** generator.uniform(0, 7)),
        head_size=int(choose([0, 100, 100_000])),
        value_bits=int(choose([1, 4, 8, 16, 32, 64])),
        theta1=float(choose([0.0, 0.01, 1.0, 10.0])),
        theta2=1.0,
        k_min=choose([0.0, 0.0, 0.01, 0.3], clients) if draw(st.booleans()) else 0.0,
        k_max=choose([1.0, 0.5, 0.95], clients) if draw(st.booleans()) else 1.0,
        r_min=choose([0.0, 0.2, 1.0], clients) if draw(st.booleans()) else 0.0,
    )


@QUIET
@given(problems(), PAYLOADS)
def test_any_legal_problem_has_a_feasible_certified_answer(problem, payload):
    solution = solve_certified(problem, payload=payload)
    if solution.status is Status.INFEASIBLE:
        assert len(solution.excluded) == problem.clients
        return
    inside = np.ones(problem.clients, dtype=bool)
    inside[[entry.client for entry in solution.excluded]] = False
    latency, energy = plan_cost(problem, solution.k, solution.r, solution.l, payload)
    assert np.all(latency[inside] <= problem.deadline_s[inside] * (1 + 1e-9))
    assert np.all(energy[inside] <= problem.energy_budget_j[inside] * (1 + 1e-9))
    assert np.all(solution.k[inside] >= problem.k_min[inside] * (1 - 1e-9))
    assert np.all(solution.k <= problem.k_max)
    assert solution.l.sum() <= 1 + 1e-12
    assert solution.lower_bound <= solution.objective
    assert solution.relative_gap <= 1e-6 + 1.0 / problem.base_size.min()  # dropped uploads of less than one value


@QUIET
@given(problems(), PAYLOADS)
def test_never_worse_than_equal_shares(problem, payload):
    solution, equal = solve_certified(problem, payload=payload), equal_shares(problem, payload=payload)
    if equal.objective is not None and len(equal.excluded) == len(solution.excluded):
        # Uploads of less than one value are dropped after the search, which costs at most 1/base_size.
        assert solution.objective <= equal.objective + 1e-8 + 1.0 / problem.base_size.min()


@QUIET
@given(problems(), PAYLOADS)
def test_a_relaxed_limit_never_raises_the_bound(problem, payload):
    tight, loose = (
        solve_certified(problem, payload=payload),
        solve_certified(problem.with_(bandwidth_hz=2 * problem.bandwidth_hz), payload=payload),
    )
    if tight.objective is not None and len(tight.excluded) == len(loose.excluded):
        assert loose.lower_bound <= tight.objective + 1e-9


@QUIET
@given(problems())
def test_the_fastest_split_makes_all_uploaders_equally_fast(problem):
    r, sent = np.full(problem.clients, 0.5), bits_of(0.1, problem.base_size, 32) + np.zeros(problem.clients)
    shares, latency_s = fastest_split(problem, sent, r)
    linked = problem.snr > 0
    assert shares.sum() <= 1 + 1e-12
    if linked.any():
        reached = (
            problem.base_s
            + problem.head_s * r
            + sent / np.maximum(rate_of(shares, problem.bandwidth_hz, problem.snr), 1e-300)
        )[linked]
        assert np.all(reached <= latency_s * (1 + 1e-6))


@QUIET
@given(st.floats(1e-9, 1.0), st.integers(1, 10**8), st.sampled_from([1, 2, 8, 16, 32, 64]), PAYLOADS)
def test_what_fits_is_kept_and_nothing_more(k, size, value_bits, payload):
    budget = bits_of(k, size, value_bits, payload)
    kept = keep_rate_of(budget, size, value_bits, payload)
    assert bits_of(kept, size, value_bits, payload) <= budget * (1 + 1e-9)


@QUIET
@given(st.floats(1e-6, 1.0), st.floats(1e-6, 1.0), st.floats(1e-6, 1e9))
def test_rate_grows_with_the_share_and_is_concave(a, b, snr):
    low, middle, high = rate_of([a, (a + b) / 2, b], 1e6, snr)
    assert middle >= (low + high) / 2 * (1 - 1e-12)
    assert (a - b) * (low - high) >= -1e-9 * max(low, high) * abs(a - b)


@QUIET
@given(problems(most=3), PAYLOADS, st.floats(-4, 4), st.sampled_from([0.0, 0.0, 0.1, 3.0]))
def test_no_share_answers_a_price_better_than_the_client_does(problem, payload, log_price, energy_price):
    """What the certificate rests on: q_n(mu) is the least of f_n(l) + mu l, with nothing between branches missed."""
    feasible, _ = feasible_clients(problem, payload)
    if not feasible.any():
        return
    some = problem.only(feasible)
    clients = compile_clients(some, payload, np.full(some.clients, energy_price))
    branches = build_branches(clients)
    ranges = full_ranges(clients, branches)
    shares = np.r_[np.geomspace(1e-12, 1e-3, 150), np.linspace(1e-3, 1.0, 350)]
    for n in range(some.clients):
        mu = 10.0**log_price * (clients[n, 0] + clients[n, 1])
        share, value, _ = respond(clients, branches, ranges, n, mu)
        scanned = costs_at(np.repeat(clients[n : n + 1], shares.size, axis=0), shares)[:, 0] + mu * shares
        scale = (clients[n, 0] + clients[n, 1]) * (1.0 + energy_price)
        assert value + mu * share <= scanned.min() + 1e-10 * scale


@QUIET
@given(problems(), PAYLOADS, st.integers(0, 2**8 - 1))
def test_any_pace_is_feasible_for_its_own_deadline(problem, payload, calls):
    due = (calls >> np.arange(problem.clients)) % 2 == 1
    fast = plan_fast(problem, due=due, payload=payload)
    plan, inside = fast.solution, np.ones(problem.clients, dtype=bool)
    inside[[entry.client for entry in plan.excluded]] = False
    latency, energy = plan_cost(problem, plan.k, plan.r, plan.l, payload)
    assert np.all(latency[inside] <= np.minimum(problem.deadline_s, fast.deadline_s)[inside] * (1 + 1e-9))
    assert np.all(energy[inside] <= problem.energy_budget_j[inside] * (1 + 1e-9))
    assert plan.l.sum() <= 1 + 1e-9
    assert np.all(plan.k[inside] >= problem.k_min[inside])
    assert np.all(plan.k <= problem.k_max)
    assert np.all(plan.r[inside] >= problem.r_min[inside])
    assert set(fast.due) == set(np.flatnonzero(due & inside).tolist())
