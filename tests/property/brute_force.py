"""The round problem by brute force, written on its own: no formula, vertex or price is shared with the package.

A client's cost at a share is found by scanning r on a grid that is refined around its best point, with k by bisection
on the bit count; shares by scanning the simplex, refined in the same way.
"""

from __future__ import annotations

import itertools

import numpy as np


def count_bits(k, case):
    d, width = case["base_size"], case["value_bits"]
    k = np.asarray(k, dtype=float)
    inside = np.where(k > 0, k, 1.0)
    if case["payload"] == "paper":
        return np.where(k > 0, k * d * (width + 1 + np.log2(1 / inside)), 0.0)
    missing = np.where(k < 1, 1 - k, 1.0)
    return d * (width * k + inside * np.log2(1 / inside) * (k > 0) + missing * np.log2(1 / missing) * (k < 1))


def largest_k(budget, case, n):
    low, high = np.zeros_like(budget), np.full_like(budget, case["k_max"][n])
    whole = count_bits(high, case) <= budget * (1 + 1e-13)
    for _ in range(42):
        middle = (low + high) / 2
        fits = count_bits(middle, case) <= budget
        low, high = np.where(fits, middle, low), np.where(fits, high, middle)
    return np.where(whole, case["k_max"][n], low)


def cost_of_rates(r, rate, case, n):
    """Cost at each r (one row per rate): the deadline and the energy budget leave an upload time, k uses it up."""
    d = case["base_size"] + case["head_size"]
    work = case["batch_size"] * case["cycles_per_sample"] * (case["base_size"] + r * case["head_size"]) / d
    seconds = work / case["cpu_hz"][n]
    joules = case["energy_coefficient"] * case["cpu_hz"][n] ** 2 * work
    upload = np.minimum(case["deadline_s"] - seconds, (case["energy_budget_j"] - joules) / case["power_w"][n])
    budget = np.maximum(upload, 0.0) * rate[:, None]
    k = largest_k(budget, case, n)
    cost = case["weights"][n] * (case["theta1"] * np.sqrt(np.maximum(1 - r, 0)) - case["theta2"] * k)
    short = count_bits(case["k_min"][n], case) > budget * (1 + 1e-9)
    return np.where((upload < -1e-12) | short, np.inf, cost)


def cost_of_shares(shares, case, n):
    """Least cost over r at each share."""
    shares = np.asarray(shares, dtype=float)
    hertz = np.maximum(shares, 1e-300) * case["bandwidth_hz"]
    power = case["channel_gain"][n] * case["power_w"][n]
    rate = np.where(shares > 0, hertz * np.log2(1 + power / (case["noise_w_per_hz"] * hertz)), 0.0)
    rows = np.arange(shares.size)
    grid = np.linspace(case["r_min"][n], 1.0, 41)[None, :] + np.zeros((shares.size, 1))
    best = np.full(shares.size, np.inf)
    for _ in range(9):
        values = cost_of_rates(grid, rate, case, n)
        at = values.argmin(axis=1)
        best = np.minimum(best, values[rows, at])
        left, right = grid[rows, np.maximum(at - 1, 0)], grid[rows, np.minimum(at + 1, grid.shape[1] - 1)]
        grid = left[:, None] + (right - left)[:, None] * np.linspace(0, 1, 13)[None, :]
    return best


def price_a_plan(case, k, r, shares):
    """The plan's cost, and whether it meets deadline, energy, bounds and band to 1e-9, by the same plain formulae."""
    d, total, fits = case["base_size"] + case["head_size"], 0.0, sum(shares) <= 1 + 1e-9
    for n in range(len(k)):
        work = case["batch_size"] * case["cycles_per_sample"] * (case["base_size"] + r[n] * case["head_size"]) / d
        hertz = shares[n] * case["bandwidth_hz"]
        upload = 0.0
        if k[n] > 0:
            power = case["channel_gain"][n] * case["power_w"][n]
            upload = float(count_bits(k[n], case)) / (hertz * np.log2(1 + power / (case["noise_w_per_hz"] * hertz)))
        joules = case["energy_coefficient"] * case["cpu_hz"][n] ** 2 * work + case["power_w"][n] * upload
        fits &= work / case["cpu_hz"][n] + upload <= case["deadline_s"] * (1 + 1e-9)
        fits &= joules <= case["energy_budget_j"] * (1 + 1e-9)
        fits &= case["k_min"][n] * (1 - 1e-9) <= k[n] <= case["k_max"][n] and r[n] >= case["r_min"][n] * (1 - 1e-9)
        total += case["weights"][n] * (case["theta1"] * np.sqrt(1 - r[n]) - case["theta2"] * k[n])
    return total, bool(fits)


