"""Simple rules to compare with: fixed rates, equal shares, the fastest split for a given payload, random search."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from leanfed.allocation.base import ALLOCATORS
from leanfed.allocation.curves import Floats, bits_of, rate_of, share_of
from leanfed.allocation.limits import Mask, compile_clients, feasible_clients, floored_keep_rate
from leanfed.allocation.price import below_one_value, costs_at
from leanfed.allocation.problem import Problem
from leanfed.allocation.solution import Excluded, Solution, assemble, infeasible
from leanfed.streams import stream

Split = Callable[[Problem], Floats]  # shares of the band, which add up to 1 at most
Rates = Callable[[Problem, Floats], tuple[Floats, Floats, Mask]]  # k, r and who is able, on these shares


def fixed_rates(problem: Problem, *, k: float = 0.5, r: float = 0.5, payload: str = "exact") -> Solution:
    """Everyone aims at the same k and r on an equal share; who cannot keep both gives up k first, then r."""
    return _with_shares(problem, _equal, payload, "fixed", lambda some, share: _clipped(some, k, r, share, payload))


ALLOCATORS.add("fixed", fixed_rates)


def fastest_rates(problem: Problem, *, k: float = 0.5, r: float = 0.5, payload: str = "exact") -> Solution:
    """The same k and r for everyone, on the split that makes the slowest client fastest."""

    def split(some: Problem) -> Floats:
        upload_bits = bits_of(np.minimum(k, some.k_max), some.base_size, some.value_bits, payload)
        return fastest_split(some, upload_bits, np.full(some.clients, r))[0]

    return _with_shares(problem, split, payload, "fastest", lambda some, share: _clipped(some, k, r, share, payload))


ALLOCATORS.add("fastest", fastest_rates)


def equal_shares(problem: Problem, *, payload: str = "exact") -> Solution:
    """An equal share for everyone, and each client's best (k, r) on it."""
    return best_on_shares(problem, _equal, solver="equal", payload=payload)


ALLOCATORS.add("equal", equal_shares)


def random_search(problem: Problem, *, tries: int = 200, seed: int = 0, payload: str = "exact") -> Solution:
    """The best of equal shares and random ones, each client at its best (k, r): a sanity check on the solvers."""

    def split(some: Problem) -> Floats:
        generator, clients = stream(seed, "random_search"), compile_clients(some, payload)
        widths = np.exp(generator.uniform(np.log(0.05), np.log(10.0), tries - 1))
        options = [_equal(some), *(generator.dirichlet(np.full(some.clients, width)) for width in widths)]
        return min(options, key=lambda shares: float(costs_at(clients, shares)[:, 0].sum()))

    return best_on_shares(problem, split, solver="random", payload=payload)


ALLOCATORS.add("random", random_search)


def best_on_shares(problem: Problem, split: Split, *, solver: str, payload: str) -> Solution:
    """Shares of the feasible clients by `split`, and each client's best (k, r) on its share."""
    return _with_shares(problem, split, payload, solver, lambda some, share: _best(some, share, payload))


def fastest_split(problem: Problem, upload_bits: Floats, r: Floats) -> tuple[Floats, float]:
    """Shares that minimise the latency of the slowest client, and that latency, by bisection on it.

    A client with no link keeps share 0 and does not count. The latency T is the root of sum R^-1(S/(T - t)) = 1.
    Links of their own are all used whole.
    """
    compute_s = problem.compute_s(r) + problem.wait_s
    if problem.link_bit_per_s is not None:
        return np.ones(problem.clients), float((compute_s + upload_bits / problem.link_bit_per_s).max())
    linked = (upload_bits > 0.0) & (problem.snr > 0.0)
    if not linked.any():
        return np.full(problem.clients, 1.0 / problem.clients), float(compute_s.max())
    snr, sent, start = problem.snr[linked], upload_bits[linked], compute_s[linked]
    share = np.zeros(problem.clients)

    def needed(latency_s: float) -> Floats:
        return share_of(sent / np.maximum(latency_s - start, 1e-300), problem.bandwidth_hz, snr)

    low = float(np.max(start + sent / rate_of(1.0, problem.bandwidth_hz, snr)))
    high = float(np.max(start + sent / rate_of(1.0 / sent.size, problem.bandwidth_hz, snr)))
    for _ in range(200):
        middle = 0.5 * (low + high)
        if middle in (low, high):
            break
        low, high = (middle, high) if needed(middle).sum() > 1.0 else (low, middle)
    share[linked] = needed(high)
    return share / max(1.0, float(share.sum())), max(high, float(compute_s.max()))


