"""A price for bandwidth: clients answer it one by one, and the best dual value bounds every plan from below.

For a price mu >= 0, q_n(mu) = min over l of f_n(l) + mu l, and g(mu) = sum q_n(mu) - mu <= every feasible objective. g
is concave with slope sum l - 1, so the price at which the shares add up to one is also the one with the best bound.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from leanfed.allocation.branches import (
    B_START,
    B_STOP,
    MEET_COST,
    MEET_SHARE,
    START,
    STOP,
    WARM,
    Branches,
    branch_at,
)
from leanfed.allocation.client import BASE_SIZE, K_LOW, W1, W2, best_at
from leanfed.allocation.compiled import compiled

MOST_PRICES = 120
CLOSE = 1e-11  # |sum l - 1| at which the shares count as adding up


class Ranges(NamedTuple):
    """The shares that each client may be given, and its cost at their ends."""

    low: Any
    high: Any
    cost_low: Any
    cost_high: Any


class Priced(NamedTuple):
    """The dual optimum: its bound, its price, and the clients' answers just below and just above that price."""

    bound: float
    price: float
    generous: Any  # shares at the lower price, sum >= 1 (or all that is wanted, when the band is slack)
    frugal: Any  # shares at the higher price, sum <= 1
    prices: int  # how many prices were asked


@compiled
def stationary(me: Any, row: Any, log_mu: float) -> tuple[float, float, float]:
    """(share, cost, dl/d ln mu) where b = mu on the convex stretch, by Newton kept inside a shrinking bracket."""
    low, high, v = row[START], row[STOP], row[WARM]
    share, value, log_b, bend, growth = branch_at(me, row, v)
    for _ in range(60):
        error = log_b - log_mu
        if error > 0.0:
            low = v
        else:
            high = v
        if abs(error) <= 1e-12 or high - low <= 1e-15 * abs(high):
            break
        v = v - error / bend if bend < 0.0 else low
        if not low < v < high:
            v = 0.5 * (low + high)
        share, value, log_b, bend, growth = branch_at(me, row, v)
    row[WARM] = v
    return share, value, growth / bend if bend < 0.0 else 0.0


@compiled
def respond(clients: Any, br: Branches, ranges: Ranges, n: int, mu: float) -> tuple[float, float, float]:
    """(share, cost, dl/d ln mu) of the least cost + mu l within client n's range; the smaller share of equals."""
    low, high, equal = ranges.low[n], ranges.high[n], 1e-15 * (clients[n, W1] + clients[n, W2])
    share, value, drift = low, ranges.cost_low[n], 0.0
    best = value + mu * share
    for i in range(br.first_point[n], br.first_point[n + 1]):
        total = br.point_cost[i] + mu * br.point_share[i]
        closer = total < best - equal or (total <= best + equal and br.point_share[i] < share)
        if closer and low <= br.point_share[i] <= high:
            share, value, best = br.point_share[i], br.point_cost[i], total
    if ranges.cost_high[n] + mu * high < best - equal:
        share, value, best = high, ranges.cost_high[n], ranges.cost_high[n] + mu * high
    if mu <= 0.0:
        return share, value, 0.0
    log_mu = math.log(mu)
    for j in range(br.first[n], br.first[n + 1]):
        row = br.table[j]
        if row[B_START] > log_mu > row[B_STOP] and row[MEET_COST] + mu * row[MEET_SHARE] < best:
            at, its_value, its_drift = stationary(clients[n], row, log_mu)
            if low <= at <= high and its_value + mu * at < best:
                share, value, drift, best = at, its_value, its_drift, its_value + mu * at
    return share, value, drift


@compiled
def ask(clients: Any, br: Branches, ranges: Ranges, mu: float, shares: Any) -> tuple[float, float, float]:
    """(g(mu), sum l - 1, d sum l/d ln mu), and every client's share written into `shares`."""
    dual, total, drift = -mu, -1.0, 0.0
    for n in range(shares.size):
        share, value, its_drift = respond(clients, br, ranges, n, mu)
        shares[n] = share
        dual += value + mu * share
        total += share
        drift += its_drift
    return dual, total, drift