def solve(case):
    """The least total cost over shares that add up to one, for one, two or three clients."""
    count = len(case["weights"])
    if count == 1:
        return float(cost_of_shares(np.ones(1), case, 0)[0])
    first = 400 if count == 2 else 200
    axes = [np.unique(np.r_[0.0, np.geomspace(1e-5, 0.02, 20), np.linspace(0.02, 1.0, first)])] * (count - 1)
    total = _scan(axes, case, coarse=True)
    return min(_refine(axes, where, case) for where in _valleys(total, most=3))


def _refine(axes, where, case):
    """The least cost near one cell, zooming in until shares are known to about 1e-6."""
    best = np.inf
    for _ in range(8):
        axes = [_zoom(axis, i) for axis, i in zip(axes, where, strict=True)]
        total = _scan(axes, case, coarse=False)
        where = np.unravel_index(int(total.argmin()), total.shape)
        best = min(best, float(total[where]))
    return best


def _valleys(total, most):
    """Cells that no neighbour beats, the lowest first."""
    padded = np.pad(total, 1, constant_values=np.inf)
    inner = tuple(slice(1, -1) for _ in total.shape)
    lowest = np.isfinite(total)
    for shift in itertools.product((-1, 0, 1), repeat=total.ndim):
        lowest &= total <= np.roll(padded, shift, axis=tuple(range(total.ndim)))[inner]
    cells = np.argwhere(lowest)
    order = np.argsort(total[lowest], kind="stable")
    return [tuple(int(i) for i in cell) for cell in cells[order][:most]] or [(0,) * total.ndim]


def _scan(axes, case, coarse):
    """Total cost on the grid of all but the last client's shares; the last client takes the rest."""
    costs = [cost_of_shares(axis, case, n) for n, axis in enumerate(axes)]
    total = costs[0] if len(costs) == 1 else costs[0][:, None] + costs[1][None, :]
    rest = 1 - (axes[0] if len(axes) == 1 else axes[0][:, None] + axes[1][None, :])
    last = _looked_up(rest, case) if coarse else cost_of_shares(np.maximum(rest, 0.0).ravel(), case, len(axes))
    return np.where(rest >= 0, total + last.reshape(rest.shape), np.inf)


def _looked_up(rest, case):
    """The last client's cost on a fine grid, at or below the share asked for, so that it is never too low."""
    fine = np.unique(np.r_[0.0, np.geomspace(1e-5, 1e-2, 100), np.linspace(1e-2, 1, 1200)])
    table = cost_of_shares(fine, case, len(case["weights"]) - 1)
    return table[np.clip(np.searchsorted(fine, rest, side="right") - 1, 0, fine.size - 1)]


def _zoom(axis, at):
    wide = 1 if axis.size > 100 else 2
    return np.linspace(axis[max(at - wide, 0)], axis[min(at + wide, axis.size - 1)], 13)


def random_case(generator, clients, floors):
    """A small instance in which bandwidth, deadline and energy all matter."""
    km = 0.02 + 0.18 * np.sqrt(generator.random(clients))
    choose = generator.choice
    return {
        "weights": generator.dirichlet(np.full(clients, 3.0)),
        "channel_gain": 10 ** (-(128.1 + 37.6 * np.log10(km)) / 10),
        "power_w": 10 ** (generator.uniform(20, 28, clients) / 10 - 3),
        "cpu_hz": generator.uniform(0.8e9, 3e9, clients),
        "batch_size": 32,
        "cycles_per_sample": 8e6,
        "energy_coefficient": 1e-28,
        "deadline_s": float(generator.uniform(0.6, 1.2)),
        "energy_budget_j": float(choose([0.25, 0.4, 1.0])),
        "bandwidth_hz": float(clients * 10 ** generator.uniform(4.5, 5.3)),
        "noise_w_per_hz": 10**-20.4,
        "base_size": 50_692,
        "head_size": int(choose([11_014, 40_000])),
        "value_bits": int(choose([32, 32, 8])),
        "theta1": float(10 ** generator.uniform(-2, 0)),
        "theta2": 1.0,
        "k_min": choose([0.0, 0.01, 0.05], clients) if floors else np.zeros(clients),
        "k_max": choose([1.0, 0.9, 0.5], clients) if floors else np.ones(clients),
        "r_min": choose([0.0, 0.1, 0.3], clients) if floors else np.zeros(clients),
        "payload": str(choose(["exact", "paper"])),
    }


CASES = list(itertools.product((1, 2, 3), (False, True)))
