"""The same round under other circumstances: one row per value of a field."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from leanfed.allocation.cells import Cell, Source
from leanfed.allocation.forms import erased_heads, plan_in, takes_part
from leanfed.allocation.limits import plan_cost
from leanfed.allocation.problem import Problem
from leanfed.allocation.solution import Solution
from leanfed.errors import InputError, nearest
from leanfed.files import parse_json

CLIENTS = "clients"  # the one question that is not a field of the problem


def parse_change(text: str) -> tuple[str, Any]:
    """`field=value`, the value as in JSON: a number, null, or a list with one number per client."""
    field, value = _field_and_value(text, [entry.name for entry in fields(Problem)])
    return field, _json(field, value)


def parse_question(text: str) -> tuple[str, list[float | None]]:
    """`field=value,value,...` with numbers or null.

    >>> parse_question("bandwidth_hz=5e6,1e7")
    ('bandwidth_hz', [5000000.0, 10000000.0])
    """
    field, listed = _field_and_value(text, [*(entry.name for entry in fields(Problem)), CLIENTS])
    values = [_json(field, value) for value in listed.split(",")]
    for value in values:
        if field == CLIENTS and (value is None or value != int(value)):
            raise InputError(f"clients={value} is not a number of clients; give whole numbers, such as clients=50,100")
    return field, values


def _field_and_value(text: str, known: Sequence[str]) -> tuple[str, str]:
    field, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not value:
        raise InputError(f"{text!r} is not of the form field=value. For example: bandwidth_hz=1e7")
    if field not in known:
        raise InputError(f"Unknown field {field!r} in the problem; {nearest(field, known)}")
    return field, value


def _json(field: str, value: str) -> Any:
    try:
        return parse_json(value)
    except ValueError:
        raise InputError(f"{field}={value} is neither a number, nor null, nor a list of numbers in brackets.") from None


def what_if(
    source: Source,
    field: str,
    values: Iterable[float | None],
    *,
    form: str = "safe",
    changes: dict[str, Any] | None = None,
    progress: Callable[[str], None] = lambda text: None,
    **options: Any,
) -> list[dict[str, Any]]:
    """Solve once per value in a form; `changes` hold for all of them, `options` go to `plan_in`."""
    rows = []
    for value in values:
        progress(f"{field} = {value}")
        cell = source(int(value) if field == CLIENTS and value is not None else None)
        asked = {} if field == CLIENTS else {field: value}
        cell = cell.changed({**(changes or {}), **asked}).in_form(form)
        solution = plan_in(form, cell.problem, **options)
        rows.append({field: value, **summary_of(cell.problem, solution), **_spent(cell, solution)})
    return rows


def _spent(cell: Cell, solution: Solution) -> dict[str, Any]:
    """Who is waited for and for how long, what the participants spend together, and whose heads are erased."""
    problem, part = cell.problem, takes_part(cell.problem, solution)
    latency, energy = plan_cost(problem, solution.k, solution.r, solution.l, solution.payload)
    slowest = int(np.argmax(np.where(part, latency, -np.inf))) if part.any() else None
    return {
        "slowest": None if slowest is None else cell.name(slowest),
        "slowest_s": None if slowest is None else float(latency[slowest]),
        "energy_j": float(energy[part].sum()),
        "erased": len(erased_heads(problem, solution)),
    }


def summary_of(problem: Problem, solution: Solution) -> dict[str, Any]:
    """A plan in a few numbers; the means are over the clients that take part."""
    part = takes_part(problem, solution)
    infeasible = solution.objective is None
    return {
        "status": str(solution.status),
        "objective": solution.objective,
        "lower_bound": solution.lower_bound,
        "relative_gap": solution.relative_gap,
        "mean_k": None if infeasible else float(solution.k[part].mean()),
        "mean_r": None if infeasible else float(solution.r[part].mean()),
        "price": solution.price,
        "clients": problem.clients,
        "participants": int(part.sum()),
        "excluded": len(solution.excluded),
        "starved": len(solution.starved),
        "seconds": solution.seconds,
    }
