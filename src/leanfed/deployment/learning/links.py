"""A device's link and speed as they were measured: seconds = fixed + bytes / rate each way, and how sure that is.

Every message gives a sample of each way. The way up lasts from the device's answer, by its clock, to our seeing it; the
way down is what is left of the whole time less the device's own work. By how much the clocks differ is added to the one
and taken from the other, so that it cancels in their sum and touches no rate. Seconds of training are the device's own:
they never count as the link's.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import numpy as np

from leanfed.records import Floats

KEPT: Final = 40  # samples of a way
HALF_LIFE: Final = 15.0  # samples after which one counts for half
GUESS_S_PER_BYTE, GUESS_DEVIATION = 1e-6, 1e-5  # before messages of different sizes: 8 Mbit/s, or far less
GUESS_FIXED_S: Final = 1.0  # before any message
LEAST_S_PER_BYTE: Final = 1e-9  # 8 Gbit/s
GUESS_NOISE_S, GUESS_COUNTS = 0.3, 1.0  # what seconds vary by, and for how many samples that guess counts
LEAST_NOISE_S: Final = 0.02
HUBER: Final = 1.345  # deviations beyond which a sample pulls no harder
CLOCK_STEP_S: Final = 10.0  # a step of a device's clock that is told from a slow message
RECENT: Final = 9  # trainings, loadings and tests whose median counts
DEVIATION_OF_MEDIAN: Final = 1.4826  # of the median absolute deviation, for a normal distribution


@dataclass(frozen=True)
class Line:
    """A fit of seconds over bytes, and what is not known of it."""

    mean_bytes: float
    mean_s: float  # at mean_bytes
    s_per_byte: float
    noise_s: float  # by which single messages vary
    mean_deviation_s: float  # of mean_s
    slope_deviation: float  # of s_per_byte

    def seconds(self, size: float) -> float:
        """Expected seconds of so many bytes."""
        return self.mean_s + self.s_per_byte * (size - self.mean_bytes)

    def deviation_s(self, size: float) -> float:
        """Standard deviation of `seconds`: by how much the expectation itself may be wrong."""
        return math.hypot(self.mean_deviation_s, (size - self.mean_bytes) * self.slope_deviation)

    @property
    def bit_per_s(self) -> float:
        """The rate."""
        return 8.0 / self.s_per_byte


UNKNOWN_LINE: Final = Line(0.0, GUESS_FIXED_S, GUESS_S_PER_BYTE, GUESS_NOISE_S, GUESS_FIXED_S, GUESS_DEVIATION)


def fit(sizes: Sequence[float], seconds: Sequence[float]) -> Line:
    """A robust line through samples, the newest last; its slope begins with a guess and is never below zero.

    >>> line = fit([0, 0, 100_000, 100_000], [0.1, 0.1, 0.9, 0.9])  # 0.8 s for 100 kB: 1 Mbit/s
    >>> round(line.seconds(50_000), 2), round(line.bit_per_s / 1e6, 1)
    (0.5, 1.0)
    """
    if not sizes:
        return UNKNOWN_LINE
    x, y = np.asarray(sizes, dtype=float), np.asarray(seconds, dtype=float)
    age = 0.5 ** (np.arange(len(x))[::-1] / HALF_LIFE)
    slope, level = GUESS_S_PER_BYTE, float(np.median(y - GUESS_S_PER_BYTE * x))
    line = UNKNOWN_LINE
    for _ in range(20):
        rest = np.abs(y - level - slope * x)
        reach = HUBER * max(DEVIATION_OF_MEDIAN * float(np.median(rest)), LEAST_NOISE_S)
        line = _weighted(x, y, age, np.minimum(1.0, reach / np.maximum(rest, 1e-12)))
        before, slope, level = slope, line.s_per_byte, line.seconds(0.0)
        if abs(slope - before) <= 1e-6 * slope:
            break
    return line


def _weighted(x: Floats, y: Floats, age: Floats, trust: Floats) -> Line:
    """The weighted line with a normal guess of its slope; the noise has a guess of its own that a few samples outweigh.

    A sample that is trusted less counts for less, and for its trusted part only in the noise.
    """
    weight = age * trust
    total = float(weight.sum())
    x0, y0 = float(weight @ x) / total, float(weight @ y) / total
    spread, product = float(weight @ (x - x0) ** 2), float(weight @ ((x - x0) * (y - y0)))
    noise = GUESS_NOISE_S
    for _ in range(3):  # the noise decides how much the guess counts, and the slope what is noise
        known, guessed = spread / noise**2, 1.0 / GUESS_DEVIATION**2
        slope = max((product / noise**2 + GUESS_S_PER_BYTE * guessed) / (known + guessed), LEAST_S_PER_BYTE)
        errors = float(age @ (trust * (y - y0 - slope * (x - x0))) ** 2)
        noise = math.sqrt((GUESS_COUNTS * GUESS_NOISE_S**2 + errors) / (GUESS_COUNTS + float(age.sum())))
        noise = max(noise, LEAST_NOISE_S)
    deviation = (spread / noise**2 + guessed) ** -0.5
    return Line(x0, y0, slope, noise, noise / math.sqrt(total), deviation)


@dataclass
class Way:
    """The samples of one direction, newest last."""

    sizes: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def add(self, size: float, seconds: float) -> None:
        """Keep one more, and the newest of the others."""
        self.sizes, self.seconds = [*self.sizes, size][-KEPT:], [*self.seconds, seconds][-KEPT:]

    def shift(self, seconds: float) -> None:
        """Every sample so many seconds longer: a clock was set."""
        self.seconds = [one + seconds for one in self.seconds]

    @property
    def line(self) -> Line:
        """The fit."""
        return fit(self.sizes, self.seconds)


@dataclass(frozen=True)
class Passage:
    """One message's way to a device and back; `up_s` is by the device's clock."""

    down_bytes: float
    up_bytes: float
    link_s: float  # of both ways: the whole time less the device's own work
    up_s: float


@dataclass
class Measured:
    """What is known of one device; goes into the checkpoint."""

    down: Way = field(default_factory=Way)
    up: Way = field(default_factory=Way)
    ready_s: list[float] = field(default_factory=list)  # to load data, head and base
    test_s: list[float] = field(default_factory=list)
    trainings: list[tuple[float, float, float, int]] = field(default_factory=list)  # s, samples, r, head steps (0: own)
    heard: int = -1  # the last round in which it was measured

    def note_passage(self, passage: Passage, number: int) -> None:
        """Keep what one message told of the link; a device's clock that was set is recognised by both ways."""
        down_s, self.heard = passage.link_s - passage.up_s, max(self.heard, number)
        if self.up.sizes:
            step = passage.up_s - self.up.line.seconds(passage.up_bytes)
            back = down_s - self.down.line.seconds(passage.down_bytes)
            if abs(step) > CLOCK_STEP_S and abs(step + back) < abs(step) / 2:
                self.up.shift(step)
                self.down.shift(-step)
        self.down.add(passage.down_bytes, down_s)
        self.up.add(passage.up_bytes, passage.up_s)

    def note_work(self, *, ready_s: float, test_s: float | None) -> None:
        """Keep the device's own seconds beside training."""
        self.ready_s = [*self.ready_s, ready_s][-RECENT:]
        if test_s is not None:
            self.test_s = [*self.test_s, test_s][-RECENT:]

    def note_training(self, seconds: float, samples: float, r: float, head_steps: int | None) -> None:
        """Keep the device's own seconds of a training."""
        self.trainings = [*self.trainings, (seconds, samples, r, head_steps or 0)][-RECENT:]

    def fixed_s(self, down_bytes: float, *, tests: bool) -> float:
        """Seconds of a round beside training and the bytes of the update."""
        work = _median(self.ready_s) + (_median(self.test_s) if tests else 0.0)
        return max(self.down.line.seconds(down_bytes) + self.up.line.seconds(0.0) + work, 1e-3)

    def deviation_s(self, down_bytes: float, up_bytes: float) -> float:
        """By how much the expected seconds of the link may be wrong."""
        return math.hypot(self.down.line.deviation_s(down_bytes), self.up.line.deviation_s(up_bytes))

    def to_json(self) -> dict[str, Any]:
        """Plain values for the checkpoint."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Measured:
        """The inverse of `to_json`."""
        ways = {name: Way(**values[name]) for name in ("down", "up")}
        trainings = [(float(s), float(n), float(r), int(steps)) for s, n, r, steps in values["trainings"]]
        return cls(**{**values, **ways, "trainings": trainings})


def _median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else 0.0
