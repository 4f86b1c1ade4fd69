"""The planner page's questions and answers: sliders in, a planned round out, as plain JSON.

The answer comes from the same code as `leanfed plan` and includes the equivalent command line.
"""

from __future__ import annotations

import json
import shlex
import time
from dataclasses import dataclass
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

import numpy as np
from pydantic import Field, ValidationError

from leanfed.allocation.cells import MODEL_PRESETS, Cell, cell_of, paper_fleet, problem_text
from leanfed.allocation.curves import PAYLOADS, Floats, bits_of
from leanfed.allocation.forms import (
    AIMS,
    BOUNDS,
    FORMS,
    Form,
    erased_warning,
    held_by,
    in_words,
    learning_per_s,
    plan_in,
    takes_part,
)
from leanfed.allocation.limits import plan_cost
from leanfed.allocation.plan import ALLOCATORS
from leanfed.allocation.problem import Problem
from leanfed.allocation.solution import Solution
from leanfed.allocation.starvation import needs_of
from leanfed.allocation.what_if import summary_of
from leanfed.errors import InputError, nearest
from leanfed.records import Section
from leanfed.wireless.fleet import FleetSettings
from leanfed.wireless.fleet_file import read_fleet_text

MOST_CLIENTS = 2_000  # so that an answer takes a moment only
SLIDERS = (  # fields of the problem with the same value for all clients of a preset
    *("bandwidth_hz", "deadline_s", "energy_budget_j", "theta1", "theta2", "base_size", "head_size"),
    *("cycles_per_sample", "batch_size", "value_bits", "k_min", "k_max", "r_min"),
)
RULES = {  # what is compared: the forms, then simple rules
    "fast": "fast: the most learning per second",
    "certified": "safe and plain: the paper's joint allocation",
    "equal": "equal shares, each client's best rates",
    "fastest": "fixed rates, shares that help the slowest",
    "fixed": "fixed rates, equal shares",
}


class FleetText(Section):
    """A fleet file sent by the page."""

    name: str = Field(max_length=200)
    text: str


class Aim(Section):
    """The target rates of all clients under the rule of fixed rates."""

    k: float = Field(default=0.5, ge=0, le=1)
    r: float = Field(default=0.5, ge=0, le=1)


class Question(Section):
    """What the page asks: a fleet, a model's preset, and the fields of the problem that its sliders change."""

    model: str = "lenet5"
    payload: str = "exact"
    form: Form = "fast"
    clients: int | None = Field(default=None, ge=1, le=MOST_CLIENTS)
    seed: int = Field(default=0, ge=0, le=2**32)
    radius_m: float | None = Field(default=None, gt=0)
    fleet: FleetText | None = None
    changes: dict[str, float | None] = Field(default_factory=dict)
    aim: Aim = Aim()

    @classmethod
    def of(cls, values: object) -> Question:
        """A validated question; the error for an invalid one names the field."""
        try:
            question = cls.model_validate(values)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "the question"
            raise InputError(f"{where}: {first['msg']} (given: {_short(first['input'])}).") from None
        for field in question.changes:
            if field not in SLIDERS:
                raise InputError(f"Unknown slider {field!r}; {nearest(field, SLIDERS)}")
        if question.model not in MODEL_PRESETS:
            raise InputError(f"Unknown model {question.model!r}; {nearest(question.model, MODEL_PRESETS)}")
        if question.payload not in PAYLOADS:
            raise InputError(f"Unknown payload {question.payload!r}; {nearest(question.payload, PAYLOADS)}")
        return question


@dataclass(frozen=True, eq=False)
class Posed:
    """A question with its problem and the names of its clients."""

    question: Question
    start: Problem  # before the sliders' changes
    cell: Cell

    @property
    def names(self) -> list[str]:
        """What the clients are called."""
        return [self.cell.name(n) for n in range(self.problem.clients)]

    @property
    def problem(self) -> Problem:
        """The problem with the sliders' changes."""
        return self.cell.problem


def pose(question: Question) -> Posed:
    """Build the problem as `leanfed plan` does."""
    cell = _fleet_cell(question)
    if cell.problem.clients > MOST_CLIENTS:
        raise InputError(
            f"The fleet has {cell.problem.clients} devices, but this page plans at most {MOST_CLIENTS}. "
            "Ask for fewer clients here, or use `leanfed plan`, which has no such limit."
        )
    changed = cell.changed(_whole_sizes(question.changes)).in_form(question.form)
    return Posed(question, cell.in_form(question.form).problem, changed)


def answer(question: Question) -> dict[str, Any]:
    """The planned round: its allocation and quality, excluded and starved clients, and simple rules for comparison."""
    began = time.perf_counter()
    posed = pose(question)
    problem, form = posed.problem, question.form
    solution = plan_in(form, problem, payload=question.payload)
    names, starved = posed.names, () if form == "fast" else solution.starved
    return {
        "plan": solution.to_json(),
        "form": form,
        "aim": AIMS[form],
        "words": in_words(problem, solution, form),
        "warning": erased_warning(problem, solution, form),
        "summary": summary_of(problem, solution),
        "price_per_mhz": None if solution.price is None else solution.price / (problem.bandwidth_hz / 1e6),
        "start": {name: _start(posed.start, name) for name in ("bandwidth_hz", "deadline_s", "energy_budget_j")},
        "clients": client_columns(posed, solution),
        "excluded": [{"name": names[entry.client], "why": entry.why} for entry in solution.excluded],
        "starved": [
            {"name": names[n], "why": why}
            for n, why in zip(starved, needs_of(problem, starved, question.payload), strict=True)
        ],
        "rules": [rule_row(posed, name) for name in RULES],
        "command": command_line(posed),
        "problem_file": problem_text(problem),
        "seconds": time.perf_counter() - began,
    }


