"""The default allocator: a bandwidth price, closed-form vertices, and a bound that certifies the plan, Eq. (27)."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from leanfed.allocation.branches import build_branches
from leanfed.allocation.client import ENERGY_PRICE, K_LOW
from leanfed.allocation.curves import Floats
from leanfed.allocation.limits import Mask, compile_clients, feasible_clients, tie_broken
from leanfed.allocation.price import costs_at, full_ranges
from leanfed.allocation.problem import Problem
from leanfed.allocation.solution import (
    Excluded,
    Solution,
    Status,
    objective_of,
    scale_of,
    starved_clients,
)
from leanfed.allocation.subdivide import Searched, search

SMALL = 32  # up to so many clients the gap is closed
SMALL_GAP, GAP = 1e-9, 5e-7  # relative gap at which the search stops, for few clients and for many
SMALL_NODES, WORK = 2000, 1200  # boxes tried at most, for few clients; for many, WORK/N


def solve_certified(
    problem: Problem,
    *,
    payload: str = "exact",
    energy_price: Floats | None = None,
    gap: float | None = None,
    most_nodes: int | None = None,
) -> Solution:
    """The plan with the least sum gamma_n (theta1 sqrt(1-r_n) - theta2 k_n), with a lower bound for all plans.

    `energy_price` (objective per joule and client) adds lambda_n E_n to what is minimised, for budgets over a horizon;
    the reported objective leaves it out, and the bound and gap are then those of the priced problem.
    """
    began = time.perf_counter()
    feasible, excluded = feasible_clients(problem, payload)
    if not feasible.any():
        return _nobody(problem, excluded, payload, began)
    some = problem.only(feasible)
    clients = compile_clients(some, payload, None if energy_price is None else energy_price[feasible])
    branches = build_branches(clients)
    ranges = full_ranges(clients, branches)
    if ranges.low.sum() > 1.0:
        return _nobody(problem, (*excluded, *_too_many(problem, feasible, ranges.low)), payload, began)
    small = some.clients <= SMALL
    nodes = most_nodes or (SMALL_NODES if small else max(1, WORK // some.clients))
    tolerance = (gap or (SMALL_GAP if small else GAP)) * scale_of(some, slice(None))
    found = search(clients, branches, ranges, tolerance=tolerance, most_nodes=nodes)
    solution = _finish(problem, feasible, clients, found, payload)
    return replace(solution, excluded=excluded, seconds=time.perf_counter() - began)


def _nobody(problem: Problem, excluded: tuple[Excluded, ...], payload: str, began: float) -> Solution:
    """The answer when no client can take part, or not all of them together."""
    zeros = np.zeros(problem.clients)
    seconds = time.perf_counter() - began
    return Solution(
        Status.INFEASIBLE,
        zeros,
        zeros.copy(),
        zeros.copy(),
        excluded=excluded,
        seconds=seconds,
        solver="certified",
        payload=payload,
    )


def _too_many(problem: Problem, feasible: Mask, least_shares: Floats) -> list[Excluded]:
    """Floors that fit one by one but not together: the band that they would need."""
    total = float(least_shares.sum())
    why = f"the floors of all clients need {total:.3g} times bandwidth_hz {problem.bandwidth_hz:.4g}"
    needs = total * problem.bandwidth_hz
    return [Excluded(int(n), why, needs) for n in np.flatnonzero(feasible)]


def _finish(problem: Problem, feasible: Mask, clients: Floats, found: Searched, payload: str) -> Solution:
    """Spread what is left of the band, drop uploads of less than one value, and settle the account."""
    shares = spread(found.shares)
    cost_k_r = costs_at(clients, shares)
    silent = cost_k_r[:, 1] * problem.base_size < 1.0 - 1e-12
    silent &= clients[:, K_LOW] == 0.0
    if silent.any():
        shares = spread(np.where(silent, 0.0, shares))
        cost_k_r = costs_at(clients, shares)
    k, r, share = (np.zeros(problem.clients) for _ in range(3))
    k[feasible], r[feasible], share[feasible] = cost_k_r[:, 1], cost_k_r[:, 2], shares
    objective = objective_of(problem, k, r, feasible)
    bound = _bound(problem, feasible, clients, found, objective, float(cost_k_r[:, 0].sum()))
    return Solution(
        Status.SOLVED,
        k,
        r,
        share,
        objective=objective,
        lower_bound=bound,
        relative_gap=(objective - bound) / scale_of(problem, feasible),
        price=found.price,
        starved=starved_clients(problem, k, feasible),
        solver="certified",
        payload=payload,
        steps=found.nodes,
    )


def _bound(
    problem: Problem, feasible: Mask, clients: Floats, found: Searched, objective: float, priced_cost: float
) -> float:
    """The dual bound in terms of the stated objective, never above the plan's own value."""
    if clients[:, ENERGY_PRICE].any():
        return objective - max(0.0, priced_cost - found.bound)
    theta1, _ = tie_broken(problem)
    given_away = (theta1 - problem.theta1) * float(problem.weights[feasible].sum())
    return min(found.bound - given_away, objective)


def spread(shares: Floats) -> Floats:
    """Shares that add up to one: what is left goes to all in proportion, or evenly when nobody wants any."""
    total = float(shares.sum())
    if total <= 0.0:
        return np.full(shares.size, 1.0 / shares.size)
    return np.asarray(shares / np.nextafter(total, np.inf))
