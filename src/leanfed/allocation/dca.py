"""Algorithm 2 of the paper: difference-of-convex programming with cvxpy and Clarabel, Eqs. (28)-(35).

Each step replaces the concave parts by their tangents and solves a convex problem. Departures from the text, all needed
to make it run: variables are scaled (z by the time left, u and v by 1/N), the bit constraint is divided by the bits of
the whole upload, the logarithm is shifted by Q = x0 N; gradients are taken at k >= 1e-6 and r <= 1 - 1e-6, where they
are finite; the last iterate is returned, not the one before it; and u/z, which is ill-conditioned for starved clients,
is repaired at the end: shares renormalised, those of less than one value given to the others, then each client's best
(k, r) on its share.
"""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from leanfed.allocation.base import ALLOCATORS
from leanfed.allocation.branches import build_branches
from leanfed.allocation.certified import best_on_links, spread, too_many
from leanfed.allocation.client import (
    BANDWIDTH_HZ,
    BASE_SIZE,
    ENERGY_LEFT_J,
    HEAD_J,
    HEAD_S,
    K_HIGH,
    K_LOW,
    POWER_W,
    R_LOW,
    SNR,
    TIME_LEFT_S,
    VALUE_BITS,
    W1,
    W2,
)
from leanfed.allocation.curves import LN2, Floats, bits_of, keep_rate_of, rate_of
from leanfed.allocation.limits import Mask, compile_clients, feasible_clients
from leanfed.allocation.price import below_one_value, costs_at, full_ranges
from leanfed.allocation.problem import Problem
from leanfed.allocation.solution import Solution, Status, assemble, infeasible

SMALLEST_K, LARGEST_R = 1e-6, 1.0 - 1e-6  # where gradients are taken at most


def _cvxpy() -> Any:
    """cvxpy, loaded when Algorithm 2 is used; `Any`, because its star imports hide names from the type checker."""
    import cvxpy

    return cvxpy


class Point(NamedTuple):
    """One iterate, scaled: z by the time left, u by time left over N, v by its square root."""

    k: Floats
    r: Floats
    z: Floats
    u: Floats
    v: Floats


@dataclass
class _Compiled:
    """The convex problem (35) for a number of clients; its parameters, by name, are set anew at every step."""

    problem: Any
    variables: tuple[Any, ...]  # in the order of Point
    parameters: dict[str, Any]


@lru_cache(maxsize=8)
def _compiled(count: int) -> _Compiled:
    """Problem (35) written once; parameters enter so that re-solving needs no new compilation (DPP)."""
    cp = _cvxpy()
    k, r, z, u, v, w = (cp.Variable(count, name=name) for name in "krzuvw")
    free = ("log_q", "bits_offset", "bits_slope", "r_gain", "k_low", "k_high", "r_low", "v_at", "v_square")
    positive = ("inverse_q", "head_time", "head_energy", "upload_energy", "k_gain")
    par = {name: cp.Parameter(count, name=name) for name in free}
    par |= {name: cp.Parameter(count, name=name, nonneg=True) for name in positive}
    sent = -cp.rel_entr(u, cp.multiply(par["inverse_q"], u) + z) + cp.multiply(par["log_q"], u)
    limits = [
        k >= par["k_low"],  # (27d)
        k <= par["k_high"],
        r >= par["r_low"],  # (27e)
        r <= 1,
        cp.multiply(par["head_time"], r) + z <= 1,  # (28a) over the time left
        cp.multiply(par["head_energy"], r) + cp.multiply(par["upload_energy"], z) <= 1,  # (28b) over the energy left
        sent >= par["bits_offset"] + cp.multiply(par["bits_slope"], k),  # (30a), S replaced by its tangent
        u >= 0,  # (31a)
        u / count <= z,  # (31b)
        cp.SOC(z + w, cp.vstack([2 * v, z - w])),  # w >= v^2/z
        cp.sum(w) / count <= 1,  # (32a)
        u <= cp.multiply(par["v_at"], v) - par["v_square"],  # (33a), v^2 replaced by its tangent
    ]
    gain = par["k_gain"] @ k + par["r_gain"] @ r
    return _Compiled(cp.Problem(cp.Maximize(gain), limits), (k, r, z, u, v), par)