def presets() -> dict[str, Any]:
    """The initial values of the sliders."""
    start = cell_of(paper_fleet()).problem
    shared = {name: _start(start, name) for name in ("bandwidth_hz", "theta1", "theta2")}
    fleet = FleetSettings()
    return {
        "shared": {**shared, "radius_m": fleet.radius_m, "seed": 0},
        "models": MODEL_PRESETS,
        "forms": {form: {name: values[name] for name in BOUNDS} for form, values in FORMS.items()},
        "aims": AIMS,
    }


def client_columns(posed: Posed, solution: Solution) -> dict[str, Any]:
    """One entry per client: its name, allocation and costs."""
    problem = posed.problem
    latency, energy = plan_cost(problem, solution.k, solution.r, solution.l, solution.payload)
    with np.errstate(divide="ignore"):
        gain_db, power_dbm = 10.0 * np.log10(problem.channel_gain), 10.0 * np.log10(problem.power_w) + 30.0
    columns = {
        "distance_m": posed.cell.distance_m,
        "gain_db": gain_db,
        "power_dbm": power_dbm,
        "cpu_ghz": problem.cpu_hz / 1e9,
        "k": solution.k,
        "r": solution.r,
        "share": solution.l,
        "latency_s": latency,
        "energy_j": energy,
    }
    return {
        "name": posed.names,
        **{name: None if column is None else finite(column) for name, column in columns.items()},
        "held_by": held_by(problem, solution, posed.question.form),
    }


def rule_row(posed: Posed, name: str) -> dict[str, Any]:
    """The summary of one way of planning, each within the bounds of its own form."""
    question = posed.question
    form = "fast" if name == "fast" else "safe" if question.form == "fast" else question.form
    problem = posed.cell.in_form(form).problem
    aim = question.aim.model_dump() if name in ("fixed", "fastest") else {}
    solution = ALLOCATORS[name](problem, payload=question.payload, **aim)
    summary = summary_of(problem, solution)
    latency, energy = plan_cost(problem, solution.k, solution.r, solution.l, question.payload)
    part = takes_part(problem, solution)
    bits = bits_of(solution.k, problem.base_size, problem.value_bits, question.payload)
    kept = ("status", "objective", "mean_k", "mean_r", "excluded", "starved")
    return {
        "solver": name,
        "label": RULES[name],
        **{key: summary[key] for key in kept},
        "participants": int(part.sum()),
        "worth_per_s": learning_per_s(problem, solution),
        "slowest_s": _largest(latency[part]),
        "energy_j": float(energy[part].sum()),
        "megabits": float(bits[part].sum()) / 1e6,
    }


def command_line(posed: Posed) -> str:
    """The `leanfed plan` that gives the same numbers; only what differs from its defaults is spelled out."""
    question = posed.question
    words = ["leanfed", "plan", "--fleet", "paper" if question.fleet is None else _file_argument(question.fleet.name)]
    words += ["--model", question.model]
    words += [] if question.form == "fast" else ["--form", question.form]
    words += [] if question.clients is None else ["--clients", str(question.clients)]
    if question.fleet is None:
        words += ["--seed", str(question.seed)]
        usual = question.radius_m in (None, FleetSettings().radius_m)
        words += [] if usual else ["--radius-m", json.dumps(question.radius_m)]
    for name, value in _whole_sizes(question.changes).items():
        if _start(posed.start, name) != value:
            words += ["--set", f"{name}={json.dumps(value)}"]
    words += [] if question.payload == "exact" else ["--payload", question.payload]
    return shlex.join([*words, "--json"])


def file_name(name: str) -> str:
    """The last part of a file's name, whichever system it comes from."""
    return PurePosixPath(PureWindowsPath(name).as_posix()).name


def finite(values: Floats) -> list[float | None]:
    """A column for JSON, with null for values that are not finite."""
    return [value if np.isfinite(value) else None for value in values.tolist()]


def _fleet_cell(question: Question) -> Cell:
    """The clients and their problem before any change."""
    if question.fleet is None:
        return cell_of(paper_fleet(question.clients, question.seed, question.radius_m), question.model)
    if question.radius_m is not None:
        raise InputError("A radius is for the fleet that is drawn, but a fleet file is given. Leave one of them out.")
    name = file_name(question.fleet.name)
    if not name.endswith(".csv"):
        raise InputError(f"{name!r} does not end in .csv; export the fleet as CSV. `leanfed plan` reads Parquet too.")
    measured = read_fleet_text(name, question.fleet.text, FleetSettings(), clients=question.clients)
    return cell_of(measured, question.model)


def _file_argument(name: str) -> str:
    """The file name as a shell argument that is not mistaken for an option."""
    base = file_name(name)
    return f"./{base}" if base.startswith("-") else base


def _whole_sizes(changes: dict[str, float | None]) -> dict[str, float | None]:
    """Counts without a decimal point."""
    return {name: int(value) if value is not None and value == int(value) else value for name, value in changes.items()}


def _start(problem: Problem, name: str) -> float | None:
    """A field before any change, as one number: presets give every client the same value."""
    value: float | list[float | None] = problem.to_json()[name]
    return value[0] if isinstance(value, list) else value


def _largest(values: Floats) -> float | None:
    return float(values.max()) if values.size and np.isfinite(values).all() else None


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
