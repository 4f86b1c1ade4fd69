"""Where a problem comes from: a problem file, or a fleet with the sizes and limits of one of the paper's models."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from leanfed.allocation.curves import Floats
from leanfed.allocation.forms import bounded
from leanfed.allocation.problem import Problem
from leanfed.errors import InputError, nearest
from leanfed.files import make_folder, parse_json, read_text, write_text
from leanfed.wireless.fleet import Fleet, FleetSettings, FleetState, SampledFleet
from leanfed.wireless.fleet_file import MeasuredFleet, read_fleet

# Sizes are the paper's; the rest is assumed, chosen so that every limit is felt by 100 clients at 10 MHz.
MODEL_PRESETS: dict[str, dict[str, float]] = {
    "lenet5": {
        "base_size": 50_692,
        "head_size": 11_014,
        "cycles_per_sample": 8e6,
        "deadline_s": 0.8,
        "energy_budget_j": 0.3,
    },
    "resnet18": {
        "base_size": 6_448_192,
        "head_size": 4_725_770,
        "cycles_per_sample": 1e9,
        "deadline_s": 105.0,
        "energy_budget_j": 60.0,
    },
}
SHARED_PRESET: dict[str, float] = {"batch_size": 32, "value_bits": 32, "theta1": 0.1, "theta2": 1.0}
PAPER_FLEET = "paper"


@dataclass(frozen=True, eq=False)
class Cell:
    """A problem, how far its clients stand from the base station where that is known, and what they are called."""

    problem: Problem
    distance_m: Floats | None = None
    names: tuple[str, ...] = ()  # of a fleet file; else clients are numbered
    stated: frozenset[str] = frozenset()  # fields that the user's file gives

    def name(self, client: int) -> str:
        """What a client is called."""
        return self.names[client] if self.names else f"client {client}"

    def changed(self, changes: Mapping[str, Any]) -> Cell:
        """With some fields of the problem given otherwise."""
        stated = self.stated | frozenset(changes)
        return replace(self, problem=self.problem.with_(**changes) if changes else self.problem, stated=stated)

    def in_form(self, form: str) -> Cell:
        """With the form's bounds on k and r where none are stated."""
        return replace(self, problem=bounded(self.problem, form, self.stated))


Source = Callable[[int | None], Cell]  # the cell with this many clients; None: all there are


def from_file(path: Path, *, clients: int | None = None) -> Source:
    """A problem file; fewer clients are its first ones, with weights that add up to what all of theirs did."""
    problem = Problem.from_json(path)
    stated = frozenset(parse_json(read_text(path)))

    def cell(other: int | None) -> Cell:
        count = clients if other is None else other
        if count is None:
            return Cell(problem, stated=stated)
        if not 1 <= count <= problem.clients:
            raise InputError(f"clients is {count}, but {path} holds {problem.clients}; ask for 1 to {problem.clients}.")
        some = problem.only(slice(count))
        kept = some.weights.sum()
        if kept <= 0.0:
            raise InputError(f"The first {count} clients of {path} have no weight; ask for more of them.")
        return Cell(some.with_(weights=some.weights * (problem.weights.sum() / kept)), stated=stated)

    return cell


def from_fleet(
    fleet: str, *, model: str = "lenet5", clients: int | None = None, seed: int = 0, radius_m: float | None = None
) -> Source:
    """The paper's fleet (`paper`) or a fleet file, in its first round, with a model's preset; equal weights.

    A radius other than the paper's is for the fleet that is drawn.

    >>> from_fleet("paper", clients=4)(None).problem.clients
    4
    """
    if model not in MODEL_PRESETS:
        raise InputError(f"Unknown model {model!r}; {nearest(model, MODEL_PRESETS)}")
    if fleet != PAPER_FLEET and Path(fleet).suffix not in (".csv", ".parquet"):
        raise InputError(f"Unknown fleet {fleet!r}; give {PAPER_FLEET!r}, or a file that ends in .csv or .parquet.")
    if fleet != PAPER_FLEET and radius_m is not None:
        raise InputError(f"A radius is for the fleet that is drawn ({PAPER_FLEET!r}), but {fleet} holds its devices.")

    def cell(other: int | None) -> Cell:
        count = clients if other is None else other
        if count is not None and count < 1:
            raise InputError(f"clients is {count}; ask for at least 1.")
        return cell_of(_open_fleet(fleet, count, seed, radius_m), model)

    return cell


def _open_fleet(fleet: str, clients: int | None, seed: int, radius_m: float | None) -> Fleet:
    if fleet == PAPER_FLEET:
        return paper_fleet(clients, seed, radius_m)
    return read_fleet(Path(fleet), FleetSettings(), clients=clients, seed=seed)


def paper_fleet(clients: int | None = None, seed: int = 0, radius_m: float | None = None) -> SampledFleet:
    """The paper's fleet, with another number of devices or another radius where given."""
    given = {"devices": clients, "radius_m": radius_m}
    try:
        settings = FleetSettings.model_validate({name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        raise InputError(f"radius_m is {radius_m}: {error.errors()[0]['msg']}. Give metres, such as 200.") from None
    return SampledFleet(settings, seed)


def cell_of(devices: Fleet, model: str = "lenet5") -> Cell:
    """The problem of a fleet's first round, with the distances of a drawn one and the names of a measured one."""
    distance = devices.distances_m(0) if isinstance(devices, SampledFleet) else None
    names = devices.names if isinstance(devices, MeasuredFleet) else ()
    return Cell(problem_of_fleet(devices.state(0), model), distance, names)


def problem_of_fleet(state: FleetState, model: str = "lenet5", **changes: Any) -> Problem:
    """The devices of one round as a problem; `changes` are fields of the problem file."""
    clients = state.gain.size
    values: dict[str, Any] = {
        "weights": np.full(clients, 1.0 / clients),
        "channel_gain": state.gain,
        "power_w": state.power_w,
        "cpu_hz": state.cpu_hz,
        "energy_coefficient": state.energy_coefficient,
        "bandwidth_hz": float(state.bandwidth_hz),
        "noise_w_per_hz": state.noise_w_per_hz,
    }
    return Problem.of(**{**values, **SHARED_PRESET, **MODEL_PRESETS[model], **changes})


def save_problem(path: Path, problem: Problem) -> None:
    """Write a problem file, one field a line; what is the same for every client becomes one number."""
    make_folder(path.parent)
    write_text(path, problem_text(problem))


def problem_text(problem: Problem) -> str:
    """What `save_problem` writes."""
    lines = [f'  "{name}": {json.dumps(_folded(name, value))}' for name, value in problem.to_json().items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _folded(name: str, value: Any) -> Any:
    is_same = isinstance(value, list) and all(item == value[0] for item in value)
    return value[0] if is_same and name != "weights" else value  # weights say how many clients there are
