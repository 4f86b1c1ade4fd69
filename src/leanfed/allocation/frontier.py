"""Where feasibility ends: the energy that lets clients take part, the bandwidth that lets them send, by deadline."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from leanfed.allocation.curves import Floats, bits_of, share_of
from leanfed.allocation.limits import least_cost
from leanfed.allocation.problem import Problem
from leanfed.errors import InputError


def least_energy(problem: Problem, deadline_s: ArrayLike, portion: float, payload: str = "exact") -> Floats:
    """Smallest energy budget in J with which a portion of the clients can take part, for each deadline.

    Alone on the band and at their floors; inf where the deadline leaves out too many whatever they may spend.
    """
    latency, energy = least_cost(problem, payload)
    in_time = latency[np.newaxis, :] <= np.asarray(deadline_s, dtype=float)[:, np.newaxis]
    wanted = np.where(in_time, energy[np.newaxis, :], np.inf)
    return np.asarray(np.sort(wanted, axis=1)[:, _count(problem, portion) - 1])


def least_bandwidth(
    problem: Problem, deadline_s: ArrayLike, portion: float, k: float, payload: str = "exact"
) -> Floats:
    """Smallest bandwidth in Hz on which a portion of the clients can all send at least k, for each deadline.

    A client with its head at its floor has Z = min(tau - t, (E - e)/p) seconds for S(k) bits, so it needs the b with
    b log2(1 + h p/(N0 b)) = S(k)/Z, which does not depend on the whole band: the least sum of such b is exact.
    """
    if problem.linked:
        raise InputError(
            "Clients with links of their own share no band. Leave out link_bit_per_s, or ask for deadlines."
        )
    upload_bits = bits_of(k, problem.base_size, problem.value_bits, payload)
    compute_s = problem.compute_s(problem.r_min)
    energy_left = problem.energy_budget_j - problem.compute_power_w * compute_s
    energy_s = np.full(problem.clients, np.inf)
    np.divide(energy_left, problem.power_w, out=energy_s, where=problem.power_w > 0.0)
    window_s = np.minimum(np.asarray(deadline_s, dtype=float)[:, np.newaxis] - problem.wait_s - compute_s, energy_s)
    wanted = np.divide(upload_bits, window_s, out=np.full(window_s.shape, np.inf), where=window_s > 0.0)
    band_hz = np.full(window_s.shape, np.inf)
    able = np.isfinite(wanted)
    snr = np.broadcast_to(problem.snr, window_s.shape)
    band_hz[able] = problem.bandwidth_hz * share_of(wanted[able], problem.bandwidth_hz, snr[able])
    return np.asarray(np.sort(band_hz, axis=1)[:, : _count(problem, portion)].sum(axis=1))


def _count(problem: Problem, portion: float) -> int:
    """How many clients a portion is: at least one, rounded up."""
    return max(1, math.ceil(portion * problem.clients - 1e-9))
