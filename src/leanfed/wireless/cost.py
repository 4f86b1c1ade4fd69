"""What a round costs: rate, latency and energy, one small function per equation.

Every function takes scalars or arrays and broadcasts: clients lie on the last axis, rounds (if any) before it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from leanfed.wireless.rate import capacities
from leanfed.wireless.units import Array, dbm_to_w

FLOPS_PER_CYCLE = 2.0  # one fused multiply-add
BASE_STATION_POWER_W = float(dbm_to_w(33.0))  # the paper's parameter table
# A band this quiet is no band: the ratio to it would overflow, and the rate there is below 1e-170 bit/s.
_SILENT_W = 1e-200


def uplink_rate(
    share: ArrayLike, *, bandwidth_hz: ArrayLike, gain: ArrayLike, power_w: ArrayLike, noise_w_per_hz: ArrayLike
) -> Array:
    """FDMA uplink rate in bit/s of a share l of the band W: its `capacity`, zero where the share is zero."""
    band_hz, received_w, noise = np.broadcast_arrays(
        np.asarray(share, dtype=float) * np.asarray(bandwidth_hz, dtype=float),
        np.asarray(gain, dtype=float) * np.asarray(power_w, dtype=float),
        np.asarray(noise_w_per_hz, dtype=float),
    )
    noise_w = noise * band_hz
    signal_to_noise = np.divide(received_w, noise_w, out=np.zeros(noise_w.shape), where=noise_w > _SILENT_W)
    return np.asarray(capacities(band_hz, signal_to_noise))


def broadcast_rate(
    gain: ArrayLike, *, bandwidth_hz: ArrayLike, noise_w_per_hz: ArrayLike, power_w: float = BASE_STATION_POWER_W
) -> Array:
    """Downlink rate in bit/s that each client could follow, with the whole band and the station's power."""
    return uplink_rate(1.0, bandwidth_hz=bandwidth_hz, gain=gain, power_w=power_w, noise_w_per_hz=noise_w_per_hz)


def communication_latency(bits: ArrayLike, rate_bit_per_s: ArrayLike) -> Array:
    """Seconds to send: S / R, Eq. (10); zero bits take no time, bits at zero rate take for ever."""
    sent, rate = np.broadcast_arrays(np.asarray(bits, dtype=float), np.asarray(rate_bit_per_s, dtype=float))
    waiting = np.where(sent > 0.0, np.inf, 0.0)
    with np.errstate(over="ignore"):  # past the largest float is for ever too
        return np.asarray(np.divide(sent, rate, out=waiting, where=(rate > 0.0) & (sent > 0.0)))


def communication_energy(power_w: ArrayLike, latency_s: ArrayLike) -> Array:
    """Joules to send: p tau, Eq. (11); zero power spends nothing, however long it waits."""
    power, latency = np.broadcast_arrays(np.asarray(power_w, dtype=float), np.asarray(latency_s, dtype=float))
    with np.errstate(over="ignore"):
        return np.asarray(np.multiply(power, latency, out=np.zeros(power.shape), where=power > 0.0))


def computed_share(base_size: ArrayLike, head_size: ArrayLike, head_keep_rate: ArrayLike) -> Array:
    """Share of the model a client computes on: (d_B + r d_P) / d, the fraction in Eq. (12)."""
    base, head = np.asarray(base_size, dtype=float), np.asarray(head_size, dtype=float)
    return np.asarray((base + np.asarray(head_keep_rate, dtype=float) * head) / (base + head))


def computation_cycles(samples: ArrayLike, cycles_per_sample: ArrayLike, share: ArrayLike) -> Array:
    """CPU cycles of a round: b C (d_B + r d_P) / d, the numerator of Eq. (12), with b summed over the local steps."""
    return np.asarray(np.asarray(samples, dtype=float) * np.asarray(cycles_per_sample, dtype=float) * np.asarray(share))


def computation_latency(cycles: ArrayLike, cpu_hz: ArrayLike) -> Array:
    """Seconds to compute: cycles / omega, Eq. (12)."""
    return np.asarray(np.asarray(cycles, dtype=float) / np.asarray(cpu_hz, dtype=float))


def computation_power(energy_coefficient: ArrayLike, cpu_hz: ArrayLike) -> Array:
    """Watts while computing: zeta omega^3, the power in Eq. (13)."""
    return np.asarray(np.asarray(energy_coefficient, dtype=float) * np.asarray(cpu_hz, dtype=float) ** 3)


def computation_energy(energy_coefficient: ArrayLike, cpu_hz: ArrayLike, latency_s: ArrayLike) -> Array:
    """Joules to compute: zeta omega^3 tau, Eq. (13)."""
    return np.asarray(computation_power(energy_coefficient, cpu_hz) * np.asarray(latency_s, dtype=float))


def total_latency(computation_s: ArrayLike, communication_s: ArrayLike) -> Array:
    """Seconds of a client's round: computing, then sending, Eq. (14)."""
    return np.asarray(np.asarray(computation_s, dtype=float) + np.asarray(communication_s, dtype=float))


def total_energy(computation_j: ArrayLike, communication_j: ArrayLike) -> Array:
    """Joules of each client over all rounds (rounds on the first axis), Eq. (15)."""
    per_round = np.asarray(computation_j, dtype=float) + np.asarray(communication_j, dtype=float)
    return np.asarray(per_round.sum(axis=0))


def flops(cycles: ArrayLike) -> Array:
    """Floating-point operations: two per cycle."""
    return np.asarray(FLOPS_PER_CYCLE * np.asarray(cycles, dtype=float))
