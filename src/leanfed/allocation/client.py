"""One client's limits and its best (k, r) once its share is known: the vertices of a polygon.

Given a share, the client chooses r and the upload time z. Its latency and energy limits are straight lines in (r, z),
and its cost w1 sqrt(1-r) - w2 k(z) + lambda (ec1 r + p z) is concave, so the best point is one of a few vertices.
"""

from __future__ import annotations

import math
from typing import Any

from leanfed.allocation.compiled import compiled
from leanfed.allocation.curves import keep_rate, rate

ROUNDING = 1.0 + 1e-12  # a limit met up to rounding counts as met


# Columns of a client's row of constants: one row per client keeps calls cheap and memory close.
W1 = 0  # gamma theta1
W2 = 1  # gamma theta2
ENERGY_PRICE = 2  # lambda: objective per joule, 0 outside the horizon schemes
TIME_LEFT_S = 3  # tau - tc0
HEAD_S = 4  # tc1
ENERGY_LEFT_J = 5  # E - ec0
HEAD_J = 6  # ec1
POWER_W = 7
SNR = 8  # x0
K_LOW = 9
K_HIGH = 10
BITS_LOW = 11  # S(k_low)
BITS_HIGH = 12  # S(k_high)
R_LOW = 13
BANDWIDTH_HZ = 14
BASE_SIZE = 15
VALUE_BITS = 16
FORM = 17  # 0 the paper's S, 1 the exact one
CONSTANTS = 18


@compiled
def longest_upload_s(me: Any, r: float) -> float:
    """Z(r) = min(tau - tc0 - tc1 r, (E - ec0 - ec1 r)/p): the upload time that r leaves."""
    time = me[TIME_LEFT_S] - me[HEAD_S] * r
    energy = me[ENERGY_LEFT_J] - me[HEAD_J] * r
    if me[POWER_W] > 0.0 and energy < time * me[POWER_W]:
        return energy / me[POWER_W]
    return time


@compiled
def largest_r(me: Any, upload_s: float) -> float:
    """Z^-1: the largest r that leaves this upload time, below 0 where none does."""
    time = me[TIME_LEFT_S] - upload_s
    energy = me[ENERGY_LEFT_J] - me[POWER_W] * upload_s
    if time < 0.0 or energy < 0.0:
        return -1.0
    r = 1.0
    if time < me[HEAD_S]:
        r = time / me[HEAD_S]
    if energy < me[HEAD_J]:
        r = min(r, energy / me[HEAD_J])
    return r


@compiled
def crossing_r(me: Any) -> float:
    """r_x, where the latency and energy lines cross, or -1 where they do not between r_low and r_max."""
    p = me[POWER_W]
    if p <= 0.0 or math.isinf(me[ENERGY_LEFT_J]) or math.isinf(me[TIME_LEFT_S]):
        return -1.0
    slope = me[HEAD_S] - me[HEAD_J] / p
    if slope == 0.0:
        return -1.0
    r = (me[TIME_LEFT_S] - me[ENERGY_LEFT_J] / p) / slope
    return r if me[R_LOW] < r < largest_r(me, 0.0) else -1.0


@compiled
def cost(me: Any, k: float, r: float, upload_s: float) -> float:
    """w1 sqrt(1-r) - w2 k + lambda (ec1 r + p z): one client's part of the round's objective."""
    value = me[W1] * math.sqrt(1.0 - r) - me[W2] * k
    if me[ENERGY_PRICE] > 0.0:
        value += me[ENERGY_PRICE] * (me[HEAD_J] * r + me[POWER_W] * upload_s)
    return value


@compiled
def keep_rate_within(me: Any, budget_bits: float) -> float:
    """The best k in [k_low, k_high] whose upload fits into these bits, at least bits_low."""
    if budget_bits * ROUNDING >= me[BITS_HIGH]:
        return me[K_HIGH]
    k = keep_rate(budget_bits / me[BASE_SIZE], me[VALUE_BITS], me[FORM])
    return min(max(k, me[K_LOW]), me[K_HIGH])


@compiled
def _without_upload(me: Any) -> tuple[float, float, float]:
    """(cost, k, r) of a client that sends nothing; infeasible where it has a floor."""
    if me[BITS_LOW] > 0.0:
        return math.inf, 0.0, 0.0
    r = largest_r(me, 0.0)
    value, least = cost(me, 0.0, r, 0.0), cost(me, 0.0, me[R_LOW], 0.0)
    return (least, 0.0, me[R_LOW]) if least < value else (value, 0.0, r)


@compiled
def best_at(me: Any, share: float) -> tuple[float, float, float]:
    """(cost, k, r) of the best vertex at this share, cost inf where the floors cannot be met."""
    best = _without_upload(me)
    speed = rate(share, me[BANDWIDTH_HZ], me[SNR])
    if speed <= 0.0 or me[BITS_HIGH] <= 0.0:
        return best
    shortest, longest = me[BITS_LOW] / speed, me[BITS_HIGH] / speed
    for r in (me[R_LOW], crossing_r(me), 1.0):  # r at a corner, as many bits as time allows
        z = min(longest_upload_s(me, r), longest) if r >= 0.0 else -1.0
        if z >= 0.0 and z * ROUNDING >= shortest:
            k = keep_rate_within(me, z * speed)
            value = cost(me, k, r, z)
            if value < best[0]:
                best = (value, k, r)
    for side in range(2):  # k at a bound, r as large as it leaves, or as small as allowed to spare energy
        k, z = (me[K_LOW], shortest) if side == 0 else (me[K_HIGH], longest)
        r = largest_r(me, z / ROUNDING)
        if r >= me[R_LOW]:
            value, least = cost(me, k, r, z), cost(me, k, me[R_LOW], z)
            if value < best[0]:
                best = (value, k, r)
            if least < best[0]:
                best = (least, k, me[R_LOW])
    return best
