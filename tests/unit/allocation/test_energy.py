import numpy as np
import pytest

from leanfed.allocation import solve_certified
from leanfed.allocation.bench import paper_problem
from leanfed.allocation.energy import SCHEMES, EnergyState, energy_spent, offline_bound, plan_round, run_horizon
from leanfed.errors import InputError

CLIENTS, ROUNDS = 5, 15


@pytest.fixture(scope="module")
def rounds():
    return [
        paper_problem(CLIENTS, 100 + t, bandwidth_hz=1e5 * CLIENTS).with_(energy_budget_j=None) for t in range(ROUNDS)
    ]


@pytest.fixture(scope="module")
def budget():
    return np.full(CLIENTS, 0.2 * ROUNDS)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_no_scheme_exceeds_any_budget(rounds, budget, scheme):
    run = run_horizon(rounds, budget, scheme=scheme)
    assert np.all(run.spent_j <= budget)
    total = sum(energy_spent(p, s) for p, s in zip(rounds, run.solutions, strict=True))
    assert total == pytest.approx(run.spent_j)


def test_the_price_scheme_beats_pacing_and_pacing_the_equal_cap(rounds, budget):
    price, pacing, cap = (run_horizon(rounds, budget, scheme=scheme).objective.sum() for scheme in SCHEMES)
    assert price < pacing < cap


def test_the_offline_bound_lies_below_every_scheme_that_keeps_everyone(rounds, budget):
    bound, prices = offline_bound(rounds, budget, steps=25)
    assert np.all(prices >= 0)
    for scheme in SCHEMES:
        run = run_horizon(rounds, budget, scheme=scheme)
        if not any(solution.excluded for solution in run.solutions):
            assert bound <= run.objective.sum() + 1e-9


def test_an_energy_price_of_zero_changes_nothing():
    problem = paper_problem(10, 0, bandwidth_hz=1e6)
    free = solve_certified(problem, energy_price=np.zeros(10))
    assert free.k.tolist() == solve_certified(problem).k.tolist()


def test_a_higher_energy_price_saves_energy_and_the_priced_bound_holds():
    problem = paper_problem(10, 0, bandwidth_hz=1e6).with_(energy_budget_j=None)
    spent = []
    for price in (0.0, 0.1, 0.5, 2.0):
        solution = solve_certified(problem, energy_price=np.full(10, price))
        spent.append(energy_spent(problem, solution).sum())
        assert solution.relative_gap <= 1e-5
    assert spent == sorted(spent, reverse=True)
    assert spent[-1] < 0.9 * spent[0]


def test_priced_plan_beats_other_plans_on_the_priced_objective():
    problem = paper_problem(4, 1, bandwidth_hz=4e5).with_(energy_budget_j=None)
    price = np.full(4, 0.3)

    def priced(solution):
        return solution.objective + float(price @ energy_spent(problem, solution))

    best = priced(solve_certified(problem, energy_price=price))
    for other in (0.0, 0.1, 0.2, 0.4, 1.0):
        assert best <= priced(solve_certified(problem, energy_price=np.full(4, other))) + 1e-8


def test_prices_rise_with_overspending_and_fall_with_saving():
    problem = paper_problem(3, 0, bandwidth_hz=1e7).with_(energy_budget_j=None)
    poor, rich = EnergyState.start(np.full(3, 0.5), 10), EnergyState.start(np.full(3, 50.0), 10)
    assert np.all(plan_round(problem, poor)[1].price >= 0)
    assert plan_round(problem, poor)[1].price.max() > 0
    assert np.all(plan_round(problem, rich)[1].price == 0)


def test_infinite_budgets_cost_nothing():
    problem = paper_problem(3, 0, bandwidth_hz=1e6)
    solution, state = plan_round(problem, EnergyState.start(np.full(3, np.inf), 4))
    assert np.all(state.price == 0)
    assert solution.objective == pytest.approx(solve_certified(problem).objective)


def test_wrong_horizons_are_explained():
    with pytest.raises(InputError, match="rounds is 0"):
        EnergyState.start(np.ones(2), 0)
    with pytest.raises(InputError, match="client 1 is -1 J"):
        EnergyState.start(np.array([1.0, -1.0]), 3)
    problem = paper_problem(2, 0)
    state = EnergyState.start(np.ones(2), 1)
    with pytest.raises(InputError, match="did you mean 'price'"):
        plan_round(problem, state, scheme="prices")
    _, over = plan_round(problem, state)
    with pytest.raises(InputError, match="is over"):
        plan_round(problem, over)