def solve_dca(
    problem: Problem,
    *,
    payload: str = "exact",
    max_steps: int = 40,
    tolerance: float = 1e-4,
    start: Solution | None = None,
) -> Solution:
    """Algorithm 2 from equal shares, or from an earlier round's plan; a critical point, without a certificate.

    Where clients have links of their own there is nothing to alternate between, and each one's best is the answer.
    """
    began = time.perf_counter()
    feasible, excluded = feasible_clients(problem, payload)
    details: dict[str, Any] = {"solver": "dca", "payload": payload, "excluded": excluded}
    if not feasible.any():
        return infeasible(problem, seconds=time.perf_counter() - began, **details)
    clients = compile_clients(problem.only(feasible), payload)
    if problem.linked:
        links = best_on_links(problem.only(feasible), clients)
        return assemble(problem, feasible, links, seconds=time.perf_counter() - began, **details)
    least = full_ranges(clients, build_branches(clients)).low
    if least.sum() > 1.0:
        details["excluded"] += too_many(problem, feasible, least)
        return infeasible(problem, seconds=time.perf_counter() - began, **details)
    linked: Mask = np.min(clients[:, [SNR, K_HIGH, TIME_LEFT_S, ENERGY_LEFT_J]], axis=1) > 0.0
    shares, status = np.zeros(least.size), Status.SOLVED
    trace: list[dict[str, float]] = []
    if linked.any():
        point = _start(clients[linked], _first_shares(least, linked, feasible, start), payload)
        point, status, trace = _iterate(clients[linked], point, payload, max_steps, tolerance)
        shares[linked] = point.u / np.maximum(point.z, 1e-12) / linked.sum()
    plan = _repaired(clients, least, shares)
    solution = assemble(problem, feasible, plan, status=status, **details)
    return replace(solution, seconds=time.perf_counter() - began, steps=len(trace), trace=tuple(trace))


ALLOCATORS.add("dca", solve_dca)


def _repaired(clients: Floats, least: Floats, shares: Floats) -> tuple[Floats, Floats, Floats]:
    """Shares that fill the band, and each client's best (k, r) on its own; who sends no value leaves its share."""

    def filled(wanted: Floats) -> Floats:
        return np.asarray(least + spread(np.maximum(wanted - least, 0.0)) * (1.0 - least.sum()))

    shares = filled(shares)
    cost_k_r = costs_at(clients, shares)
    silent = below_one_value(clients, cost_k_r[:, 1])
    if silent.any() and not silent.all():
        shares = filled(np.where(silent, 0.0, shares))
        cost_k_r = costs_at(clients, shares)
    return np.where(silent, 0.0, cost_k_r[:, 1]), cost_k_r[:, 2], shares


def _first_shares(least: Floats, linked: Mask, feasible: Mask, start: Solution | None) -> Floats:
    """What the floors need and an equal part of the rest, or a mix of that and an earlier plan."""
    even: Floats = least[linked] + (1.0 - least.sum()) / linked.sum()
    if start is None or start.l.size != feasible.size:
        return even
    before = np.maximum(start.l[feasible][linked], least[linked])
    # A share of 0 is absorbing (its tangent is flat), so everyone keeps a little.
    return np.asarray(0.95 * before / max(1.0, float(before.sum())) + 0.05 * even)


def _start(clients: Floats, shares: Floats, payload: str) -> Point:
    """The start of the notes: half of the largest r, all the time that leaves, as many bits as fit."""
    cost_k_r = costs_at(clients, shares)
    time_s, energy_s = clients[:, TIME_LEFT_S], clients[:, ENERGY_LEFT_J] / clients[:, POWER_W]
    r_top = np.ones(shares.size)
    for left, head in ((time_s, clients[:, HEAD_S]), (clients[:, ENERGY_LEFT_J], clients[:, HEAD_J])):
        np.minimum(r_top, np.divide(left, head, out=np.ones_like(head), where=head > 0.0), out=r_top)
    r = np.maximum(0.5 * r_top, clients[:, R_LOW])
    r = np.where(clients[:, K_LOW] > 0.0, np.minimum(r, cost_k_r[:, 2]), r)  # leave time for the floor
    z = np.minimum(time_s - clients[:, HEAD_S] * r, energy_s - clients[:, HEAD_J] / clients[:, POWER_W] * r)
    sent = z * rate_of(shares, clients[:, BANDWIDTH_HZ], clients[:, SNR])
    k = keep_rate_of(sent, clients[:, BASE_SIZE], clients[:, VALUE_BITS], payload)
    z = z / time_s
    u = shares * shares.size * z
    return Point(np.clip(k, clients[:, K_LOW], clients[:, K_HIGH]), r, z, u, np.sqrt(u))


