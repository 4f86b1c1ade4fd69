"""One round's allocation problem, Eq. (27) without the sum over rounds: arrays per client, SI units, checked once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from leanfed.allocation.curves import Floats
from leanfed.errors import InputError, nearest
from leanfed.files import parse_json, read_text
from leanfed.wireless.cost import computation_cycles, computation_latency, computation_power, computed_share

# Per client: (lowest allowed, highest allowed, null means no limit).
_PER_CLIENT: dict[str, tuple[float, float, bool]] = {
    "weights": (0.0, np.inf, False),
    "channel_gain": (0.0, np.inf, False),
    "power_w": (0.0, np.inf, False),
    "cpu_hz": (np.nextafter(0.0, 1.0), np.inf, False),
    "batch_size": (0.0, np.inf, False),
    "cycles_per_sample": (0.0, np.inf, False),
    "energy_coefficient": (0.0, np.inf, False),
    "deadline_s": (0.0, np.inf, True),
    "energy_budget_j": (0.0, np.inf, True),
    "k_min": (0.0, 1.0, False),
    "k_max": (0.0, 1.0, False),
    "r_min": (0.0, 1.0, False),
    "base_size": (1.0, np.inf, False),
    "head_size": (0.0, np.inf, False),
    "head_work": (0.0, np.inf, False),
}
_SHARED: dict[str, tuple[float, float]] = {
    "bandwidth_hz": (np.nextafter(0.0, 1.0), np.inf),
    "noise_w_per_hz": (np.nextafter(0.0, 1.0), np.inf),
    "value_bits": (1.0, 1024.0),
    "theta1": (0.0, np.inf),
    "theta2": (0.0, np.inf),
}
_WHOLE = ("base_size", "head_size", "value_bits")
_OPTIONAL = {"k_min": 0.0, "k_max": 1.0, "r_min": 0.0, "head_work": 1.0}


@dataclass(frozen=True, eq=False)
class Problem:
    """Who wants to upload, over which band, within which limits; build it with `Problem.of` or `from_json`."""

    weights: Floats  # gamma_n
    channel_gain: Floats  # h_n
    power_w: Floats  # p_n
    cpu_hz: Floats  # omega_n
    batch_size: Floats  # b_n
    cycles_per_sample: Floats  # C
    energy_coefficient: Floats  # zeta_n, J s^2
    deadline_s: Floats  # tau_max, inf for no limit
    energy_budget_j: Floats  # E_max of this round, inf for no limit
    k_min: Floats
    k_max: Floats
    r_min: Floats
    base_size: Floats  # d_B, of this client's model
    head_size: Floats  # d_P
    head_work: Floats  # of a whole head, over its share in Eq. (12): more by further steps, less by operations
    bandwidth_hz: float  # W
    noise_w_per_hz: float  # N0
    value_bits: int  # F
    theta1: float
    theta2: float

    @classmethod
    def of(cls, **values: Any) -> Problem:
        """Build from keywords named as in the problem file; scalars stand for every client.

        >>> Problem.of(weights=[0.5, 0.5], channel_gain=1e-9, power_w=0.2, cpu_hz=1e9, batch_size=32,
        ...     cycles_per_sample=8e6, energy_coefficient=1e-28, deadline_s=0.8, energy_budget_j=None,
        ...     bandwidth_hz=1e6, noise_w_per_hz=4e-21, base_size=50692, head_size=11014, value_bits=32,
        ...     theta1=0.1, theta2=1.0).clients
        2
        """
        _check_keys(values)
        values = {**_OPTIONAL, **values}
        shared: dict[str, Any] = {name: _shared(name, values[name]) for name in _SHARED}
        count = _count_clients(values)
        per_client: dict[str, Any] = {name: _per_client(name, values[name], count) for name in _PER_CLIENT}
        _check_together(per_client, shared)
        return cls(**per_client, **shared)

    @classmethod
    def from_json(cls, source: str | Path | Mapping[str, Any]) -> Problem:
        """Read a problem from a file (its path), from JSON text, or from its parsed object."""
        if isinstance(source, Mapping):
            return cls.of(**source)
        is_text = isinstance(source, str) and source.lstrip().startswith(("{", "["))
        text, name = (str(source), "The problem") if is_text else (read_text(Path(source)), str(source))
        try:
            value = parse_json(text)
        except ValueError as error:
            raise InputError(f"{name} is not valid JSON: {error}. Correct it at that place.") from error
        if not isinstance(value, dict):
            raise InputError(f"{name} holds a JSON {type(value).__name__}, not an object with the problem's fields.")
        return cls.of(**value)

    def to_json(self) -> dict[str, Any]:
        """The object of the problem file; no limit becomes null."""
        return {field.name: _plain(field.name, getattr(self, field.name)) for field in fields(self)}

    @property
    def clients(self) -> int:
        """Number of clients N."""
        return self.weights.size

    @property
    def snr(self) -> Floats:
        """x0 = h p/(N0 W): signal to noise over the whole band."""
        return self.channel_gain * self.power_w / (self.noise_w_per_hz * self.bandwidth_hz)

    @property
    def base_s(self) -> Floats:
        """tc0 = b C d_B/(omega d): seconds to compute the base layers, Eq. (12) at r = 0."""
        return self._seconds(computed_share(self.base_size, self.head_size, 0.0))

    @property
    def head_s(self) -> Floats:
        """tc1 = b C d_P/(omega d), times its work: seconds that the whole head adds, the slope of Eq. (12) in r."""
        return self._seconds(self.head_size / (self.base_size + self.head_size)) * self.head_work

    def compute_s(self, r: Floats | float) -> Floats:
        """tc0 + tc1 r: seconds to compute with heads kept at r, Eq. (12)."""
        return self.base_s + self.head_s * r

    @property
    def compute_power_w(self) -> Floats:
        """zeta omega^3: watts while computing, Eq. (13)."""
        return computation_power(self.energy_coefficient, self.cpu_hz)

    def _seconds(self, share: Floats | float) -> Floats:
        """Seconds to compute on a share of the model's weights, Eq. (12)."""
        return computation_latency(computation_cycles(self.batch_size, self.cycles_per_sample, share), self.cpu_hz)

    def with_(self, **changes: Any) -> Problem:
        """A copy with some fields changed, checked as a new problem is."""
        _check_keys(changes, complete=False)
        known = {field.name: getattr(self, field.name) for field in fields(self)}
        return Problem.of(**{**known, **changes})

    def only(self, chosen: Any) -> Problem:
        """The problem of some clients (an index or mask); weights stay as they are."""
        return replace(self, **{name: getattr(self, name)[chosen] for name in _PER_CLIENT})


