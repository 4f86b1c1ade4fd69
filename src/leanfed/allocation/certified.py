"""The default allocator: a bandwidth price, closed-form vertices, and a bound that certifies the plan, Eq. (27)."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from leanfed.allocation.base import ALLOCATORS
from leanfed.allocation.branches import build_branches
from leanfed.allocation.client import ENERGY_PRICE, K_LOW
from leanfed.allocation.curves import Floats
from leanfed.allocation.limits import Mask, compile_clients, feasible_clients, tie_broken
from leanfed.allocation.price import costs_at, full_ranges
from leanfed.allocation.problem import Problem
from leanfed.allocation.solution import (
    Excluded,
    Solution,
    assemble,
    infeasible,
    objective_of,
    scale_of,
)
from leanfed.allocation.subdivide import Searched, search

SMALL = 32  # with at most this many clients the gap is closed
SMALL_GAP, GAP = 1e-9, 1e-6  # relative gap at which the search stops, for few clients and for many
SMALL_NODES, WORK = 2000, 800  # boxes tried at most, for few clients; for many, WORK/N


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
    details: dict[str, Any] = {"solver": "certified", "payload": payload}
    if not feasible.any():
        return infeasible(problem, excluded=excluded, seconds=time.perf_counter() - began, **details)
    some = problem.only(feasible)
    clients = compile_clients(some, payload, None if energy_price is None else energy_price[feasible])
    if problem.linked:
        links = best_on_links(some, clients)
        bound = objective_of(some, links[0], links[1], slice(None))
        details |= {"excluded": excluded, "price": 0.0, "seconds": time.perf_counter() - began}
        return assemble(problem, feasible, links, lower_bound=bound, **details)
    branches = build_branches(clients)
    ranges = full_ranges(clients, branches)
    if ranges.low.sum() > 1.0:
        excluded += too_many(problem, feasible, ranges.low)
        return infeasible(problem, excluded=excluded, seconds=time.perf_counter() - began, **details)
    tolerance, nodes = _effort(some, gap, most_nodes)
    found = search(clients, branches, ranges, tolerance=tolerance, most_nodes=nodes)
    plan, priced_cost = _settle(some, clients, found)
    return assemble(
        problem,
        feasible,
        (plan[:, 0], plan[:, 1], plan[:, 2]),
        lower_bound=_stated_bound(some, clients, found, plan, priced_cost),
        price=found.price,
        excluded=excluded,
        seconds=time.perf_counter() - began,
        steps=found.nodes,
        **details,
    )


ALLOCATORS.add("certified", solve_certified)


def best_on_links(problem: Problem, clients: Floats) -> tuple[Floats, Floats, Floats]:
    """k, r and shares where every client has a link of its own: nothing is shared, so each one's best is the best.

    An upload of less than one value is dropped.
    """
    shares = np.ones(problem.clients)
    cost_k_r = costs_at(clients, shares)
    silent = (cost_k_r[:, 1] * problem.base_size < 1.0 - 1e-12) & (clients[:, K_LOW] == 0.0)
    if silent.any():
        cost_k_r[silent] = costs_at(clients[silent], np.zeros(int(silent.sum())))
    return cost_k_r[:, 1], cost_k_r[:, 2], shares


def _effort(problem: Problem, gap: float | None, most_nodes: int | None) -> tuple[float, int]:
    """Gap in units of the objective and number of boxes at which to stop."""
    small = problem.clients <= SMALL
    relative = gap or (SMALL_GAP if small else GAP)
    nodes = most_nodes or (SMALL_NODES if small else max(1, WORK // problem.clients))
    return relative * scale_of(problem, slice(None)), nodes


def too_many(problem: Problem, feasible: Mask, least_shares: Floats) -> tuple[Excluded, ...]:
    """Floors that fit one by one but not together: the band that they would need."""
    total = float(least_shares.sum())
    why = f"the floors of all clients need {total:.3g} times the bandwidth of {problem.bandwidth_hz:.4g} Hz"
    needs = total * problem.bandwidth_hz
    return tuple(Excluded(int(n), why, needs) for n in np.flatnonzero(feasible))


def _settle(problem: Problem, clients: Floats, found: Searched) -> tuple[Floats, float]:
    """(N, 3) k, r and share of the feasible clients, and their priced cost.

    What is left of the band is spread, and uploads of less than one value are dropped.
    """
    shares = spread(found.shares)
    cost_k_r = costs_at(clients, shares)
    silent = (cost_k_r[:, 1] * problem.base_size < 1.0 - 1e-12) & (clients[:, K_LOW] == 0.0)
    if silent.any():
        shares = spread(np.where(silent, 0.0, shares))
        cost_k_r = costs_at(clients, shares)
    return np.column_stack([cost_k_r[:, 1:], shares]), float(cost_k_r[:, 0].sum())


def _stated_bound(problem: Problem, clients: Floats, found: Searched, plan: Floats, priced_cost: float) -> float:
    """The dual bound in terms of the stated objective."""
    if clients[:, ENERGY_PRICE].any():
        objective = objective_of(problem, plan[:, 0], plan[:, 1], slice(None))
        return objective - max(0.0, priced_cost - found.bound)
    theta1, _ = tie_broken(problem)
    return found.bound - (theta1 - problem.theta1) * float(problem.weights.sum())


def spread(shares: Floats) -> Floats:
    """Shares that add up to one: what is left goes to all in proportion, or evenly where no client wants any."""
    total = float(shares.sum())
    if total <= 0.0:
        return np.full(shares.size, 1.0 / shares.size)
    return np.asarray(shares / np.nextafter(total, np.inf))
