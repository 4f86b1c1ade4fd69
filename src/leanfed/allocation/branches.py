"""A client's cost as a function of its share, in branches that one stationary point each describes.

A vertex of the client's polygon moves with the share l. Where r is fixed and the bits grow with l, k is the variable of
its branch (kind 0); where k is fixed and r grows with l, or both are fixed and only transmit energy falls, l itself is
(kind 1). On every branch b = -d cost/dl, the marginal value of bandwidth, does not depend on the bandwidth price mu.
The least cost + mu l lies at an end of a branch, or where b = mu on the stretch on which b falls (the cost is convex).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from leanfed.allocation.client import (
    BANDWIDTH_HZ,
    BASE_SIZE,
    BITS_HIGH,
    BITS_LOW,
    ENERGY_PRICE,
    FORM,
    HEAD_J,
    K_HIGH,
    K_LOW,
    POWER_W,
    R_LOW,
    SNR,
    VALUE_BITS,
    W1,
    W2,
    best_at,
    cost,
    crossing_r,
    largest_r,
    longest_upload_s,
)
from leanfed.allocation.compiled import compiled
from leanfed.allocation.curves import LN2, bits, bits_slope, keep_rate, rate, rate_slope, share_for

TINIEST_K = 1e-12  # below, a branch is its end at k = 0
NODES = 16  # where a branch is looked at for the place where b begins to fall

# Columns of a branch: kind, its two parameters, the line r = R0 - Q z (kind 1), the ends of its convex stretch in the
# logarithm of its variable, ln b there, the last stationary point found (a warm start), and where the tangents of the
# cost at both ends meet: no point of the stretch costs less.
KIND, BITS_OR_TIME, OFFSET, R0, Q, START, STOP, B_START, B_STOP, WARM, MEET_SHARE, MEET_COST = range(12)
COLUMNS = 12
MOST_BRANCHES = 11
MOST_POINTS = 4 * MOST_BRANCHES + 8  # ends of branches and stretches, both bounds of k at three corners, l = 0 and 1


class Branches(NamedTuple):
    """All clients' branches and the points where branches end, grouped by client."""

    first: Any  # (N+1,) rows of `table` that belong to client n: first[n] to first[n+1]
    table: Any  # (rows, COLUMNS)
    first_point: Any  # (N+1,)
    point_share: Any  # (points,)
    point_cost: Any  # (points,)


@compiled
def k_branch_at(me: Any, row: Any, log_k: float) -> tuple[float, float, float, float, float]:
    """r and upload time Z fixed, v = ln k: l = R^-1(S(k)/Z), b = w2 Z R'/S'; see `branch_at`."""
    k, z = math.exp(log_k), row[BITS_OR_TIME]
    share = share_for(bits(k, me[BASE_SIZE], me[VALUE_BITS], me[FORM]) / z, me[BANDWIDTH_HZ], me[SNR])
    slope = bits_slope(k, me[BASE_SIZE], me[VALUE_BITS], me[FORM])
    value = row[OFFSET] - me[W2] * k
    if slope <= 0.0:
        return share, value, math.inf, math.inf, 0.0
    speedup = rate_slope(share, me[BANDWIDTH_HZ], me[SNR])
    growth = k * slope / (z * speedup)  # dl/dv
    curvature = me[BASE_SIZE] / (LN2 * slope * (1.0 if me[FORM] == 0 else 1.0 - k))  # -k S''/S'
    bend = curvature - _rate_bend(me, share, speedup) * growth
    return share, value, math.log(me[W2] * z * speedup / slope), bend, growth


@compiled
def r_branch_at(me: Any, row: Any, log_share: float) -> tuple[float, float, float, float, float]:
    """k fixed, v = ln l: z = S/R, r = R0 - Q z, b = (S R'/R^2) (Q (w1/(2 sqrt(1-r)) - lambda ec1) + lambda p)."""
    share = math.exp(log_share)
    speed, speedup = rate(share, me[BANDWIDTH_HZ], me[SNR]), rate_slope(share, me[BANDWIDTH_HZ], me[SNR])
    z = row[BITS_OR_TIME] / speed
    r = min(max(row[R0] - row[Q] * z, 0.0), 1.0)
    value = cost(me, 0.0, r, z) + row[OFFSET]
    worth, worth_growth = me[ENERGY_PRICE] * me[POWER_W], 0.0
    if row[Q] > 0.0:
        rest = math.sqrt(1.0 - r)
        if rest <= 0.0:
            return share, value, math.inf, math.inf, share
        worth += row[Q] * (0.5 * me[W1] / rest - me[ENERGY_PRICE] * me[HEAD_J])
        worth_growth = row[Q] ** 2 * 0.25 * me[W1] / rest**3 * z / speed * speedup
    if worth <= 0.0:
        return share, value, -math.inf, math.inf, share
    bend = share * (worth_growth / worth - _rate_bend(me, share, speedup) - 2.0 * speedup / speed)
    return share, value, math.log(z / speed * speedup * worth), bend, share