def _check_keys(values: Mapping[str, Any], *, complete: bool = True) -> None:
    known = {**_PER_CLIENT, **_SHARED}
    for key in values:
        if key not in known:
            raise InputError(f"Unknown field {key!r} in the problem; {nearest(key, known)}")
    missing = [key for key in known if key not in values and key not in _OPTIONAL]
    if complete and missing:
        raise InputError(f"The problem lacks {', '.join(missing)}. Add the missing fields; docs show an example.")


def _count_clients(values: Mapping[str, Any]) -> int:
    """The common length of the fields given per client."""
    lengths = {name: np.size(values[name]) for name in _PER_CLIENT if np.ndim(values[name]) > 0}
    if not lengths:
        return 1
    count = lengths.get("weights", max(lengths.values()))
    for name, length in lengths.items():
        if length != count:
            raise InputError(
                f"{name} has {length} values for {count} clients; give one per client, or a single number."
            )
    if count == 0:
        raise InputError("The problem has no clients; give at least one value in weights.")
    return count


def _per_client(name: str, value: Any, count: int) -> Floats:
    """One checked float array of length `count`, read-only."""
    lowest, highest, unlimited = _PER_CLIENT[name]
    array = _numbers(name, value, count, unlimited)
    bad = ~((array >= lowest) & (array <= highest)) | (np.isinf(array) & (not unlimited))
    if bad.any():
        client = int(np.argmax(bad))
        raise InputError(f"{name} of client {client} is {array[client]:g}; {_allowed(lowest, highest, unlimited)}")
    broken = array != np.floor(array) if name in _WHOLE else bad
    if broken.any():
        client = int(np.argmax(broken))
        raise InputError(f"{name} of client {client} is {array[client]:g}; it counts things, so give a whole number.")
    array.setflags(write=False)
    return array


def _numbers(name: str, value: Any, count: int, unlimited: bool) -> Floats:
    """A fresh float array; item by item only where the whole is not plainly numeric."""
    if np.ndim(value) == 0:
        return np.full(count, _number(name, value, 0, unlimited))
    whole = np.asarray(value)
    if whole.ndim == 1 and whole.dtype.kind in "fiu":
        return whole.astype(float)
    return np.array([_number(name, item, client, unlimited) for client, item in enumerate(value)])


def _number(name: str, item: Any, client: int, unlimited: bool) -> float:
    if item is None and unlimited:
        return np.inf
    if isinstance(item, bool | np.bool_) or not isinstance(item, int | float | np.integer | np.floating):
        hint = "a number, or null for no limit" if unlimited else "a number"
        raise InputError(f"{name} of client {client} is {item!r}; give {hint}.")
    return float(item)


def _shared(name: str, value: Any) -> float | int:
    """One checked number that holds for all clients."""
    lowest, highest = _SHARED[name]
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise InputError(f"{name} is {value!r}; give one number for all clients.")
    if not lowest <= value <= highest or np.isinf(value):
        raise InputError(f"{name} is {value:g}; {_allowed(lowest, highest, False)}")
    if name in _WHOLE and value != int(value):
        raise InputError(f"{name} is {value:g}; it counts things, so give a whole number.")
    return int(value) if name in _WHOLE else float(value)


def _allowed(lowest: float, highest: float, unlimited: bool) -> str:
    bound = "above 0" if 0.0 < lowest < 1e-300 else f"at least {lowest:g}"
    upper = f" and at most {highest:g}" if np.isfinite(highest) else " and finite"
    return f"it must be {bound}{'' if unlimited else upper}{', or null for no limit' if unlimited else ''}."


def _check_together(per_client: Mapping[str, Floats], shared: Mapping[str, float]) -> None:
    crossed = per_client["k_min"] > per_client["k_max"]
    if crossed.any():
        client = int(np.argmax(crossed))
        low, high = per_client["k_min"][client], per_client["k_max"][client]
        raise InputError(f"k_min of client {client} is {low:g}, above its k_max {high:g}; lower k_min or raise k_max.")
    if shared["theta1"] + shared["theta2"] <= 0.0:
        raise InputError("theta1 and theta2 are both 0, so every plan is equal; make one of them positive.")
    if per_client["weights"].sum() <= 0.0:
        raise InputError("weights sum to 0; give at least one client a positive weight.")


def _plain(name: str, value: Any) -> Any:
    """JSON's own types; an infinite limit is null, and equal values per client stay a list."""
    if isinstance(value, np.ndarray):
        if name in _WHOLE:
            return [int(item) for item in value.tolist()]
        return [None if np.isinf(item) else item for item in value.tolist()]
    return value
