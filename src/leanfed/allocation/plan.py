"""Plan one round with an allocator chosen by name; say what holds each client back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from leanfed.allocation.base import ALLOCATORS as ALLOCATORS
from leanfed.allocation.certified import solve_certified
from leanfed.allocation.curves import PAYLOADS
from leanfed.allocation.limits import plan_cost
from leanfed.allocation.problem import Problem
from leanfed.allocation.solution import Solution, Status, gap_of
from leanfed.errors import InputError, LeanfedError, nearest


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
    allocator: Any = ALLOCATORS[solver]  # its own options are not part of the contract
    if payload not in PAYLOADS:
        raise InputError(f"Unknown payload {payload!r}; {nearest(payload, PAYLOADS)}")
    checked = problem if isinstance(problem, Problem) else Problem.from_json(problem)
    solution = _trusted(checked, solver, allocator(checked, payload=payload, **options))
    return solution if solution.lower_bound is not None else _bounded(checked, solution)


def _trusted(problem: Problem, solver: str, solution: Solution) -> Solution:
    """The solution, if its rates are rates and its shares fit the band: an allocator may be a stranger's."""
    for name, part in (("k", solution.k), ("r", solution.r), ("l", solution.l)):
        if np.shape(part) != (problem.clients,) or not np.all((part >= 0.0) & (part <= 1.0)):
            raise LeanfedError(f"The allocator {solver!r} must give {problem.clients} values of {name} from 0 to 1.")
    if (total := float(solution.l.sum())) > 1.0 + 1e-9 and not problem.linked:
        raise LeanfedError(f"The allocator {solver!r} gives away {total:.6g} times the band. Scale its shares.")
    return solution


def _bounded(problem: Problem, solution: Solution) -> Solution:
    """The same plan with the certified bound beside it, where both speak of the same clients."""
    reference = solve_certified(problem, payload=solution.payload, most_nodes=1)
    same = [entry.client for entry in reference.excluded] == [entry.client for entry in solution.excluded]
    if reference.status is not Status.SOLVED or reference.lower_bound is None or solution.objective is None or not same:
        return solution
    bound = min(reference.lower_bound, solution.objective)
    takes_part = np.ones(problem.clients, dtype=bool)
    takes_part[[entry.client for entry in solution.excluded]] = False
    gap = gap_of(problem, takes_part, solution.objective, bound)
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
