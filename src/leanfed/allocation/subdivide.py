"""From prices to a plan: fill up the band at a price jump, then close the gap by splitting the jumping client's range.

Where a client's cost is not convex in its share, its answer jumps at some price, and no price makes the shares add up
to one. Giving the jumping client what is left is feasible; splitting its range at that share and asking for prices
again on both sides raises the bound and often finds a better plan (branch and bound over shares, worst bound first).
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from leanfed.allocation.branches import Branches
from leanfed.allocation.client import W1, W2
from leanfed.allocation.curves import Floats
from leanfed.allocation.price import Priced, Ranges, costs_at, find_price

Counts = NDArray[np.int64]

MOST_PARTIAL = 6  # jumping clients tried as the one that takes what is left


class Plan(NamedTuple):
    """Shares with their total cost, and the client that was given a share between its two answers (-1: none)."""

    shares: Floats
    value: float
    partial: int


@dataclass(order=True)
class _Node:
    """A box of shares and the bound of the best plan inside it; boxes with the lowest bound come first."""

    bound: float
    number: int
    ranges: Ranges = field(compare=False)
    priced: Priced = field(compare=False)
    plan: Plan = field(compare=False)


@dataclass(frozen=True)
class Searched:
    """The best plan, the bound that holds for every plan, the root's price, and the boxes that were priced."""

    shares: Floats
    value: float
    bound: float
    price: float
    nodes: int


def fill_band(clients: Floats, priced: Priced) -> Plan:
    """Grant the generous answers, small jumps first, one jumper taking what is left; the best of a few tries."""
    frugal, jump = priced.frugal, priced.generous - priced.frugal
    base = costs_at(clients, frugal)[:, 0]
    left = 1.0 - float(frugal.sum())
    jumping = np.flatnonzero(jump > 0.0)
    if left <= 0.0 or jumping.size == 0:
        return Plan(frugal, float(base.sum()), -1)
    order = jumping[np.argsort(jump[jumping], kind="stable")]
    granted = np.array(base)
    granted[order] = costs_at(clients[order], priced.generous[order])[:, 0]
    tried = [int(n) for n in order[-MOST_PARTIAL:] if jump[n] >= 0.01 * jump[order[-1]]]
    plans = [_grant(clients, priced, order, n, left, base, granted) for n in tried]
    return min(plans, key=lambda plan: plan.value)


def _grant(
    clients: Floats, priced: Priced, order: Counts, partial: int, left: float, base: Floats, granted: Floats
) -> Plan:
    """Generous answers in this order while they fit, except for `partial`, who takes the rest up to its own answer."""
    shares, jump = priced.frugal.copy(), priced.generous - priced.frugal
    others = order[order != partial]
    fits = others[np.cumsum(jump[others]) <= left]
    shares[fits] = priced.generous[fits]
    rest = left - float(jump[fits].sum())
    shares[partial] += min(rest, jump[partial])
    split = partial if 0.0 < rest < jump[partial] else -1
    costs = base.copy()
    costs[fits] = granted[fits]
    costs[partial] = costs_at(clients[[partial]], shares[[partial]])[0, 0]
    return Plan(shares, float(costs.sum()), split)


def search(clients: Floats, br: Branches, ranges: Ranges, *, tolerance: float, most_nodes: int) -> Searched:
    """The best plan found and the bound for all plans, in units of the objective."""
    start = float(clients[:, [W1, W2]].sum())
    root = _solve(clients, br, ranges, number=0, start=start, factor=2.0, tolerance=tolerance)
    best, queue, nodes, closed = root.plan, [root], 1, np.inf  # closed: the least bound of boxes looked at no further
    while queue and nodes < most_nodes and best.value - queue[0].bound > tolerance:
        node = heapq.heappop(queue)
        halves = _halves(clients, node)
        closed = closed if halves else min(closed, node.bound)
        for half in halves:
            near = max(node.priced.price, 1e-300)
            child = _solve(clients, br, half, number=nodes, start=near, factor=1.01, tolerance=tolerance)
            nodes += 1
            best = child.plan if child.plan.value < best.value else best
            if child.bound < best.value - tolerance:
                heapq.heappush(queue, child)
            else:
                closed = min(closed, child.bound)
    bound = min(best.value, closed, queue[0].bound if queue else np.inf)
    return Searched(best.shares, best.value, max(bound, root.bound), root.priced.price, nodes)


def _solve(
    clients: Floats, br: Branches, ranges: Ranges, *, number: int, start: float, factor: float, tolerance: float
) -> _Node:
    priced = find_price(clients, br, ranges, start, factor, 0.01 * tolerance)
    return _Node(priced.bound, number, ranges, priced, fill_band(clients, priced))


def _halves(clients: Floats, node: _Node) -> list[Ranges]:
    """The node's box cut at the partial client's share; nothing to cut where no client jumped."""
    n = node.plan.partial
    if n < 0:
        return []
    cut, ranges = float(node.plan.shares[n]), node.ranges
    cost = float(costs_at(clients, node.plan.shares)[n, 0])
    below = Ranges(ranges.low, _with(ranges.high, n, cut), ranges.cost_low, _with(ranges.cost_high, n, cost))
    above = Ranges(_with(ranges.low, n, cut), ranges.high, _with(ranges.cost_low, n, cost), ranges.cost_high)
    return [below, above] if above.low.sum() <= 1.0 else [below]


def _with(values: Floats, n: int, value: float) -> Floats:
    changed = values.copy()
    changed[n] = value
    return changed