@compiled
def _rate_bend(me: Any, share: float, speedup: float) -> float:
    """-R''/R' = (W/ln 2) (x/(1+x))^2/(l R')."""
    x = me[SNR] / share
    return me[BANDWIDTH_HZ] / LN2 * (x / (1.0 + x)) ** 2 / (share * speedup)


@compiled
def branch_at(me: Any, row: Any, v: float) -> tuple[float, float, float, float, float]:
    """(share, cost, ln b, d ln b/dv, dl/dv) of a branch, v the logarithm of its variable."""
    return k_branch_at(me, row, v) if row[KIND] == 0.0 else r_branch_at(me, row, v)


@compiled
def _turn(me: Any, row: Any, falling: float, rising: float) -> float:
    """Where b stops falling, between a place where it falls and one where it does not; flat there, so roughly.

    Regula falsi (Illinois) on bend/(1+|bend|), which tames the poles of the bend at k = 1 and r = 1.
    """
    at_falling, at_rising, v = -1.0, 1.0, falling
    for _ in range(12):
        v = (falling * at_rising - rising * at_falling) / (at_rising - at_falling)
        bend = branch_at(me, row, v)[3]
        tame = 1.0 if math.isinf(bend) else bend / (1.0 + abs(bend))
        if tame < 0.0:
            falling, at_falling, at_rising = v, tame, 0.5 * at_rising
        else:
            rising, at_rising, at_falling = v, tame, 0.5 * at_falling
        if abs(tame) < 1e-3 or abs(rising - falling) < 1e-3:
            break
    return v


@compiled
def _first_fall(me: Any, row: Any, low: float, high: float) -> float:
    """Where b begins to fall, or `high`; only an energy price makes it rise first (so dense scans say)."""
    if branch_at(me, row, low)[3] < 0.0:
        return low
    if me[ENERGY_PRICE] > 0.0 and row[KIND] == 1.0:
        step = (high - low) / NODES
        for i in range(1, NODES):
            if branch_at(me, row, low + i * step)[3] < 0.0:
                return _turn(me, row, low + i * step, low + (i - 1) * step)
    return high


@compiled
def _set_convex_stretch(me: Any, row: Any, low: float, high: float) -> None:
    """Write the stretch of [low, high] on which b falls, and ln b at its ends; it is empty where b never falls.

    b falls, then rises: as k nears 1 the exact form's S' vanishes, as r nears 1 sqrt(1-r) falls without bound.
    """
    start = _first_fall(me, row, low, high)
    falls_to_the_end = branch_at(me, row, high)[3] < 0.0
    stop = high if falls_to_the_end or start == high else _turn(me, row, start, high)
    row[START], row[STOP], row[WARM] = start, stop, 0.5 * (start + stop)
    l_1, f_1, row[B_START], _, _ = branch_at(me, row, start)
    l_2, f_2, row[B_STOP], _, _ = branch_at(me, row, stop)
    b_1, b_2 = math.exp(row[B_START]), math.exp(row[B_STOP])
    row[MEET_SHARE] = (f_1 + b_1 * l_1 - f_2 - b_2 * l_2) / (b_1 - b_2)
    row[MEET_COST] = f_1 - b_1 * (row[MEET_SHARE] - l_1)


@compiled
def _add_point(points: Any, count: int, share: float, value: float) -> int:
    if share > 1.0 or math.isnan(value) or math.isinf(value):
        return count
    points[count, 0], points[count, 1] = share, value
    return count + 1


@compiled
def _add_ends(me: Any, row: Any, points: Any, count: int, low: float, high: float) -> int:
    """The ends of the branch and of its convex stretch as points."""
    for v in (low, row[START], row[STOP], high):
        share, value, _, _, _ = branch_at(me, row, v)
        count = _add_point(points, count, share, value)
    return count


@compiled
def _add_k_branch(me: Any, r: float, table: Any, points: Any, sizes: Any) -> None:
    """r fixed, the whole upload time used, k from k_low to what the share 1 allows."""
    z = longest_upload_s(me, r)
    if z <= 0.0 or r > largest_r(me, 0.0):
        return
    for side in range(2):
        k, amount = (me[K_LOW], me[BITS_LOW]) if side == 0 else (me[K_HIGH], me[BITS_HIGH])
        sizes[1] = _add_point(points, sizes[1], share_for(amount / z, me[BANDWIDTH_HZ], me[SNR]), cost(me, k, r, z))
    most = min(me[BITS_HIGH], z * rate(1.0, me[BANDWIDTH_HZ], me[SNR]))
    if most <= me[BITS_LOW] or me[W2] <= 0.0:
        return
    k_top = keep_rate(most / me[BASE_SIZE], me[VALUE_BITS], me[FORM])
    k_bottom = max(me[K_LOW], TINIEST_K)
    if k_top <= k_bottom:
        return
    row = table[sizes[0]]
    row[KIND], row[BITS_OR_TIME], row[OFFSET] = 0.0, z, cost(me, 0.0, r, z)
    low, high = math.log(k_bottom), math.log(k_top)
    _set_convex_stretch(me, row, low, high)
    sizes[1] = _add_ends(me, row, points, sizes[1], low, high)
    if row[B_START] > row[B_STOP]:
        sizes[0] += 1


