import subprocess
import sys

import numpy as np
import pytest

from leanfed.allocation import ALLOCATORS, Solution, Status, plan
from leanfed.allocation.bench import MODELS, paper_problem, plan_rows
from leanfed.errors import InputError, LeanfedError


def test_unknown_names_are_explained():
    problem = paper_problem(2, 0)
    with pytest.raises(InputError, match="did you mean 'certified'"):
        plan(problem, solver="certifed")
    with pytest.raises(InputError, match="did you mean 'paper'"):
        plan(problem, payload="papers")


def test_a_decorated_function_becomes_an_allocator():
    problem = paper_problem(2, 0)

    @ALLOCATORS.register("nothing")
    def nothing(problem, *, payload):
        zeros = problem.weights * 0
        return Solution(Status.SOLVED, zeros, zeros, zeros, objective=0.1, solver="nothing", payload=payload)

    try:
        assert plan(problem, solver="nothing").objective == 0.1
    finally:
        ALLOCATORS.remove("nothing")


def test_an_allocator_that_breaks_the_contract_is_named():
    problem = paper_problem(2, 0)

    @ALLOCATORS.register("greedy")
    def greedy(problem, *, payload, share=1.0, clients=2):
        part = np.full(clients, share)
        return Solution(Status.SOLVED, part * 0, part * 0, part, objective=0.0, solver="greedy", payload=payload)

    try:
        with pytest.raises(LeanfedError, match="'greedy' gives away 2 times the band"):
            plan(problem, solver="greedy")
        with pytest.raises(LeanfedError, match="'greedy' must give 2 values of l from 0 to 1"):
            plan(problem, solver="greedy", share=2.0)
        with pytest.raises(LeanfedError, match="'greedy' must give 2 values of k"):
            plan(problem, solver="greedy", clients=3)
    finally:
        ALLOCATORS.remove("greedy")


def test_every_solver_is_measured_against_the_certified_bound():
    problem = paper_problem(5, 0, bandwidth_hz=5e5)
    assert 0 <= plan(problem).relative_gap <= plan(problem, solver="equal").relative_gap


def test_bench_rows_have_the_agreed_columns():
    rows = plan_rows(clients=(20,), seeds=2, dca=False)
    assert {row["model"] for row in rows} == {"lenet", "resnet"}
    assert {"solver", "clients", "seconds", "max_seconds"} <= rows[0].keys()
    assert rows[0]["max_seconds"] >= rows[0]["seconds"] > 0
    tuned = [row for row in rows if row["solver"] == "tuned"]
    assert len(tuned) == len(MODELS)
    assert all(0 <= row["max_gap"] < 0.05 for row in tuned)  # a bound of the tuned form, not of problem (27)


def test_planning_imports_neither_torch_nor_cvxpy():
    code = "import sys, leanfed.allocation.bench; print({'torch', 'cvxpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