@compiled
def full_ranges(clients: Any, br: Branches) -> Ranges:
    """Each client from the least share that meets its floors up to the whole band."""
    n_clients = clients.shape[0]
    low, high = np.empty(n_clients), np.ones(n_clients)
    cost_low, cost_high = np.empty(n_clients), np.empty(n_clients)
    for n in range(n_clients):
        low[n] = 1.0
        for i in range(br.first_point[n], br.first_point[n + 1]):
            low[n] = min(low[n], br.point_share[i])
        cost_low[n], cost_high[n] = best_at(clients[n], low[n])[0], best_at(clients[n], 1.0)[0]
        if math.isinf(cost_low[n]):  # rounding at the floor itself
            low[n] *= 1.0 + 1e-12
            cost_low[n] = best_at(clients[n], low[n])[0]
    return Ranges(low, high, cost_low, cost_high)


@compiled
def _next_log_price(step: int, log_lo: float, log_hi: float, lo: Any, hi: Any, newton: float) -> float:
    """Newton on the sum and the meeting point of both tangents of g in turn; halving each third step keeps it safe."""
    middle = 0.5 * (log_lo + log_hi)
    if step % 4 == 3:
        return middle
    if step % 2 == 0:
        guess = newton
    else:
        mu_lo, mu_hi = math.exp(log_lo), math.exp(log_hi)
        meet = (hi[0] - lo[0] + lo[1] * mu_lo - hi[1] * mu_hi) / (lo[1] - hi[1])
        guess = math.log(meet) if meet > 0.0 else middle
    return guess if log_lo < guess < log_hi else middle


@compiled
def _headroom(log_lo: float, log_hi: float, lo: Any, hi: Any) -> float:
    """How far g could still rise above its best known value, from the tangents at both ends."""
    mu_lo, mu_hi = math.exp(log_lo), math.exp(log_hi)
    meet = (hi[0] - lo[0] + lo[1] * mu_lo - hi[1] * mu_hi) / (lo[1] - hi[1])
    return lo[0] + lo[1] * (meet - mu_lo) - max(lo[0], hi[0])


@compiled
def find_price(clients: Any, br: Branches, ranges: Ranges, start: float, factor: float, tolerance: float) -> Priced:
    """The price at which the shares add up to one, or the jump across one, from a first guess.

    The guess is moved by `factor`, then by its square and so on, until it lies on both sides of the answer.
    """
    generous, frugal, shares = ranges.high.copy(), ranges.low.copy(), np.empty(clients.shape[0])
    lo = hi = (0.0, 0.0, 0.0)
    log_lo, log_hi, log_mu = -math.inf, math.inf, math.log(start)
    best, price, stride, step = -math.inf, 0.0, math.log(factor), 0
    for step in range(MOST_PRICES):
        now = ask(clients, br, ranges, math.exp(log_mu), shares)
        if now[0] > best:
            best, price = now[0], math.exp(log_mu)
        if abs(now[1]) <= CLOSE:
            return Priced(best, price, shares, shares, step + 1)
        if now[1] > 0.0:
            lo, log_lo = now, log_mu
            generous[:] = shares
        else:
            hi, log_hi = now, log_mu
            frugal[:] = shares
        if math.isinf(log_lo):
            if step == 0:
                free = ask(clients, br, ranges, 0.0, generous)
                if free[1] <= 0.0:  # the band is slack
                    return Priced(free[0], 0.0, generous, generous, 2)
            log_mu, stride = log_mu - stride, 2.0 * stride
        elif math.isinf(log_hi):
            log_mu, stride = log_mu + stride, 2.0 * stride
        elif log_hi - log_lo <= 4e-16 * abs(log_hi) or _headroom(log_lo, log_hi, lo, hi) <= tolerance:
            break
        else:
            newton = log_mu - now[1] / now[2] if now[2] < 0.0 else math.nan
            log_mu = _next_log_price(step, log_lo, log_hi, lo, hi, newton)
        if abs(log_mu) > 690.0:
            break
    return Priced(best, price, generous, frugal, step + 1)


@compiled
def costs_at(clients: Any, shares: Any) -> Any:
    """(N, 3) cost, k and r of every client's best vertex at its share."""
    out = np.empty((shares.size, 3))
    for n in range(shares.size):
        out[n, 0], out[n, 1], out[n, 2] = best_at(clients[n], shares[n])
    return out


def below_one_value(clients: Any, k: Any) -> Any:
    """Clients, without a floor, whose keep rate leaves nothing: k times the size of the base is below one value."""
    return (k * clients[:, BASE_SIZE] < 1.0) & (clients[:, K_LOW] == 0.0)
