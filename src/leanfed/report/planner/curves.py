"""The planner page's curves: the limits of feasibility, and the value of bandwidth."""

from __future__ import annotations

from typing import Any

import numpy as np

from leanfed.allocation.curves import Floats
from leanfed.allocation.forms import learning_per_s, plan_in
from leanfed.allocation.frontier import least_bandwidth, least_energy
from leanfed.allocation.limits import least_cost
from leanfed.allocation.problem import Problem
from leanfed.report.planner.answers import Posed, Question, finite, pose

PORTIONS = (0.5, 0.9, 1.0)  # of the clients, one frontier each
DEADLINES = 80
BANDS = 13  # plans solved for the price's curve, an odd number so that the current band is among them
BAND_SPAN = 4.0  # from a quarter of the band to four times it


def curves(question: Question) -> dict[str, Any]:
    """The frontiers over the deadline, and the objective over bandwidth."""
    posed = pose(question)
    deadlines = deadline_grid(posed.problem, question.payload)
    return {
        "deadline_s": deadlines.tolist(),
        "energy": [
            {"portion": portion, "least_j": finite(least_energy(posed.problem, deadlines, portion, question.payload))}
            for portion in PORTIONS
        ],
        "bandwidth": [
            {
                "portion": portion,
                "least_hz": finite(
                    least_bandwidth(posed.problem, deadlines, portion, question.aim.k, question.payload)
                ),
            }
            for portion in PORTIONS
        ],
        "worth": worth(posed),
    }


def deadline_grid(problem: Problem, payload: str) -> Floats:
    """Deadlines from too short for every client to ample, evenly spaced on a logarithmic scale."""
    latency, _ = least_cost(problem, payload)
    known = latency[np.isfinite(latency) & (latency > 0.0)]
    given = problem.deadline_s[np.isfinite(problem.deadline_s) & (problem.deadline_s > 0.0)]
    marks = np.concatenate([known, given]) if known.size or given.size else np.ones(1)
    return np.geomspace(0.8 * marks.min(), 3.0 * marks.max(), DEADLINES)


def worth(posed: Posed) -> dict[str, Any]:
    """The best plan's objective on narrower and wider bands."""
    factors = np.geomspace(1.0 / BAND_SPAN, BAND_SPAN, BANDS)
    factors[BANDS // 2] = 1.0
    bands = [float(posed.problem.bandwidth_hz * factor) for factor in factors]
    form, payload = posed.question.form, posed.question.payload
    problems = [posed.problem.with_(bandwidth_hz=band) for band in bands]
    plans = [plan_in(form, problem, payload=payload) for problem in problems]
    return {
        "bandwidth_hz": bands,
        "objective": [plan.objective for plan in plans],
        "per_s": [learning_per_s(problem, plan) for problem, plan in zip(problems, plans, strict=True)],
        "price_per_mhz": [None if p.price is None else p.price / (b / 1e6) for p, b in zip(plans, bands, strict=True)],
    }
