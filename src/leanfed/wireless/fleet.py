"""The devices of a run: how they are drawn, and what they are like in a given round, in SI units.

Rounds count from zero.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Self, final

import numpy as np
from pydantic import Field, model_validator
from typing_extensions import override

from leanfed.records import Section
from leanfed.streams import stream
from leanfed.wireless import channel
from leanfed.wireless.units import Array, dbm_to_w

Quantity = Literal["place", "cpu", "power", "fading", "shadowing"]
Positive = Annotated[float, Field(gt=0, le=1e30, allow_inf_nan=False)]  # squares and products stay finite
Finite = Annotated[float, Field(ge=-1e3, le=1e3, allow_inf_nan=False)]  # decibels: ratios of 1e100 and less
NotNegative = Annotated[float, Field(ge=0, le=1e30, allow_inf_nan=False)]


class FleetSettings(Section):
    """How devices are drawn; the defaults are the paper's parameter table unless a comment says otherwise.

    >>> FleetSettings(devices=10, hold=("place",), bandwidth_hz=(10e6, 50e6)).devices
    10
    """

    devices: int = Field(default=100, ge=1, le=1_000_000)
    """N, how many devices there are; a run takes its number of clients."""
    radius_m: Positive = 200.0
    """Devices are uniform in this disc."""
    nearest_m: Positive = 1.0
    """Least distance to the base station (assumed); closer by, the path loss does not hold."""
    path_loss_at_1km_db: Finite = 128.1
    """Path loss at one kilometre."""
    path_loss_per_decade_db: NotNegative = 37.6
    """How much it grows for ten times the distance."""
    rayleigh: bool = False
    """Whether Rayleigh fading multiplies the gain; the paper's gain is the path loss alone."""
    shadowing_db: NotNegative = 0.0
    """Standard deviation of log-normal shadowing; 0 switches it off."""
    cpu_hz: tuple[Positive, Positive] = (0.5e9, 3.0e9)
    """Range from which clocks are drawn, uniformly."""
    slow_share: float = Field(default=0.0, ge=0, le=1)
    """Share of devices whose clocks are slower than that by `slow_factor`; the same ones in every round."""
    slow_factor: float = Field(default=10.0, ge=1, le=1e6)
    """How many times slower they are."""
    power_dbm: tuple[Finite, Finite] = (20.0, 28.0)
    """Range from which transmit powers are drawn, uniformly in dBm."""
    noise_dbm_per_hz: Finite = -174.0
    """Density of the noise."""
    bandwidth_hz: Positive | tuple[Positive, Positive] = 10e6
    """Of the whole uplink: a constant, or a range from which every round draws."""
    bandwidth_trace_hz: tuple[Positive, ...] = ()
    """Bandwidth of each round, the last value for all later ones; takes the place of bandwidth_hz."""
    energy_coefficient: NotNegative = 1e-28
    """zeta in J s^2 (assumed)."""
    hold: tuple[Quantity, ...] = ()
    """Quantities that are drawn once and kept; the others are redrawn every round, as in the paper."""

    @model_validator(mode="after")
    def _ranges_ascend(self) -> Self:
        ranges = {"nearest_m to radius_m": (self.nearest_m, self.radius_m)}
        ranges |= {"cpu_hz": self.cpu_hz, "power_dbm": self.power_dbm}
        if isinstance(self.bandwidth_hz, tuple):
            ranges["bandwidth_hz"] = self.bandwidth_hz
        for name, (low, high) in ranges.items():
            if low > high:
                raise ValueError(f"{name} is the range {low} to {high}, which is empty; give the smaller number first")
        return self


@dataclass(frozen=True, eq=False)
class Curves:
    """Measured devices of one round, an entry for each: what takes the place of gain, band and clock."""

    link_bit_per_s: Array  # of the way up
    fixed_s: Array  # that pass whatever is trained and sent: the base's way down, loading, a test that is due
    sample_s: Array  # of one sample on the whole model, as the device measured it
    compute_w: Array  # while it computes; 0 where the platform does not tell

    def of(self, devices: Sequence[int]) -> Curves:
        """The curves of some devices."""
        chosen = list(devices)
        return Curves(self.link_bit_per_s[chosen], self.fixed_s[chosen], self.sample_s[chosen], self.compute_w[chosen])


