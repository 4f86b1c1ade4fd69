"""The fleet as its devices report it, in the cost model's terms: what the allocator plans from.

A measured time becomes the speed at which the model predicts that time: after a training the CPU is as fast as the
model's cycles over the measured seconds, before it as fast as the calibration says (two operations a cycle). A
measured throughput becomes the channel gain at which Eq. (7) has that rate on the share the client had. Power comes
from the radio profile (the settings' fleet file, else the middle of their range). Joules of a training become zeta,
Eq. (13); where the platform does not report them, the profile's zeta holds if a fleet file gives one, and else
computing is not charged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
from typing_extensions import override

from leanfed.deployment.learning.messages import Device
from leanfed.rounds.costs import RadioSettings, computed_share
from leanfed.rounds.world import World
from leanfed.wireless.cost import FLOPS_PER_CYCLE
from leanfed.wireless.fleet import Fleet, FleetState
from leanfed.wireless.units import dbm_to_w

MOST_BITS_PER_HZ = 40.0  # a link faster than this counts as this fast: 2^40 is past any radio
UNMEASURED_BIT_PER_S = 1e6  # before the first upload, where no profile gives a gain (assumed)


@dataclass(frozen=True)
class DeviceReport:
    """One client's device: what it reported, and the throughput that the server measured."""

    device: Device
    upload_bit_per_s: float | None = None  # as the server saw its last update arrive
    upload_share: float = 1.0  # the share of the band that it had then


@final
class ReportedFleet(Fleet):
    """Devices by their newest reports; the state of a round is made once and then kept."""

    def __init__(self, radio: RadioSettings, world: World, profile: Fleet) -> None:
        self.radio = radio
        self.world = world
        self.profile = profile
        self.newest: dict[int, DeviceReport] = {}
        self._states: dict[int, FleetState] = {}

    @property
    @override
    def devices(self) -> int:
        return self.profile.devices

    def renew(self, number: int) -> None:
        """Make the state of a round from the newest reports; it then holds until the next renewal."""
        self._states = {number: self._make(number)}

    @override
    def state(self, number: int) -> FleetState:
        if number not in self._states:
            self._states[number] = self._make(number)
        return self._states[number]

    def _make(self, number: int) -> FleetState:
        base = self.profile.state(number)
        given = self.radio.fleet_file is not None
        power = base.power_w if given else np.full(self.devices, _middle_power_w(self.radio))
        gain, cpu, zeta = base.gain.copy(), base.cpu_hz.copy(), base.energy_coefficient.copy()
        if not given:
            zeta = np.zeros(self.devices)
            gain = np.array([self._gain(UNMEASURED_BIT_PER_S, 1.0, p, base) for p in power])
        for client, report in self.newest.items():
            cpu[client] = self.cpu_hz(report.device)
            if (measured := self._zeta(report.device, cpu[client])) is not None:
                zeta[client] = measured
            if report.upload_bit_per_s is not None and not given:
                gain[client] = self._gain(report.upload_bit_per_s, report.upload_share, power[client], base)
        return FleetState(gain, power, cpu, zeta, base.bandwidth_hz, base.noise_w_per_hz)

    def cpu_hz(self, device: Device) -> float:
        """omega at which Eq. (12) gives the measured seconds; by the calibration before there are any."""
        if device.step_s is None or device.step_samples is None:
            return device.flops_per_s / FLOPS_PER_CYCLE
        return self._cycles(device) / device.step_s

    def _cycles(self, device: Device) -> float:
        samples = device.step_samples or 0
        batches = np.array([max(1.0, samples / self.world.training.batch_size)])
        share = computed_share(self.world, self.radio, np.array([device.step_r or 0.0]), batches)
        return samples * self.radio.cycles_per_sample * float(share[0])

    def _zeta(self, device: Device, cpu_hz: float) -> float | None:
        """zeta at which Eq. (13) gives the measured joules: E / (omega^3 tau) = E / (omega^2 cycles)."""
        if device.step_j is None or device.step_s is None:
            return None
        return device.step_j / (cpu_hz**3 * device.step_s)

    def _gain(self, bit_per_s: float, share: float, power_w: float, base: FleetState) -> float:
        """h at which Eq. (7) gives the rate on that share: (2^(R / lW) - 1) N0 l W / p."""
        band = share * float(base.bandwidth_hz)
        bits_per_hz = min(bit_per_s / band, MOST_BITS_PER_HZ)
        return float(np.expm1(bits_per_hz * np.log(2.0)) * base.noise_w_per_hz * band / power_w)


def _middle_power_w(radio: RadioSettings) -> float:
    low, high = radio.fleet.power_dbm
    return float(dbm_to_w((low + high) / 2))
