"""What an allocator answers: a plan, how good it is, and who is left out."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from leanfed.allocation.curves import Floats
from leanfed.allocation.problem import Problem

STARVED_BELOW = 0.01  # a client whose k is lower hardly takes part


class Status(StrEnum):
    """How a solve ended; outcomes of the mathematics, not faults."""

    SOLVED = "solved"
    STEP_LIMIT = "step_limit"
    INFEASIBLE = "infeasible"
    SOLVER_FAILED = "solver_failed"


@dataclass(frozen=True)
class Excluded:
    """A client that cannot take part, why, and the value it would need (None where nothing would help)."""

    client: int
    why: str
    needs: float | None

    def to_json(self) -> dict[str, Any]:
        """An entry of `excluded` in the output file."""
        return {"client": self.client, "why": self.why, "needs": self.needs}


@dataclass(frozen=True, eq=False)
class Solution:
    """A plan for one round: keep rates k and r, bandwidth shares l, all zero for excluded clients."""

    status: Status
    k: Floats
    r: Floats
    l: Floats  # noqa: E741 - the paper's symbol and the output file's key
    objective: float | None = None  # sum of gamma (theta1 sqrt(1-r) - theta2 k) over feasible clients
    lower_bound: float | None = None
    relative_gap: float | None = None
    price: float | None = None  # objective per unit share: what one more share of the band would save
    excluded: tuple[Excluded, ...] = ()
    starved: tuple[int, ...] = ()
    seconds: float = 0.0
    solver: str = ""
    payload: str = "exact"
    steps: int = 0
    trace: tuple[dict[str, float], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The object that `leanfed plan --json` prints."""
        return {
            "status": str(self.status),
            "objective": self.objective,
            "lower_bound": self.lower_bound,
            "relative_gap": self.relative_gap,
            "k": self.k.tolist(),
            "r": self.r.tolist(),
            "l": self.l.tolist(),
            "price": self.price,
            "excluded": [entry.to_json() for entry in self.excluded],
            "starved": list(self.starved),
            "seconds": self.seconds,
            "solver": self.solver,
            "payload": self.payload,
        }


def objective_of(problem: Problem, k: Floats, r: Floats, feasible: Any) -> float:
    """Sum over feasible clients of gamma_n (theta1 sqrt(1-r_n) - theta2 k_n), Eq. (27a)."""
    each = problem.weights * (problem.theta1 * np.sqrt(1.0 - r) - problem.theta2 * k)
    return float(np.sum(each[feasible]))


def scale_of(problem: Problem, feasible: Any) -> float:
    """Sum over feasible clients of gamma_n (theta1 + theta2): what gaps are relative to."""
    return float(problem.weights[feasible].sum() * (problem.theta1 + problem.theta2))


def gap_of(problem: Problem, feasible: Any, objective: float, bound: float) -> float:
    """How far an objective is above its bound, relative to `scale_of`; clients without weight leave nothing to gain."""
    scale = scale_of(problem, feasible)
    return (objective - bound) / scale if scale > 0.0 else 0.0


def assemble(
    problem: Problem,
    feasible: Any,
    plan: tuple[Floats, Floats, Floats],
    *,
    status: Status = Status.SOLVED,
    lower_bound: float | None = None,
    **details: Any,
) -> Solution:
    """A solution from the k, r and l of the feasible clients; the bound is kept at or below the plan's own value."""
    k, r, share = (_on_all(problem.clients, feasible, part) for part in plan)
    objective = objective_of(problem, k, r, feasible)
    bound = None if lower_bound is None else min(lower_bound, objective)
    return Solution(
        status,
        k,
        r,
        share,
        objective=objective,
        lower_bound=bound,
        relative_gap=None if bound is None else gap_of(problem, feasible, objective, bound),
        starved=starved_clients(problem, k, feasible),
        **details,
    )


def infeasible(problem: Problem, **details: Any) -> Solution:
    """The solution where no client can take part, or where their floors together do not fit the band."""
    k, r, share = (np.zeros(problem.clients) for _ in range(3))
    return Solution(Status.INFEASIBLE, k, r, share, **details)


def _on_all(count: int, feasible: Any, part: Floats) -> Floats:
    """Values of the feasible clients placed among zeros."""
    whole = np.zeros(count)
    whole[feasible] = part
    return whole


def starved_clients(problem: Problem, k: Floats, feasible: Any) -> tuple[int, ...]:
    """Feasible clients with k below 0.01 or at their floor."""
    at_floor = (problem.k_min > 0.0) & (k <= problem.k_min * (1.0 + 1e-9))
    return tuple(np.flatnonzero(feasible & ((k < STARVED_BELOW) | at_floor)).tolist())