@dataclass(frozen=True, eq=False)
class FleetState:
    """What the devices are like in one round; arrays hold one entry per device (a stack adds rounds in front)."""

    gain: Array  # h, power ratio between device and base station
    power_w: Array
    cpu_hz: Array
    energy_coefficient: Array  # zeta, J s^2
    bandwidth_hz: Array  # of the whole uplink: a scalar, or (rounds, 1) in a stack
    noise_w_per_hz: float
    curves: Curves | None = None  # of measured devices, each on a link of its own; None: they share the band


class Fleet(ABC):
    """Devices over time: a state for every round."""

    @property
    @abstractmethod
    def devices(self) -> int:
        """N, the number of devices."""

    @abstractmethod
    def state(self, number: int) -> FleetState:
        """What the devices are like in round `number`; the same at every call."""


@final
@dataclass(frozen=True)
class SampledFleet(Fleet):
    """Devices drawn from settings; a draw depends on the seed, the quantity and the round, and on nothing else."""

    settings: FleetSettings
    seed: int = 0

    @property
    @override
    def devices(self) -> int:
        return self.settings.devices

    @override
    def state(self, number: int) -> FleetState:
        s = self.settings
        return FleetState(
            gain=self._gain(number),
            power_w=dbm_to_w(self._stream("power", number).uniform(*s.power_dbm, s.devices)),
            cpu_hz=self._stream("cpu", number).uniform(*s.cpu_hz, s.devices) / self._slowness(),
            energy_coefficient=np.full(s.devices, s.energy_coefficient),
            bandwidth_hz=np.asarray(bandwidth_in_round(s, self.seed, number)),
            noise_w_per_hz=float(dbm_to_w(s.noise_dbm_per_hz)),
        )

    def _slowness(self) -> Array | float:
        """(N,) by what factor clocks are slower than drawn."""
        s, slow = self.settings, round(self.settings.slow_share * self.settings.devices)
        if not slow:
            return 1.0
        factors = np.ones(s.devices)
        factors[stream(self.seed, "fleet", "slow").permutation(s.devices)[:slow]] = s.slow_factor
        return factors

    def _gain(self, number: int) -> Array:
        """Path loss, times fading and shadowing where they are switched on."""
        gain = path_gain(self.settings, self.distances_m(number))
        if self.settings.rayleigh:
            gain = gain * channel.rayleigh_fading(self._stream("fading", number), self.devices)
        if self.settings.shadowing_db > 0.0:
            rng, deviation_db = self._stream("shadowing", number), self.settings.shadowing_db
            gain = gain * channel.log_normal_shadowing(rng, self.devices, deviation_db=deviation_db)
        return gain

    def distances_m(self, number: int) -> Array:
        """How far the devices stand from the base station in round `number`."""
        s, rng = self.settings, self._stream("place", number)
        return channel.distances_in_disc(rng, s.devices, radius_m=s.radius_m, nearest_m=s.nearest_m)

    def _stream(self, quantity: Quantity, number: int) -> np.random.Generator:
        moment = "held" if quantity in self.settings.hold else number
        return stream(self.seed, "fleet", quantity, moment)


def path_gain(settings: FleetSettings, distance_m: Array) -> Array:
    """Power gain at a distance under the settings' path loss."""
    return channel.path_gain(
        distance_m, at_1km_db=settings.path_loss_at_1km_db, per_decade_db=settings.path_loss_per_decade_db
    )


def bandwidth_in_round(settings: FleetSettings, seed: int, number: int) -> float:
    """Bandwidth of the whole uplink in a round: the trace, else a draw from the range, else the constant."""
    if settings.bandwidth_trace_hz:
        return settings.bandwidth_trace_hz[min(number, len(settings.bandwidth_trace_hz) - 1)]
    if isinstance(settings.bandwidth_hz, tuple):
        return float(stream(seed, "fleet", "bandwidth", number).uniform(*settings.bandwidth_hz))
    return settings.bandwidth_hz


def stack(states: Sequence[FleetState]) -> FleetState:
    """Several rounds as one state with (rounds, devices) arrays, for costs of a whole run at once."""
    return FleetState(
        gain=np.stack([state.gain for state in states]),
        power_w=np.stack([state.power_w for state in states]),
        cpu_hz=np.stack([state.cpu_hz for state in states]),
        energy_coefficient=np.stack([state.energy_coefficient for state in states]),
        bandwidth_hz=np.stack([state.bandwidth_hz for state in states])[:, np.newaxis],
        noise_w_per_hz=states[0].noise_w_per_hz,
    )
