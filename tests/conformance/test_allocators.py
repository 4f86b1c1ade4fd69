"""One battery for every allocator: whoever registers one gains these tests."""

import json

import numpy as np
import pytest

from leanfed.allocation import Problem, Status, plan
from leanfed.allocation.bench import paper_problem
from leanfed.allocation.limits import plan_cost
from leanfed.allocation.plan import ALLOCATORS
from leanfed.allocation.solution import objective_of

OPTIMISERS = ("certified", "dca", "random")


def _problems():
    crowd = paper_problem(12, 1, bandwidth_hz=1.2e6)
    return {
        "crowded": crowd,
        "heavy": paper_problem(8, 2, model="resnet", bandwidth_hz=8e5),
        "slow client": crowd.with_(cpu_hz=np.r_[1e8, crowd.cpu_hz[1:]]),
        "silent client": crowd.with_(channel_gain=np.r_[0.0, crowd.channel_gain[1:]]),
        "uneven weights": crowd.with_(weights=np.arange(1.0, 13.0) / 78),
        "floors": crowd.with_(k_min=0.01, r_min=0.1, k_max=0.7),
        "no limits": crowd.with_(deadline_s=None, energy_budget_j=None),
        "no energy limit": crowd.with_(energy_budget_j=None),
        "no head": crowd.with_(head_size=0),
        "one client": crowd.only(slice(0, 1)).with_(bandwidth_hz=3e4),
    }


PROBLEMS = _problems()
EVERY = pytest.mark.parametrize("solver", sorted(ALLOCATORS))
EACH = pytest.mark.parametrize("name", PROBLEMS)
PAYLOAD = pytest.mark.parametrize("payload", ["exact", "paper"])


@EVERY
@EACH
@PAYLOAD
def test_plans_are_feasible_and_say_so_truly(solver, name, payload):
    problem = PROBLEMS[name]
    solution = plan(problem, solver=solver, payload=payload)
    assert solution.status in (Status.SOLVED, Status.STEP_LIMIT)
    inside = np.ones(problem.clients, dtype=bool)
    inside[[entry.client for entry in solution.excluded]] = False
    latency, energy = plan_cost(problem, solution.k, solution.r, solution.l, payload)
    assert np.all(latency[inside] <= problem.deadline_s[inside] * (1 + 1e-9))
    assert np.all(energy[inside] <= problem.energy_budget_j[inside] * (1 + 1e-9))
    assert solution.l.sum() <= 1 + 1e-9
    assert np.all(solution.k[inside] >= problem.k_min[inside] * (1 - 1e-9))
    assert np.all(solution.k <= problem.k_max * (1 + 1e-9))
    assert np.all(solution.r[inside] >= problem.r_min[inside] * (1 - 1e-9))
    for part in (solution.k, solution.r, solution.l):
        assert np.all((part >= 0) & (part <= 1))
        assert np.all(part[~inside] == 0)
    assert solution.objective == pytest.approx(objective_of(problem, solution.k, solution.r, inside))
    assert solution.lower_bound is None or solution.lower_bound <= solution.objective


@EVERY
def test_the_same_input_gives_the_same_plan_and_stays_as_it_was(solver):
    problem = PROBLEMS["slow client"]
    before = json.dumps(problem.to_json())
    first, second = plan(problem, solver=solver), plan(problem, solver=solver)
    assert json.dumps(problem.to_json()) == before
    assert first.l.tolist() == second.l.tolist()
    assert first.k.tolist() == second.k.tolist()


@EVERY
def test_nobody_feasible_is_a_status_for_everyone(solver):
    solution = plan(PROBLEMS["crowded"].with_(deadline_s=1e-9), solver=solver)
    assert solution.status is Status.INFEASIBLE
    assert len(solution.excluded) == 12
    assert solution.l.sum() == 0


@EVERY
def test_output_is_plain_json(solver):
    output = plan(PROBLEMS["slow client"], solver=solver).to_json()
    assert json.loads(json.dumps(output, allow_nan=False)) == output
    assert output["solver"] == solver
    assert output["excluded"][0]["client"] == 0


@pytest.mark.parametrize("solver", OPTIMISERS)
@EACH
def test_optimisers_are_never_worse_than_equal_shares(solver, name):
    problem = PROBLEMS[name]
    equal, best = plan(problem, solver="equal"), plan(problem, solver=solver)
    if [entry.client for entry in equal.excluded] == [entry.client for entry in best.excluded]:
        assert best.objective <= equal.objective + 1e-9


@EACH
def test_nobody_beats_the_certified_plan_by_more_than_its_gap(name):
    problem = PROBLEMS[name]
    certified = plan(problem)
    for solver in ALLOCATORS:
        other = plan(problem, solver=solver)
        if [entry.client for entry in other.excluded] == [entry.client for entry in certified.excluded]:
            assert other.objective >= certified.lower_bound - 1e-12


def test_a_problem_file_is_planned_as_it_is(tmp_path):
    path = tmp_path / "problem.json"
    path.write_text(json.dumps(PROBLEMS["crowded"].to_json()))
    assert plan(path).k.tolist() == plan(PROBLEMS["crowded"]).k.tolist()
    assert isinstance(Problem.from_json(path), Problem)
