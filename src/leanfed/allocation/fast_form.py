"""Progress per second: choose the round's deadline together with who takes part, at one keep rate for all.

The paper fixes the deadline and spends what it leaves on k and r. Time to accuracy is (rounds needed) x (seconds a
round), and the deadline moves both. Here a round is worth sum over participants of gamma_n worth(k), where worth is the
share of a gradient's norm that its k largest entries hold, and the plan with the most worth per second wins. Heads stay
whole where that fits, bandwidth is just enough for the deadline, and clients that would hold the round up sit it out,
unless they are due.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from leanfed.allocation.base import ALLOCATORS
from leanfed.allocation.curves import Floats, bits_of, rate_of, share_of
from leanfed.allocation.limits import Mask
from leanfed.allocation.problem import Problem
from leanfed.allocation.solution import Excluded, Solution, assemble, infeasible

# Measured on gradients of LeNet-5: the share of the squared norm in the k largest entries.
ENERGY_KEPT = ((0.01, 0.31), (0.05, 0.65), (0.1, 0.81), (0.5, 0.998), (1.0, 1.0))
DEADLINES = 64  # tried for each keep rate, before the best is tightened
KEEP_RATES = 5  # tried between k_min and k_max
SMALLEST_KEEP_RATE = 0.01  # where the measurements begin
ROUNDING = 1.0 + 1e-9  # a link that is just fast enough is


@dataclass(frozen=True, eq=False)
class Upload:
    """What every client would send: its keep rate, its bits, what that is worth, and whether it is anything at all."""

    k: Floats  # (N,)
    bits: Floats  # (N,)
    worth: Floats  # (N,)
    able: Mask | bool = True  # (N,)
    by_head: bool = False  # whether it is worth less from a client that has to prune its head, in proportion to r


@dataclass(frozen=True, eq=False)
class FastPlan:
    """A plan, the deadline it is made for, and the plans that it was preferred to."""

    solution: Solution
    deadline_s: float = 0.0
    k: float = 0.0
    worth_per_s: float = 0.0
    due: tuple[int, ...] = ()  # clients that had to come in, and did
    alternatives: tuple[dict[str, float], ...] = ()  # the best of every keep rate tried, and everyone together
    bound: float | None = None  # no other choice within the deadline brings more than this share above it

    def reasons(self) -> dict[str, Any]:
        """Why this plan, as plain values."""
        return {
            "deadline_s": self.deadline_s,
            "k": self.k,
            "worth_per_s": self.worth_per_s,
            "due": list(self.due),
            "alternatives": list(self.alternatives),
            **({} if self.bound is None else {"bound": self.bound}),
        }


@dataclass(frozen=True, eq=False)
class _Trial:
    """Plans at one keep rate, a row for each deadline tried."""

    k: Floats  # (N,)
    r: Floats  # (N,)
    bits: Floats  # (N,)
    worth: Floats  # (N,)
    deadline_s: Floats  # (T,)
    admitted: Mask  # (T, N)
    worth_per_s: Floats  # (T,)
    due: Floats  # (T,) how many of those due take part

    @property
    def best(self) -> int:
        """Most of those due, then most worth per second, then the earliest deadline."""
        return int(np.lexsort((-self.deadline_s, self.worth_per_s, self.due))[-1])


def energy_kept(k: ArrayLike) -> Floats:
    """The measured share of a gradient's energy in its k largest entries, linear in ln k between measurements.

    Below the first measurement it falls in proportion to k, which is less than top-k really keeps.

    >>> float(energy_kept(0.05))
    0.65
    """
    rates, shares = np.array(ENERGY_KEPT).T
    keep = np.asarray(k, dtype=float)
    inside = np.interp(np.log(np.maximum(keep, rates[0])), np.log(rates), shares)
    return np.asarray(inside * np.minimum(keep / rates[0], 1.0))


def worth(k: ArrayLike) -> Floats:
    """What an upload is worth: the share of the gradient's norm that it holds, the root of its energy.

    The energy itself asks for k near 0.1, which was slower on the embedded digits than 0.02 to 0.05: with error
    feedback the rest comes later and is not lost, and heads learn whatever is sent.
    """
    return np.asarray(np.sqrt(energy_kept(k)))


def plan_fast(
    problem: Problem, *, due: Mask | None = None, payload: str = "exact", upload: Upload | None = None
) -> FastPlan:
    """The plan with the most worth per second; clients that are `due` come in first wherever they can.

    With `upload` the keep rates and bits of a method that chooses its own are taken as they are, and only the deadline
    and who takes part are planned.
    """
    began = time.perf_counter()
    wanted = np.zeros(problem.clients, dtype=bool) if due is None else due
    uploads = [upload] if upload is not None else [_upload(problem, k, payload) for k in keep_rates(problem)]
    trials = [_try(problem, one, wanted) for one in uploads]
    possible = [trial for trial in trials if trial is not None and trial.admitted[trial.best].any()]
    details: dict[str, Any] = {"solver": "fast", "payload": payload}
    if not possible:
        out = left_out(problem, np.ones(problem.clients, dtype=bool), 0.0, uploads[0])
        return FastPlan(infeasible(problem, excluded=out, seconds=time.perf_counter() - began, **details))
    chosen = max(possible, key=lambda trial: (trial.due[trial.best], trial.worth_per_s[trial.best]))
    taking = chosen.admitted[chosen.best]
    some, k, r = problem.only(taking), chosen.k[taking], chosen.r[taking]
    deadline_s, shares = tighten(some, chosen.bits[taking], r, float(chosen.deadline_s[chosen.best]))
    solution = assemble(
        problem,
        taking,
        (k, r, shares),
        excluded=left_out(problem, ~taking, deadline_s, uploads[0]),
        seconds=time.perf_counter() - began,
        **details,
    )
    return FastPlan(
        solution,
        deadline_s,
        float(np.median(k)),
        float(some.weights @ chosen.worth[taking]) / deadline_s,
        tuple(np.flatnonzero(wanted & taking).tolist()),
        (*(_row(trial, trial.best) for trial in possible), _row(chosen, -1)),
    )


def solve_fast(problem: Problem, *, payload: str = "exact") -> Solution:
    """`plan_fast` as an allocator: with no client due, and the plan alone."""
    return plan_fast(problem, payload=payload).solution


ALLOCATORS.add("fast", solve_fast)


def keep_rates(problem: Problem) -> Floats:
    """The keep rates to try: one for all clients, from k_min to k_max in equal ratios."""
    high = float(problem.k_max.max())
    low = max(float(problem.k_min.min()), min(SMALLEST_KEEP_RATE, high))
    return np.unique(np.geomspace(low, high, KEEP_RATES)) if low < high else np.array([high])


def _upload(problem: Problem, k: float, payload: str) -> Upload:
    """An upload at one keep rate for all, within each client's bounds; none of them of less than one entry."""
    each = np.clip(k, problem.k_min, problem.k_max)
    bits = bits_of(each, problem.base_size, problem.value_bits, payload)
    return Upload(each, bits, worth(each), each * problem.base_size >= 1.0)