def _with_shares(problem: Problem, split: Split, payload: str, solver: str, rates: Rates) -> Solution:
    """Shares by `split`, then (k, r) by `rates`; clients whose floor does not fit their share are left out."""
    began = time.perf_counter()
    feasible, excluded = feasible_clients(problem, payload)
    details: dict[str, Any] = {"solver": solver, "payload": payload}
    if feasible.any():
        some = problem.only(feasible)
        shares = np.ones(some.clients) if some.linked else split(some)
        k, r, able = rates(some, shares)
        excluded += _unable(problem, feasible, able, shares)
        feasible[feasible] = able
        plan = (k[able], r[able], shares[able])
    seconds = time.perf_counter() - began
    if not feasible.any():
        return infeasible(problem, excluded=excluded, seconds=seconds, **details)
    return assemble(problem, feasible, plan, excluded=excluded, seconds=seconds, **details)


def _unable(problem: Problem, feasible: Mask, able: Mask, shares: Floats) -> tuple[Excluded, ...]:
    places = np.flatnonzero(feasible)
    return tuple(
        Excluded(
            int(places[i]),
            f"the floor of k, {problem.k_min[places[i]]:g}, does not fit a share of {shares[i]:.3g}",
            None,
        )
        for i in np.flatnonzero(~able)
    )


def _equal(problem: Problem) -> Floats:
    return np.full(problem.clients, 1.0 / problem.clients)


def _best(problem: Problem, shares: Floats, payload: str) -> tuple[Floats, Floats, Mask]:
    """Each client's best vertex; unable where its floors do not fit."""
    clients = compile_clients(problem, payload)
    cost_k_r = costs_at(clients, shares)
    k = np.where(below_one_value(clients, cost_k_r[:, 1]), 0.0, cost_k_r[:, 1])
    return k, cost_k_r[:, 2], np.isfinite(cost_k_r[:, 0])


def _clipped(problem: Problem, k: float, r: float, shares: Floats, payload: str) -> tuple[Floats, Floats, Mask]:
    """Each client's (k, r) cut to what deadline and energy leave at its share; unable where k falls below its floor."""
    watts = problem.compute_power_w
    time_left, energy_left = problem.left_s - problem.base_s, problem.energy_budget_j - watts * problem.base_s
    r_each = np.maximum(r, problem.r_min)
    for left, head in ((time_left, problem.head_s), (energy_left, watts * problem.head_s)):
        np.minimum(r_each, np.divide(left, head, out=np.ones_like(head), where=head > 0.0), out=r_each)
    upload_s = time_left - problem.head_s * r_each
    powered = problem.power_w > 0.0
    energy_s = (energy_left - watts * problem.head_s * r_each)[powered] / problem.power_w[powered]
    upload_s[powered] = np.minimum(upload_s[powered], energy_s)
    speed = rate_of(shares, problem.band_hz, problem.snr)
    room = np.multiply(np.maximum(upload_s, 0.0), speed, out=np.zeros_like(speed), where=speed > 0.0)
    k_each = floored_keep_rate(problem, room, payload, np.maximum(k, problem.k_min))
    return k_each, r_each, k_each >= problem.k_min * (1.0 - 1e-9)