@compiled
def _add_r_branch(
    me: Any, side: int, r0: float, q: float, z_long: float, z_short: float, table: Any, points: Any, sizes: Any
) -> None:
    """k fixed at its floor (side 0) or ceiling (side 1), upload time from z_long down to z_short, r = r0 - q z."""
    k, amount = (me[K_LOW], me[BITS_LOW]) if side == 0 else (me[K_HIGH], me[BITS_HIGH])
    if amount <= 0.0 or not z_short < z_long:
        return
    l_low = share_for(amount / z_long, me[BANDWIDTH_HZ], me[SNR])
    l_high = min(share_for(amount / z_short, me[BANDWIDTH_HZ], me[SNR]) if z_short > 0.0 else 1.0, 1.0)
    if not l_low < l_high:
        return
    row = table[sizes[0]]
    row[KIND], row[BITS_OR_TIME], row[OFFSET], row[R0], row[Q] = 1.0, amount, -me[W2] * k, r0, q
    low, high = math.log(l_low), math.log(l_high)
    _set_convex_stretch(me, row, low, high)
    sizes[1] = _add_ends(me, row, points, sizes[1], low, high)
    if row[B_START] > row[B_STOP]:
        sizes[0] += 1


@compiled
def _add_piece(me: Any, r_a: float, r_b: float, table: Any, points: Any, sizes: Any) -> None:
    """Both r branches along the straight piece of Z between r_a < r_b."""
    z_a, z_b = longest_upload_s(me, r_a), longest_upload_s(me, r_b)
    if not z_b < z_a or math.isinf(z_a):
        return
    q = (r_b - r_a) / (z_a - z_b)
    for side in range(2):
        _add_r_branch(me, side, r_a + q * z_a, q, z_a, max(z_b, 0.0), table, points, sizes)


@compiled
def _fill(me: Any, table: Any, points: Any, sizes: Any) -> None:
    """Write client n's branches and points; `sizes` counts what is used."""
    value = best_at(me, 0.0)[0]
    sizes[1] = _add_point(points, sizes[1], 0.0, value)
    if me[SNR] <= 0.0 or me[BITS_HIGH] <= 0.0:
        return
    sizes[1] = _add_point(points, sizes[1], 1.0, best_at(me, 1.0)[0])
    r_low, r_max, r_x = me[R_LOW], largest_r(me, 0.0), crossing_r(me)
    for r in (r_low, r_x, 1.0):
        if r >= 0.0:
            _add_k_branch(me, r, table, points, sizes)
    if r_x >= 0.0:
        _add_piece(me, r_low, r_x, table, points, sizes)
        _add_piece(me, r_x, r_max, table, points, sizes)
    elif r_low < r_max:
        _add_piece(me, r_low, r_max, table, points, sizes)
    if me[ENERGY_PRICE] > 0.0:  # then more share saves transmit energy even where k and r are settled
        for side in range(2):
            for r in (r_low, 1.0):
                _add_r_branch(me, side, r, 0.0, longest_upload_s(me, r), 0.0, table, points, sizes)


@compiled
def _drop_dominated(points: Any, count: int) -> int:
    """Keep the points that no other one beats in both share and cost; returns how many."""
    kept = 0
    for i in range(count):
        wanted = True
        for j in range(count):
            no_worse = points[j, 0] <= points[i, 0] and points[j, 1] <= points[i, 1]
            better = points[j, 0] < points[i, 0] or points[j, 1] < points[i, 1] or j < i
            if no_worse and better:
                wanted = False
                break
        if wanted:
            points[count + kept] = points[i]
            kept += 1
    points[:kept] = points[count : count + kept]
    return kept


@compiled
def build_branches(clients: Any) -> Branches:
    """Branches of every client, once per problem."""
    n_clients = clients.shape[0]
    room = 16 * n_clients + 64
    first, first_point = np.zeros(n_clients + 1, np.int64), np.zeros(n_clients + 1, np.int64)
    table, points = np.empty((room, COLUMNS)), np.empty((4 * room, 2))
    sizes = np.zeros(2, np.int64)
    scratch, scratch_points = np.zeros((MOST_BRANCHES + 1, COLUMNS)), np.empty((2 * MOST_POINTS, 2))
    for n in range(n_clients):
        sizes[:] = 0
        _fill(clients[n], scratch, scratch_points, sizes)
        sizes[1] = _drop_dominated(scratch_points, sizes[1])
        begin, begin_point = first[n], first_point[n]
        table[begin : begin + sizes[0]] = scratch[: sizes[0]]
        points[begin_point : begin_point + sizes[1]] = scratch_points[: sizes[1]]
        first[n + 1], first_point[n + 1] = begin + sizes[0], begin_point + sizes[1]
    rows, count = first[n_clients], first_point[n_clients]
    return Branches(first, table[:rows].copy(), first_point, points[:count, 0].copy(), points[:count, 1].copy())
