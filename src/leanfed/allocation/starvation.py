"""What starved clients would need to take part in earnest, that is to upload a hundredth of their base gradient."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from leanfed.allocation.curves import bits_of, rate_of, share_of
from leanfed.allocation.problem import Problem
from leanfed.allocation.solution import STARVED_BELOW


def needs_of(problem: Problem, clients: Iterable[int], payload: str = "exact") -> list[str]:
    """One phrase per client: the share of the band for k = 0.01 with the head at its floor, or the limit in the way."""
    return [_need(problem.only([n]), payload) for n in clients]


def _need(one: Problem, payload: str) -> str:
    """The need of a problem's only client."""
    k_min, k_max = float(one.k_min[0]), float(one.k_max[0])
    if k_min >= STARVED_BELOW:
        return f"at the floor of k, {k_min:g}"
    if k_max < STARVED_BELOW:
        return f"the ceiling of k, {k_max:g}, is below {STARVED_BELOW:g}"
    if one.snr[0] == 0.0:
        return "cannot upload without gain and power"
    upload_bits = float(bits_of(STARVED_BELOW, one.base_size, one.value_bits, payload)[0])
    compute_s = float(one.compute_s(one.r_min)[0])
    compute_j, start_s = float(one.compute_power_w[0]) * compute_s, compute_s + float(one.wait_s[0])
    alone_s = upload_bits / float(rate_of(1.0, one.band_hz, one.snr)[0])  # with the whole band to itself
    alone_j = compute_j + float(one.power_w[0]) * alone_s
    late, empty = start_s + alone_s > one.deadline_s[0], alone_j > one.energy_budget_j[0]
    if late or empty:
        wants = [f"a deadline of {start_s + alone_s:.4g} s"] if late else []
        wants += [f"an energy budget of {alone_j:.4g} J"] if empty else []
        band = "its whole link" if one.linked else "the whole band"
        return f"even {band} is not enough for k = {STARVED_BELOW:g}; needs {' and '.join(wants)}"
    if one.linked:
        return f"its link has room for k = {STARVED_BELOW:g}, its head at r = {one.r_min[0]:g}"
    window_s = min(one.deadline_s[0] - start_s, (one.energy_budget_j[0] - compute_j) / one.power_w[0])
    share = 0.0 if np.isinf(window_s) else float(share_of(upload_bits / window_s, one.bandwidth_hz, one.snr)[0])
    where = f"{100.0 * share:.3g} % of the band ({share * one.bandwidth_hz / 1e3:.4g} kHz)"
    return f"k = {STARVED_BELOW:g} needs {where}, its head at r = {one.r_min[0]:g}"
