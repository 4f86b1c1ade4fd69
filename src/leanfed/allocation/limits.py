"""From a problem to the clients that can take part: who is out and why, and what latency and energy a plan costs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from leanfed.allocation.client import CONSTANTS
from leanfed.allocation.curves import PAYLOADS, Floats, bits_of, keep_rate, keep_rate_of, rate_of
from leanfed.allocation.problem import Problem
from leanfed.allocation.solution import Excluded
from leanfed.wireless.cost import communication_energy, communication_latency, total_latency

Mask = NDArray[np.bool_]

TIE_BREAK = 1e-9  # a theta of 0 becomes this much of the other, so that among equal plans the better-trained one wins
UNHURRIED_SHARE = 1e-6  # the share, over N, that a client without any limit may be made to wait with


def plan_cost(problem: Problem, k: Floats, r: Floats, l: Floats, payload: str = "exact") -> tuple[Floats, Floats]:  # noqa: E741
    """Latency in s and energy in J of every client, Eqs. (10)-(15); inf where bits have no rate to travel at."""
    upload_bits = bits_of(k, problem.base_size, problem.value_bits, payload)
    upload_s = communication_latency(upload_bits, rate_of(l, problem.band_hz, problem.snr))
    compute_s = problem.compute_s(r)
    energy_j = problem.compute_power_w * compute_s + communication_energy(problem.power_w, upload_s)
    return total_latency(compute_s, upload_s) + problem.wait_s, energy_j


def least_cost(problem: Problem, payload: str) -> tuple[Floats, Floats]:
    """Latency and energy of every client at its floors with the whole band to itself: less is impossible."""
    low, _ = keep_bounds(problem, payload)
    return plan_cost(problem, low, problem.r_min, np.ones(problem.clients), payload)


def keep_bounds(problem: Problem, payload: str) -> tuple[Floats, Floats]:
    """k_min and k_max as the solvers use them: the same, except where few bits a value make S fall towards k = 1.

    There the ceiling is a whole number of values (rounding down would cost more bits), and the floor if it is cheaper.
    """
    falls = (payload == "exact") & (problem.k_max > 1.0 / (1.0 + 2.0**-problem.value_bits))
    whole = np.floor(problem.k_max * problem.base_size) / problem.base_size
    high = np.where(falls & (whole >= problem.k_min), whole, problem.k_max)
    low = problem.k_min
    costs_more = bits_of(low, problem.base_size, problem.value_bits, payload) > bits_of(
        high, problem.base_size, problem.value_bits, payload
    )
    return np.where(costs_more, high, low), high


def feasible_clients(problem: Problem, payload: str = "exact") -> tuple[Mask, tuple[Excluded, ...]]:
    """Who can meet deadline and energy budget at their floors with the whole band, and why the others cannot."""
    latency, energy = least_cost(problem, payload)
    late = (latency > problem.deadline_s * (1.0 + 1e-12)) | np.isinf(latency)  # a floor without a link never arrives
    empty = energy > problem.energy_budget_j * (1.0 + 1e-12)
    out = np.flatnonzero(late | empty)
    excluded = tuple(_explain(problem, int(n), latency[n], energy[n], bool(late[n])) for n in out)
    return ~(late | empty), excluded


def _explain(problem: Problem, n: int, latency: float, energy: float, late: bool) -> Excluded:
    """The limit that leaves client n out, the value it has and the value it would need."""
    if late:
        limit, have, need, unit = "a deadline", problem.deadline_s[n], latency, "s"
    else:
        limit, have, need, unit = "an energy budget", problem.energy_budget_j[n], energy, "J"
    if np.isinf(need):
        return Excluded(n, f"the floor of k, {problem.k_min[n]:g}, cannot be uploaded without gain and power", None)
    floors = "its floors" if problem.k_min[n] > 0.0 or problem.r_min[n] > 0.0 else "its base layers"
    return Excluded(n, f"{limit} of {have:.4g} {unit} is below the {need:.4g} {unit} that {floors} take", float(need))


def tie_broken(problem: Problem) -> tuple[float, float]:
    """theta1 and theta2 with a zero replaced by a sliver of the other."""
    theta1, theta2 = problem.theta1, problem.theta2
    return max(theta1, TIE_BREAK * theta2), max(theta2, TIE_BREAK * theta1)


def compile_clients(problem: Problem, payload: str, energy_price: Floats | None = None) -> Floats:
    """(N, CONSTANTS) feasible clients as the compiled code reads them; the problem must hold feasible clients only."""
    low, high = keep_bounds(problem, payload)
    theta1, theta2 = tie_broken(problem)
    weights = np.maximum(problem.weights, 1e-12 * problem.weights.max())
    bits_low, bits_high = (bits_of(k, problem.base_size, problem.value_bits, payload) for k in (low, high))
    watts = problem.compute_power_w
    # A floor that fits only up to rounding gets the last bit of time and energy that it needs.
    speed = rate_of(1.0, problem.band_hz, problem.snr)
    floor_s = np.divide(bits_low, speed, out=np.zeros(problem.clients), where=(bits_low > 0.0) & (speed > 0.0))
    head_j = watts * problem.head_s
    time_left_s = np.maximum(_finite_time(problem, bits_high), problem.head_s * problem.r_min + floor_s)
    energy_left_j = problem.energy_budget_j - watts * problem.base_s
    columns: list[ArrayLike] = [
        weights * theta1,
        weights * theta2,
        0.0 if energy_price is None else energy_price,
        time_left_s,
        problem.head_s,
        np.maximum(energy_left_j, head_j * problem.r_min + problem.power_w * floor_s),
        head_j,
        problem.power_w,
        problem.snr,
        low,
        high,
        bits_low,
        bits_high,
        problem.r_min,
        problem.band_hz,
        problem.base_size,
        problem.value_bits,
        PAYLOADS[payload],
    ]
    table = np.empty((problem.clients, CONSTANTS))
    for place, column in enumerate(columns):  # in the order of the constants in client.py
        table[:, place] = column
    return table


def _finite_time(problem: Problem, bits_high: Any) -> Floats:
    """tau - tc0; without a deadline, the time that everything takes at a tiny share."""
    tiny = rate_of(np.full(problem.clients, UNHURRIED_SHARE / problem.clients), problem.band_hz, problem.snr)
    patience = problem.head_s + np.divide(bits_high, tiny, out=np.ones(problem.clients), where=tiny > 0.0)
    return np.where(np.isinf(problem.deadline_s), patience, problem.left_s - problem.base_s)


def floored_keep_rate(problem: Problem, upload_bits: Floats, payload: str, most: Floats | float = 1.0) -> Floats:
    """The largest k within k_max and `most` that fits into these bits, 0 where less than one value does.

    Values of one bit take the most bits with half of them: where `most` does not fit, the smaller of two roots does.
    """
    _, high = keep_bounds(problem, payload)
    high = np.minimum(high, most)
    k = keep_rate_of(upload_bits, problem.base_size, problem.value_bits, payload)
    fits = upload_bits >= bits_of(high, problem.base_size, problem.value_bits, payload)
    for n in np.flatnonzero(~fits & (k > high)):  # room for all of them, but not for `most`
        k[n] = keep_rate(upload_bits[n] / problem.base_size[n], float(problem.value_bits), PAYLOADS[payload])
    k = np.where(fits, high, np.minimum(k, high))
    return np.where(k * problem.base_size < 1.0, 0.0, k)
