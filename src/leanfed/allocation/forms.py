"""The three forms of a plan: what they aim at, the bounds they bring, and what they mean in words."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final, Literal

import numpy as np

from leanfed.allocation.base import ALLOCATORS
from leanfed.allocation.fast_form import solve_fast, worth
from leanfed.allocation.limits import Mask, plan_cost
from leanfed.allocation.plan import binding_limits, plan
from leanfed.allocation.problem import Problem
from leanfed.allocation.solution import Solution
from leanfed.errors import InputError, nearest

Form = Literal["plain", "safe", "fast"]
BOUNDS: Final = ("k_min", "k_max", "r_min")
# Defaults of each form, for what a problem or the settings do not state.
FORMS: Final[dict[str, dict[str, Any]]] = {
    "plain": {"k_min": 0.0, "k_max": 1.0, "r_min": 0.0, "within_rounds": 0, "settle": 0.0},
    "safe": {"k_min": 0.0, "k_max": 1.0, "r_min": 0.0, "within_rounds": 0, "settle": 0.0},
    "fast": {"k_min": 0.01, "k_max": 0.05, "r_min": 0.5, "within_rounds": 10, "settle": 1 / 3},
}
AIMS: Final = {
    "fast": "the most learning per second; the round's deadline and who takes part are chosen",
    "safe": "the paper's trade-off between sending and pruning; pruned head weights are kept for later rounds",
    "plain": "the paper's trade-off between sending and pruning; pruned head weights are lost",
}
ERASED_BELOW: Final = 0.05  # heads of which less than this is kept have forgotten what they learned


def chosen_form(form: str | None, solver: str | None) -> str:
    """The form that is planned: the one asked for; else `fast`, or `safe` where another solver is named."""
    if form is not None and form not in FORMS:
        raise InputError(f"Unknown form {form!r}; {nearest(form, FORMS)}")
    if solver is not None and solver not in ALLOCATORS:
        raise InputError(f"Unknown allocator {solver!r}; {nearest(solver, ALLOCATORS)}")
    if solver in (None, "fast"):
        if solver == "fast" and form in ("plain", "safe"):
            raise InputError(f"--solver fast is the form 'fast', but the form is {form!r}. Leave one of them out.")
        return form or "fast"
    if form == "fast":
        raise InputError(f"--solver {solver} plans the forms 'safe' and 'plain', but the form is 'fast'. Choose one.")
    return form or "safe"


def bounded(problem: Problem, form: str, stated: Collection[str]) -> Problem:
    """The problem with the form's bounds on k and r where none are stated; they never cross those that are."""
    usual = {name: FORMS[form][name] for name in BOUNDS if name not in stated}
    if "k_min" in usual:
        usual["k_min"] = np.minimum(usual["k_min"], problem.k_max if "k_max" in stated else usual["k_max"])
    if "k_max" in usual:
        usual["k_max"] = np.maximum(usual["k_max"], usual.get("k_min", problem.k_min))
    return problem.with_(**usual)


def plan_in(
    form: str, problem: Problem, *, solver: str | None = None, payload: str = "exact", **options: Any
) -> Solution:
    """Plan a round in a form. The paper's objective has a certified bound; the fast form aims at something else."""
    if form == "fast":
        return solve_fast(problem, payload=payload)
    return plan(problem, solver=solver or "certified", payload=payload, **options)


def takes_part(problem: Problem, solution: Solution) -> Mask:
    """Which clients are in the plan."""
    part = np.ones(problem.clients, dtype=bool)
    part[[entry.client for entry in solution.excluded]] = False
    return part & (solution.objective is not None)


def held_by(problem: Problem, solution: Solution, form: str) -> list[str]:
    """What holds each client back; in the fast form the deadline is the one that the plan chose."""
    part = takes_part(problem, solution)
    if form == "fast" and part.any():
        problem = problem.with_(deadline_s=_round_s(problem, solution, part))
    return binding_limits(problem, solution)


def erased_heads(problem: Problem, solution: Solution) -> list[int]:
    """Participants whose heads the plan all but erases (r < 0.05)."""
    has_one = problem.head_size > 0
    return np.flatnonzero(has_one & takes_part(problem, solution) & (solution.r < ERASED_BELOW)).tolist()


def erased_warning(problem: Problem, solution: Solution, form: str) -> str | None:
    """What to do about erased heads; None where there are none."""
    count = len(erased_heads(problem, solution))
    if not count:
        return None
    what = "is lost for good" if form == "plain" else "is kept, but does not learn in this round"
    return (
        f"{count} of {problem.clients} devices keep less than {100 * ERASED_BELOW:g} % of their head "
        f"(r < {ERASED_BELOW:g}): what made their model personal {what}. Plan with the form fast, "
        f"raise theta1 (here {problem.theta1:g}; a run estimates it, far above 1 on LeNet-5), or set a floor such as "
        "r_min=0.5."
    )


def in_words(problem: Problem, solution: Solution, form: str) -> str:
    """What the plan is best at, as a sentence with its numbers."""
    part = takes_part(problem, solution)
    if not part.any():
        return "no device can take part"
    weights = problem.weights[part]
    if form == "fast":
        per_s = learning_per_s(problem, solution)
        return (
            f"{part.sum()} of {problem.clients} devices in a round of {_round_s(problem, solution, part):.3g} s "
            f"bring {100 * per_s:.3g} % of the fleet's gradient (by norm) a second"
        )
    sent = problem.theta2 * float(weights @ solution.k[part])
    pruned = problem.theta1 * float(weights @ np.sqrt(1.0 - solution.r[part]))
    return (
        f"the paper's trade-off, lower is better: {pruned:.4g} lost by pruning heads (theta1 = {problem.theta1:g}) "
        f"less {sent:.4g} won by sending gradients (theta2 = {problem.theta2:g})"
    )


def learning_per_s(problem: Problem, solution: Solution) -> float:
    """What the uploads hold of the fleet's gradient, by norm and weight, for each second of the round."""
    part = takes_part(problem, solution)
    if not part.any():
        return 0.0
    brings = float(problem.weights[part] @ worth(solution.k[part]) / problem.weights.sum())
    round_s = _round_s(problem, solution, part)
    return brings / round_s if round_s > 0.0 else 0.0


def _round_s(problem: Problem, solution: Solution, part: Mask) -> float:
    """Seconds until the slowest participant has ended."""
    latency, _ = plan_cost(problem, solution.k, solution.r, solution.l, solution.payload)
    return float(latency[part].max())
