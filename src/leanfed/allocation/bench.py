"""How fast the planner is: `leanfed bench plan`, on the paper's cell with the sizes of LeNet-5 and ResNet-18."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from leanfed.allocation.cells import MODEL_PRESETS, SHARED_PRESET
from leanfed.allocation.plan import plan
from leanfed.allocation.problem import Problem
from leanfed.allocation.solution import Solution
from leanfed.allocation.tuned_form import Worths, plan_tuned
from leanfed.streams import stream

MODELS = {"lenet": MODEL_PRESETS["lenet5"], "resnet": MODEL_PRESETS["resnet18"]}
CELL_RADIUS_KM = 0.2
NEAREST_KM = 0.001  # the path-loss formula is for distances, not for standing at the mast
BAND_HZ, BAND_PER_CLIENT_HZ = 1e7, 1e5
TUNED, TUNED_AT_MOST, LAST_STEPS = "tuned", 1_000, 4  # clients it is measured for; head steps of the round before


def paper_problem(clients: int, seed: int, *, model: str = "lenet", bandwidth_hz: float | None = None) -> Problem:
    """The paper's fleet, drawn anew: a disc of 200 m, 128.1 + 37.6 log10(km) dB, 20-28 dBm, 0.5-3 GHz, -174 dBm/Hz."""
    draw = stream(seed, "paper_problem", clients)
    distance_km = np.maximum(CELL_RADIUS_KM * np.sqrt(draw.random(clients)), NEAREST_KM)
    band = max(BAND_HZ, BAND_PER_CLIENT_HZ * clients) if bandwidth_hz is None else bandwidth_hz
    return Problem.of(
        weights=np.full(clients, 1.0 / clients),
        channel_gain=10.0 ** (-(128.1 + 37.6 * np.log10(distance_km)) / 10.0),
        power_w=10.0 ** (draw.uniform(20.0, 28.0, clients) / 10.0 - 3.0),
        cpu_hz=draw.uniform(0.5e9, 3.0e9, clients),
        energy_coefficient=1e-28,
        bandwidth_hz=band,
        noise_w_per_hz=10.0 ** (-17.4 - 3.0),
        **SHARED_PRESET,
        **MODELS[model],
    )


def plan_rows(
    *,
    clients: Iterable[int] = (100, 1_000, 10_000, 100_000),
    seeds: int = 20,
    payload: str = "exact",
    dca: bool = True,
    progress: Callable[[str], None] | None = None,
) -> list[dict[str, Any]]:
    """One row per solver, size and model: median and largest seconds of a plan, and the gaps to its bound.

    `seeds` fleets at N = 100, fewer as N grows. DCA runs at N = 100 only; its row adds the seconds of one iteration.
    The tuned form plans a round within a run, with the head steps of the last one and of those next to it.
    """
    sizes = list(clients)
    for solver in ("certified", TUNED):  # load compiled code outside the clock
        _timed(solver, paper_problem(3, 0), payload)
    jobs = [("certified", count, model) for count in sizes for model in MODELS]
    jobs += [(TUNED, count, model) for count in sizes if count <= TUNED_AT_MOST for model in MODELS]
    if dca:
        plan(paper_problem(100, 0), solver="dca", payload=payload, max_steps=1)
        jobs += [("dca", 100, model) for model in MODELS]
    rows = []
    for solver, count, model in jobs:
        if progress is not None:
            progress(f"{solver}, {count} clients, {model}")
        fleets = max(1, seeds // 4) if solver == "dca" else max(1, min(seeds, seeds * 100 // count))
        rows.append(_row(solver, count, model, fleets, payload))
    return rows


def _row(solver: str, clients: int, model: str, fleets: int, payload: str) -> dict[str, Any]:
    problems = (paper_problem(clients, seed, model=model) for seed in range(fleets))
    solutions, seconds, known = zip(*(_timed(solver, problem, payload) for problem in problems), strict=True)
    gaps = [gap for gap in known if gap is not None]
    row = {
        "solver": solver,
        "clients": clients,
        "model": model,
        "payload": payload,
        "fleets": fleets,
        "seconds": float(np.median(seconds)),
        "max_seconds": max(seconds),
        "median_gap": float(np.median(gaps)) if gaps else None,
        "max_gap": max(gaps, default=None),
    }
    return row | _per_step(solutions) if solver == "dca" else row


def _timed(solver: str, problem: Problem, payload: str) -> tuple[Solution, float, float | None]:
    """A plan, its seconds, and the most that it lacks of the best one."""
    if solver != TUNED:
        solution = plan(problem, solver=solver, payload=payload)
        return solution, solution.seconds, solution.relative_gap
    began = time.perf_counter()
    found = plan_tuned(lambda steps: problem, Worths(), 1, last=LAST_STEPS, payload=payload).fast
    return found.solution, time.perf_counter() - began, found.bound


def _per_step(solutions: Iterable[Solution]) -> dict[str, float]:
    return {"seconds_per_step": float(np.median([s.seconds / max(1, s.steps) for s in solutions]))}
