import numpy as np
import pytest

from leanfed.allocation import Problem, Status, solve_certified
from leanfed.streams import stream
from tests.property import brute_force

HOW_MANY = {1: 6, 2: 2, 3: 1}


@pytest.mark.parametrize("times", [1, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("clients", "floors"), brute_force.CASES)
def test_plan_is_the_brute_force_optimum_and_its_bound_lies_below(clients, floors, times):
    generator = stream(5, "brute force", clients, str(floors))
    for _ in range(times * HOW_MANY[clients]):
        case = brute_force.random_case(generator, clients, floors)
        problem = Problem.of(**{key: value for key, value in case.items() if key != "payload"})
        solution = solve_certified(problem, payload=case["payload"])
        if solution.status is not Status.SOLVED or solution.excluded:
            assert np.isinf(brute_force.solve(case))
            continue
        truth, scale = brute_force.solve(case), case["theta1"] + case["theta2"]
        value, fits = brute_force.price_a_plan(case, solution.k, solution.r, solution.l)
        # The optimum lies between the bound and any feasible plan. Grids miss narrow valleys by up to 1e-4, so
        # the brute force may be the worse of two feasible values; it may never be the better one, nor below the bound.
        assert fits
        assert value == pytest.approx(solution.objective, abs=1e-12)
        assert solution.lower_bound <= truth + 1e-9 * scale
        assert solution.objective <= truth + 1e-6 * scale
        assert solution.objective - solution.lower_bound <= 1e-6 * scale
