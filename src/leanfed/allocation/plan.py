"""Pick a solver by name and plan one round; say what holds each client back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from leanfed.allocation import rules
from leanfed.allocation.certified import solve_certified
from leanfed.allocation.curves import PAYLOADS
from leanfed.allocation.fast_form import solve_pace
from leanfed.allocation.limits import plan_cost
from leanfed.allocation.problem import Problem
from leanfed.allocation.solution import Solution, Status, scale_of
from leanfed.errors import InputError, nearest

Allocator = Callable[..., Solution]

ALLOCATORS: dict[str, Allocator] = {}


def allocator(name: str) -> Callable[[Allocator], Allocator]:
    """Register a function (problem, *, payload, ...) -> Solution under a name."""

    def register(function: Allocator) -> Allocator:
        ALLOCATORS[name] = function
        return function

    return register


allocator("certified")(solve_certified)
allocator("equal")(rules.equal_shares)
allocator("fixed")(rules.fixed_rates)
allocator("fastest")(rules.fastest_rates)
allocator("random")(rules.random_search)
allocator("pace")(solve_pace)


@allocator("dca")
def _dca(problem: Problem, **options: Any) -> Solution:
    """Algorithm 2; cvxpy is imported only when it is asked for."""
    from leanfed.allocation.dca import solve_dca

    return solve_dca(problem, **options)


def plan(
    problem: Problem | Mapping[str, Any] | Path | str,
    *,
    solver: str = "certified",
    payload: str = "exact",
    **options: Any,
) -> Solution:
    """Plan one round: k, r and bandwidth share of every client, and how far from the best the plan can be.

    `problem` is a `Problem`, the object of a problem file, its path or its text. Every solver's plan is measured
    against the certified bound.
    """
    if solver not in ALLOCATORS:
        raise InputError(f"Unknown solver {solver!r}; {nearest(solver, ALLOCATORS)}")
    if payload not in PAYLOADS:
        raise InputError(f"Unknown payload {payload!r}; {nearest(payload, PAYLOADS)}")
    checked = problem if isinstance(problem, Problem) else Problem.from_json(problem)
    solution = ALLOCATORS[solver](checked, payload=payload, **options)
    return solution if solution.lower_bound is not None else _bounded(checked, solution)


def _bounded(problem: Problem, solution: Solution) -> Solution:
    """The same plan with the certified bound beside it, where both speak of the same clients."""
    reference = solve_certified(problem, payload=solution.payload, most_nodes=1)
    same = [entry.client for entry in reference.excluded] == [entry.client for entry in solution.excluded]
    if reference.status is not Status.SOLVED or reference.lower_bound is None or solution.objective is None or not same:
        return solution
    bound = min(reference.lower_bound, solution.objective)
    takes_part = np.ones(problem.clients, dtype=bool)
    takes_part[[entry.client for entry in solution.excluded]] = False
    gap = (solution.objective - bound) / scale_of(problem, takes_part)
    return replace(solution, lower_bound=bound, relative_gap=gap)


def binding_limits(problem: Problem, solution: Solution) -> list[str]:
    """What holds each client back: deadline, energy, both, nothing, or the reason it is left out."""
    latency, energy = plan_cost(problem, solution.k, solution.r, solution.l, solution.payload)
    out = {entry.client for entry in solution.excluded}
    names = []
    for n in range(problem.clients):
        tight = [("deadline", latency[n] >= problem.deadline_s[n] * (1.0 - 1e-6))]
        tight.append(("energy", energy[n] >= problem.energy_budget_j[n] * (1.0 - 1e-6)))
        found = [name for name, holds in tight if holds]
        names.append("excluded" if n in out else " + ".join(found) or "nothing")
    return names