def _try(problem: Problem, upload: Upload, due: Mask) -> _Trial | None:
    """Every deadline with one upload; nothing where no client can send it."""
    bits = upload.bits
    r = whole_heads(problem, bits)
    alone_s = _alone(problem, bits, r)
    reachable = np.isfinite(alone_s) & upload.able
    if not reachable.any():
        return None
    deadline_s = _between(problem.only(reachable), bits[reachable], r[reachable], alone_s[reachable], DEADLINES)
    share = np.where(reachable, needed(problem, bits, deadline_s[:, np.newaxis], r), np.inf)
    admitted = _admit(share, problem.weights, due & reachable)
    worth = upload.worth * r if upload.by_head else upload.worth
    worth_per_s = admitted @ (problem.weights * worth) / deadline_s
    return _Trial(upload.k, r, bits, worth, deadline_s, admitted, worth_per_s, (admitted & due).sum(axis=1))


def whole_heads(problem: Problem, bits: Floats) -> Floats:
    """r = 1; where a client's own limits forbid it, the most that leaves an upload on an even share its time."""
    even = rate_of(1.0 if problem.linked else 1.0 / problem.clients, problem.band_hz, problem.snr)
    upload_s = np.divide(bits, even, out=np.zeros(bits.size), where=even > 0.0)
    watts = problem.compute_power_w
    left_s = problem.left_s - problem.base_s - upload_s
    left_j = problem.energy_budget_j - watts * problem.base_s - problem.power_w * upload_s
    r = np.ones(problem.clients)
    for left, head in ((left_s, problem.head_s), (left_j, watts * problem.head_s)):
        np.minimum(r, np.divide(left, head, out=np.ones_like(head), where=head > 0.0), out=r)
    return np.maximum(r, problem.r_min)


def deadlines(problem: Problem, bits: Floats, r: Floats, count: int) -> Floats:
    """Deadlines to try, in equal ratios: from the first client alone on the band to all of them together."""
    alone_s = _alone(problem, bits, r)
    reachable = np.isfinite(alone_s)
    if not reachable.any():
        return np.empty(0)
    return _between(problem.only(reachable), bits[reachable], r[reachable], alone_s[reachable], count)


