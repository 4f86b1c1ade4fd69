"""The fleet as its devices report it: what the allocator plans from.

Each device has its measured curves: its own link (`links.py`), its own seconds of a sample, its own watts. There is no
band to share, no gain and no clock. Before a first training a sample's seconds follow from the calibration (two
operations a cycle). Power of the radio is the middle of the settings' range. Where the platform does not report joules,
computing is not charged.

A fleet file in the settings says what the radio is like: then its gains, powers and band hold, and of the devices only
the clock is measured: it is as fast as the model's cycles over the measured seconds, and joules of a training become
zeta, Eq. (13).
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import final

import numpy as np
from typing_extensions import override

from leanfed.deployment.learning.links import Measured
from leanfed.deployment.learning.messages import Device
from leanfed.records import Floats
from leanfed.rounds.costs import RadioSettings, computed_share
from leanfed.rounds.world import World
from leanfed.wireless.cost import FLOPS_PER_CYCLE
from leanfed.wireless.fleet import Curves, Fleet, FleetState
from leanfed.wireless.units import dbm_to_w


@dataclass(frozen=True)
class DeviceReport:
    """One client's device: what it reported, what was measured of it, and what the next order brings it."""

    device: Device
    measured: Measured = field(default_factory=Measured)
    base_bytes: int = 0
    tests: bool = False  # whether a test is due before the training


NOT_HEARD_OF = DeviceReport(Device(flops_per_s=2e9))


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
        cpu, zeta = base.cpu_hz.copy(), base.energy_coefficient * (self.radio.fleet_file is not None)
        for client, report in self.newest.items():
            cpu[client] = self.cpu_hz(report.device)
            if (measured := self._zeta(report.device, cpu[client])) is not None:
                zeta[client] = measured
        if self.radio.fleet_file is not None:
            return FleetState(base.gain, base.power_w, cpu, zeta, base.bandwidth_hz, base.noise_w_per_hz)
        power = np.full(self.devices, _middle_power_w(self.radio))
        return FleetState(base.gain, power, cpu, zeta, base.bandwidth_hz, base.noise_w_per_hz, curves=self._curves(cpu))

    def _curves(self, cpu_hz: Floats) -> Curves:
        """Every device's measured curves; of one that is not there yet, the guesses."""
        found = Curves(*(np.zeros(self.devices) for _ in range(4)))
        for client in range(self.devices):
            report = self.newest.get(client, NOT_HEARD_OF)
            measured, device = report.measured, report.device
            found.link_bit_per_s[client] = measured.up.line.bit_per_s
            found.fixed_s[client] = measured.fixed_s(report.base_bytes, tests=report.tests)
            found.sample_s[client] = self._sample_s(measured) or self.radio.cycles_per_sample / cpu_hz[client]
            if device.step_j is not None and device.step_s is not None:
                found.compute_w[client] = device.step_j / device.step_s
        return found

    def _sample_s(self, measured: Measured) -> float:
        """Seconds of a sample on the whole model by the median of the last trainings; 0 before the first."""
        each = [seconds / self._work(samples, r, steps) for seconds, samples, r, steps in measured.trainings]
        return statistics.median(each) if each else 0.0

    def _work(self, samples: float, r: float, head_steps: int | None) -> float:
        """Samples of a training, each by its share of a whole model's step."""
        batches = np.array([max(1.0, samples / self.world.training.batch_size)])
        share = computed_share(self.world, self.radio, np.array([r]), batches, head_steps or None)
        return samples * float(share[0])

    def deviation_s(self, client: int, up_bytes: float) -> float:
        """By how much the expected seconds of a client's link may be wrong, at an upload of so many bytes."""
        report = self.newest.get(client, NOT_HEARD_OF)
        return report.measured.deviation_s(report.base_bytes, up_bytes)

    def cpu_hz(self, device: Device) -> float:
        """omega at which Eq. (12) gives the measured seconds; by the calibration before there are any."""
        if device.step_s is None or device.step_samples is None:
            return device.flops_per_s / FLOPS_PER_CYCLE
        return self._cycles(device) / device.step_s

    def _cycles(self, device: Device) -> float:
        work = self._work(device.step_samples or 0, device.step_r or 0.0, device.step_head_steps)
        return self.radio.cycles_per_sample * work

    def _zeta(self, device: Device, cpu_hz: float) -> float | None:
        """zeta at which Eq. (13) gives the measured joules: E / (omega^3 tau) = E / (omega^2 cycles)."""
        if device.step_j is None or device.step_s is None:
            return None
        return device.step_j / (cpu_hz**3 * device.step_s)


def _middle_power_w(radio: RadioSettings) -> float:
    low, high = radio.fleet.power_dbm
    return float(dbm_to_w((low + high) / 2))
