"""The two curves of the radio link and their inverses: bits of an upload S(k), and rate of a share R(l).

Scalar functions are compiled for the solver; `bits_of`, `keep_rate_of`, `rate_of` and `share_of` take arrays.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from leanfed.allocation.compiled import compiled, over_arrays
from leanfed.wireless.rate import LN2 as LN2
from leanfed.wireless.rate import capacity as plain_capacity

PAYLOADS = {"paper": 0, "exact": 1}  # what the compiled code calls the two forms of S

Floats = NDArray[np.float64]

capacity = compiled(plain_capacity)


@compiled
def omega(c: float) -> float:
    """The root w >= 1 of w - ln w = c, for c >= 1, by Halley steps."""
    if c <= 1.0:
        return 1.0
    if c < 2.0:
        s = math.sqrt(2.0 * (c - 1.0))
        w = 1.0 + s + s * s / 3.0 + s * s * s / 36.0
    else:
        w = c + math.log(c + math.log(c))
    for _ in range(4):
        error = w - math.log(w) - c
        slope = 1.0 - 1.0 / w
        if slope <= 0.0:
            break
        step = error / (slope - 0.5 * error / (w * w * slope))
        w -= step
        if abs(step) <= 1e-6 * w:  # the next step would be its cube
            break
    return w


@compiled
def bits(k: float, size: float, value_bits: float, form: int) -> float:
    """Bits of an upload that keeps k of `size` values; paper: Eq. (9), k d (log2(1/k) + F + 1).

    Exact form: d (F k + H2(k)), which is never below F k d + log2 C(d, k d), Eq. (8) without the second sign bit.
    """
    if k <= 0.0:
        return 0.0
    if form == 0:
        return size * k * (value_bits + 1.0 - math.log2(k))
    if k >= 1.0:
        return size * value_bits
    entropy = -(k * math.log(k) + (1.0 - k) * math.log1p(-k)) / LN2
    return size * (value_bits * k + entropy)


@compiled
def bits_slope(k: float, size: float, value_bits: float, form: int) -> float:
    """S'(k): bits that one more unit of keep rate costs."""
    if form == 0:
        return size * ((value_bits + 1.0) * LN2 - math.log(k) - 1.0) / LN2
    return size * (value_bits * LN2 + math.log1p(-k) - math.log(k)) / LN2


@compiled
def keep_rate(s: float, value_bits: float, form: int) -> float:
    """The smallest k with S(k) = s d: y/w(a - ln y) with y = s ln 2; the exact form polishes it from below.

    Where the caller's s reaches S(k_max), k_max itself is the answer, and this function is not asked.
    """
    y = s * LN2
    if y <= 0.0:
        return 0.0
    if form == 0:
        a = (value_bits + 1.0) * LN2
        return 1.0 if y >= a else y / omega(a - math.log(y))
    # H2(k) <= k log2(e/k), so this start lies left of the root, and Newton on a concave curve stays there.
    k = y / omega(value_bits * LN2 + 1.0 - math.log(y))
    for _ in range(60):
        slope = bits_slope(k, 1.0, value_bits, 1)
        if slope <= 0.0:
            break
        step = (s - bits(k, 1.0, value_bits, 1)) / slope
        k = min(k + step, 1.0 - 1e-16)
        if abs(step) <= 1e-15 * k:
            break
    return k


@compiled
def rate(share: float, bandwidth_hz: float, snr: float) -> float:
    """Uplink rate R in bit/s of a share l: its `capacity`, with x0 = h p/(N0 W), the ratio over the whole band."""
    if share <= 0.0 or snr <= 0.0:
        return 0.0
    bit_per_s: float = capacity(share * bandwidth_hz, snr / share)
    return bit_per_s


@compiled
def rate_slope(share: float, bandwidth_hz: float, snr: float) -> float:
    """R'(l) = (W/ln 2) (ln(1+x) - x/(1+x)), x = x0/l; a series where the difference would cancel."""
    x = snr / share
    if x < 1e-4:
        return bandwidth_hz / LN2 * x * x * (0.5 - x * (2.0 / 3.0 - 0.75 * x))
    return bandwidth_hz / LN2 * (math.log1p(x) - x / (1.0 + x))