def _between(problem: Problem, bits: Floats, r: Floats, alone_s: Floats, count: int) -> Floats:
    """The same, where every client can be reached."""
    latest, everyone_s = float(problem.deadline_s.max()), float(alone_s.max())
    # What energy alone asks for; waiting longer does not lower it.
    unhurried = needed(problem, bits, np.inf, r).sum()
    while everyone_s < latest and needed(problem, bits, everyone_s, r).sum() > max(1.0, 1.01 * unhurried):
        everyone_s *= 1.25
    return np.geomspace(float(alone_s.min()), min(everyone_s, latest), count)


def _alone(problem: Problem, bits: Floats, r: Floats) -> Floats:
    """Each client's latency with the whole band; inf where it breaks a limit of its own."""
    upload_s = np.divide(
        bits, rate_of(1.0, problem.band_hz, problem.snr), out=np.full(bits.size, np.inf), where=problem.snr > 0.0
    )
    fits = upload_s <= _window(problem, np.inf, r)
    return np.where(fits, problem.wait_s + problem.compute_s(r) + upload_s, np.inf)


def _window(problem: Problem, deadline_s: Floats | float, r: Floats | float) -> Floats:
    """Seconds that deadline and energy leave for the upload after computing with a head of r."""
    compute_s = problem.compute_s(r)
    left_j = problem.energy_budget_j - problem.compute_power_w * compute_s
    energy_s = np.where(left_j >= 0.0, np.inf, -np.inf)
    np.divide(left_j, problem.power_w, out=energy_s, where=problem.power_w > 0.0)
    return np.minimum(np.minimum(deadline_s, problem.deadline_s) - problem.wait_s - compute_s, energy_s)


def needed(problem: Problem, bits: Floats, deadline_s: Floats | float, r: Floats | float) -> Floats:
    """The share with which each client just meets its limits; inf where none does. An own link takes none of a band."""
    window_s = _window(problem, deadline_s, r)
    speed = np.divide(bits, window_s, out=np.full(window_s.shape, np.inf), where=window_s > 0.0)
    if problem.link_bit_per_s is not None:
        return np.where(speed <= problem.link_bit_per_s * ROUNDING, 0.0, np.inf)
    return share_of(speed, problem.bandwidth_hz, problem.snr)


def _admit(share: Floats, weights: Floats, due: Mask) -> Mask:
    """Fill each row's band: those due first, then those who need the least band for their weight."""
    price = share / np.maximum(weights, 1e-12 * weights.max())
    first = due & (share <= 1.0)  # who is due but out of reach must not stand in the way of the others
    order = np.lexsort((price, ~first), axis=-1)
    filled = np.cumsum(np.take_along_axis(share, order, axis=-1), axis=-1)
    admitted = np.zeros(share.shape, dtype=bool)
    np.put_along_axis(admitted, order, filled <= 1.0, axis=-1)
    return admitted


def tighten(problem: Problem, bits: Floats, r: Floats, deadline_s: float, halvings: int = 60) -> tuple[float, Floats]:
    """The earliest deadline that these clients can still meet together, by bisection, and their shares."""
    low, high = 0.0, deadline_s
    for _ in range(halvings):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if needed(problem, bits, middle, r).sum() > 1.0 else (low, middle)
    return high, np.ones(problem.clients) if problem.linked else needed(problem, bits, high, r)


def left_out(problem: Problem, out: Mask, deadline_s: float, least: Upload) -> tuple[Excluded, ...]:
    """Why each of these clients sits the round out, and the latency it would need alone on the band."""
    alone_s = _alone(problem, least.bits, whole_heads(problem, least.bits))
    entries = []
    for client in np.flatnonzero(out).tolist():
        need = float(alone_s[client])
        if not np.isfinite(need):
            entries.append(Excluded(client, "its own deadline or energy budget leaves no time to upload", None))
        elif need > deadline_s:
            entries.append(Excluded(client, f"the round's {deadline_s:.3g} s end before its {need:.3g} s", need))
        else:
            entries.append(Excluded(client, f"too much of the band to end within {deadline_s:.3g} s", need))
    return tuple(entries)


def _row(trial: _Trial, place: int) -> dict[str, float]:
    """One plan that was weighed, as plain values."""
    taking = trial.admitted[place]
    return {
        "deadline_s": float(trial.deadline_s[place]),
        "k": float(np.median(trial.k[taking])) if taking.any() else 0.0,
        "participants": int(taking.sum()),
        "worth_per_s": float(trial.worth_per_s[place]),
    }