def _iterate(
    clients: Floats, point: Point, payload: str, max_steps: int, tolerance: float
) -> tuple[Point, Status, list[dict[str, float]]]:
    """Solve, move, and stop when no scaled variable moves by more than the tolerance."""
    convex = _compiled(point.k.size)
    _set_constants(convex, clients)
    trace: list[dict[str, float]] = []
    for _ in range(max_steps):
        _set_tangents(convex, clients, point, payload)
        if not _solve(convex):
            return point, Status.SOLVER_FAILED, trace
        after = Point(*(np.asarray(variable.value) for variable in convex.variables))
        moved = max(float(np.abs(new - old).max()) for new, old in zip(after, point, strict=True))
        point = after
        trace.append({"objective": _objective(clients, point), "residual": moved})
        if moved <= tolerance:
            return point, Status.SOLVED, trace
    return point, Status.STEP_LIMIT, trace


def _objective(clients: Floats, point: Point) -> float:
    rest = np.sqrt(np.clip(1.0 - point.r, 0.0, 1.0))
    return float(np.sum(clients[:, W1] * rest - clients[:, W2] * point.k))


def _unit(clients: Floats) -> Floats:
    """W T/(N ln 2): bits that u = 1 sends per unit of the logarithm."""
    return np.asarray(clients[:, BANDWIDTH_HZ] * clients[:, TIME_LEFT_S] / (clients.shape[0] * LN2))


def _set_constants(convex: _Compiled, clients: Floats) -> None:
    """Parameters that stay the same from step to step."""
    time_s, energy_j = clients[:, TIME_LEFT_S], clients[:, ENERGY_LEFT_J]
    q = clients[:, SNR] * clients.shape[0]
    values = {
        "log_q": np.log(q),
        "inverse_q": 1.0 / q,
        "head_time": clients[:, HEAD_S] / time_s,
        "head_energy": clients[:, HEAD_J] / energy_j,
        "upload_energy": clients[:, POWER_W] * time_s / energy_j,
        "k_low": clients[:, K_LOW],
        "k_high": clients[:, K_HIGH],
        "r_low": clients[:, R_LOW],
    }
    for name, value in values.items():
        convex.parameters[name].value = value


def _set_tangents(convex: _Compiled, clients: Floats, at: Point, payload: str) -> None:
    """Tangents of S at k, of sqrt(1-r) at r and of v^2 at v."""
    k, r = np.clip(at.k, SMALLEST_K, 1.0 - SMALLEST_K), np.clip(at.r, 0.0, LARGEST_R)
    size, width = clients[:, BASE_SIZE], clients[:, VALUE_BITS]
    level = bits_of(k, size, width, payload)
    hidden = 1.0 / k if payload == "paper" else (1.0 - k) / k
    slope = size * (width + np.log2(hidden) + (1.0 - 1.0 / LN2 if payload == "paper" else 0.0))
    scale = float(np.sum(clients[:, W1] + clients[:, W2]) / k.size) or 1.0
    values = {
        "bits_offset": (level - slope * k) / _unit(clients),
        "bits_slope": slope / _unit(clients),
        "k_gain": clients[:, W2] / scale,
        "r_gain": clients[:, W1] / (2.0 * np.sqrt(1.0 - r)) / scale,
        "v_at": 2.0 * at.v,
        "v_square": at.v**2,
    }
    for name, value in values.items():
        convex.parameters[name].value = value


def _solve(convex: _Compiled) -> bool:
    """Run Clarabel; True where it found an optimum, even a less accurate one."""
    cp = _cvxpy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # cvxpy warns of reduced accuracy, which the status says too
        try:
            # A warm solver keeps the scaling of the problem before: its answer would depend on the process's past.
            convex.problem.solve(solver=cp.CLARABEL, warm_start=False)
        except cp.error.SolverError:
            return False
    return convex.problem.status in (cp.OPTIMAL, cp.OPTIMAL_INACCURATE)