@compiled
def share_for(bits_per_s: float, bandwidth_hz: float, snr: float) -> float:
    """R^-1: the share that gives this rate, inf where no share does."""
    if bits_per_s <= 0.0:
        return 0.0
    if snr <= 0.0:
        return math.inf
    eta = bits_per_s * LN2 / (bandwidth_hz * snr)
    if eta >= 1.0:
        return math.inf
    x = omega(eta - math.log(eta)) / eta - 1.0
    if x < 1e-7:  # the closed form cancels; ln(1+x)/x = 1 - x/2 + x^2/3
        x = 2.0 * (1.0 - eta) * (1.0 + 4.0 / 3.0 * (1.0 - eta))
    for _ in range(1 if x > 0.1 else 2):
        slope = 1.0 / (1.0 + x) - eta
        x -= (math.log1p(x) - eta * x) / slope
    return snr / x


@over_arrays
def _bits_each(k: Any, size: Any, value_bits: Any, form: int) -> Any:
    out = np.empty(k.size)
    for i in range(k.size):
        out[i] = bits(k[i], size[i], value_bits[i], form)
    return out


@over_arrays
def _keep_rate_each(s: Any, value_bits: Any, form: int) -> Any:
    out = np.empty(s.size)
    for i in range(s.size):
        out[i] = 1.0 if s[i] >= value_bits[i] + (1 - form) else keep_rate(s[i], value_bits[i], form)
    return out


@over_arrays
def _rate_each(share: Any, bandwidth_hz: Any, snr: Any) -> Any:
    out = np.empty(share.size)
    for i in range(share.size):
        out[i] = rate(share[i], bandwidth_hz[i], snr[i])
    return out


@over_arrays
def _share_each(bits_per_s: Any, bandwidth_hz: Any, snr: Any) -> Any:
    out = np.empty(bits_per_s.size)
    for i in range(bits_per_s.size):
        out[i] = share_for(bits_per_s[i], bandwidth_hz[i], snr[i])
    return out


def _flat(*values: ArrayLike) -> tuple[list[Floats], tuple[int, ...]]:
    """Arguments broadcast together as flat float arrays of their own, and the shape to give back."""
    arrays = [np.asarray(value, dtype=float) for value in values]
    shape = np.broadcast_shapes(*(array.shape for array in arrays))
    return [np.array(np.broadcast_to(array, shape)).ravel() for array in arrays], shape


def bits_of(k: ArrayLike, base_size: ArrayLike, value_bits: ArrayLike, payload: str = "exact") -> Floats:
    """Bits of an upload at keep rate k, Eq. (8) as its entropy form (`exact`) or Eq. (9) (`paper`)."""
    (k_, size, width), shape = _flat(k, base_size, value_bits)
    return np.reshape(_bits_each(k_, size, width, PAYLOADS[payload]), shape)


def keep_rate_of(upload_bits: ArrayLike, base_size: ArrayLike, value_bits: ArrayLike, payload: str = "exact") -> Floats:
    """The keep rate that fits into this many bits: the inverse of `bits_of`, 1 where all values fit."""
    (budget, size, width), shape = _flat(upload_bits, base_size, value_bits)
    return np.reshape(_keep_rate_each(budget / size, width, PAYLOADS[payload]), shape)


def rate_of(share: ArrayLike, bandwidth_hz: ArrayLike, snr: ArrayLike) -> Floats:
    """Uplink rate in bit/s of each share."""
    (share_, band, x0), shape = _flat(share, bandwidth_hz, snr)
    return np.reshape(_rate_each(share_, band, x0), shape)


def share_of(bits_per_s: ArrayLike, bandwidth_hz: ArrayLike, snr: ArrayLike) -> Floats:
    """The share that gives this rate: the inverse of `rate_of`, inf where none does."""
    (target, band, x0), shape = _flat(bits_per_s, bandwidth_hz, snr)
    return np.reshape(_share_each(target, band, x0), shape)
