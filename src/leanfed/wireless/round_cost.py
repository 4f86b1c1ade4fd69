"""What a round costs: a fleet's state and the work of its clients become latency, energy, bits and FLOPs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from leanfed.wireless import cost
from leanfed.wireless.fleet import Curves, FleetState
from leanfed.wireless.units import Array

Downlink = Literal["neglected", "broadcast"]


@dataclass(frozen=True, eq=False)
class Workload:
    """The work of a round; arrays hold one entry per client, clients that sit out have no samples and no bits."""

    upload_bits: Array
    computed_share: Array  # share of the model's weights that takes part in the computation
    samples: Array  # batch size x local steps
    cycles_per_sample: float  # C, for the whole model
    download_bits: float = 0.0  # size of the one broadcast
    more_cycles: Array | float = 0.0  # beside the model's, such as those of masks

    @property
    def participants(self) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        """Which clients take part."""
        return (np.asarray(self.samples) > 0) | (np.asarray(self.upload_bits) > 0)


@dataclass(frozen=True, eq=False)
class RoundCost:
    """What each client spent in a round, and the totals; clients on the last axis."""

    upload_bits: Array
    communication_s: Array
    computation_s: Array
    communication_j: Array
    computation_j: Array
    flops: Array
    download_bits: Array  # one broadcast, received by all
    downlink_s: Array

    @property
    def latency_s(self) -> Array:
        """Seconds of each client, Eq. (14); the broadcast that all wait for is in `round_latency_s`."""
        return cost.total_latency(self.computation_s, self.communication_s)

    @property
    def energy_j(self) -> Array:
        """Joules of each client: one round's term of Eq. (15)."""
        return np.asarray(self.computation_j + self.communication_j)

    @property
    def round_latency_s(self) -> Array:
        """The broadcast, then the slowest participant."""
        return np.asarray(self.downlink_s + self.latency_s.max(axis=-1, initial=0.0))

    @property
    def round_energy_j(self) -> Array:
        """Joules of all clients together."""
        return np.asarray(self.energy_j.sum(axis=-1))

    @property
    def round_upload_bits(self) -> Array:
        """Bits of all clients together."""
        return np.asarray(self.upload_bits.sum(axis=-1))

    @property
    def round_flops(self) -> Array:
        """Floating-point operations of all clients together."""
        return np.asarray(self.flops.sum(axis=-1))


def equal_shares(participants: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> Array:
    """Bandwidth shares without an allocator: the participants split the band evenly."""
    taking = np.asarray(participants, dtype=float)
    return np.asarray(taking / np.maximum(taking.sum(axis=-1, keepdims=True), 1.0))


def round_cost(
    state: FleetState, workload: Workload, share: Array | None = None, *, downlink: Downlink = "neglected"
) -> RoundCost:
    """The cost of a round on these bandwidth shares (even ones where none are given), Eq. (7) and (10)-(15).

    >>> from leanfed.wireless.fleet import FleetSettings, SampledFleet
    >>> fleet = SampledFleet(FleetSettings(devices=2), seed=0)
    >>> ones = np.ones(2)
    >>> work = Workload(upload_bits=1e6 * ones, computed_share=ones, samples=32 * ones, cycles_per_sample=8e6)
    >>> round_cost(fleet.state(0), work).round_flops.item()
    1024000000.0
    """
    if state.curves is not None:
        return _measured_cost(state, state.curves, workload)
    shares = equal_shares(workload.participants) if share is None else np.asarray(share, dtype=float)
    rate = cost.uplink_rate(
        shares,
        bandwidth_hz=state.bandwidth_hz,
        gain=state.gain,
        power_w=state.power_w,
        noise_w_per_hz=state.noise_w_per_hz,
    )
    communication_s = cost.communication_latency(workload.upload_bits, rate)
    cycles = np.broadcast_to(_cycles(workload), communication_s.shape)
    computation_s = cost.computation_latency(cycles, state.cpu_hz)
    return RoundCost(
        upload_bits=np.broadcast_to(np.asarray(workload.upload_bits, dtype=float), communication_s.shape),
        communication_s=communication_s,
        computation_s=computation_s,
        communication_j=cost.communication_energy(state.power_w, communication_s),
        computation_j=cost.computation_energy(state.energy_coefficient, state.cpu_hz, computation_s),
        flops=cost.flops(cycles),
        download_bits=np.asarray(workload.download_bits, dtype=float),
        downlink_s=_downlink_latency(state, workload) if downlink == "broadcast" else np.zeros(rate.shape[:-1]),
    )


def _measured_cost(state: FleetState, curves: Curves, workload: Workload) -> RoundCost:
    """The cost of a round of measured devices: links of their own, the base's way down in their fixed seconds.

    Sending is charged for the seconds of the upload, not for those that pass anyway.
    """
    sent = np.asarray(workload.upload_bits, dtype=float)
    upload_s = cost.communication_latency(sent, curves.link_bit_per_s)
    more = np.divide(workload.more_cycles, workload.cycles_per_sample) if workload.cycles_per_sample > 0.0 else 0.0
    computation_s = np.asarray((workload.samples * workload.computed_share + more) * curves.sample_s)
    return RoundCost(
        upload_bits=sent,
        communication_s=np.where(workload.participants, curves.fixed_s, 0.0) + upload_s,
        computation_s=computation_s,
        communication_j=cost.communication_energy(state.power_w, upload_s),
        computation_j=curves.compute_w * computation_s,
        flops=cost.flops(np.broadcast_to(_cycles(workload), upload_s.shape)),
        download_bits=np.asarray(workload.download_bits, dtype=float),
        downlink_s=np.zeros(upload_s.shape[:-1]),
    )


def _cycles(workload: Workload) -> Array:
    learning = cost.computation_cycles(workload.samples, workload.cycles_per_sample, workload.computed_share)
    return np.asarray(learning + workload.more_cycles)


def _downlink_latency(state: FleetState, workload: Workload) -> Array:
    """Seconds of one broadcast that the worst participant can still follow."""
    rate = cost.broadcast_rate(state.gain, bandwidth_hz=state.bandwidth_hz, noise_w_per_hz=state.noise_w_per_hz)
    listening = np.broadcast_to(workload.participants, rate.shape)
    slowest = np.min(rate, axis=-1, initial=np.inf, where=listening)
    return cost.communication_latency(np.where(listening.any(axis=-1), workload.download_bits, 0.0), slowest)
