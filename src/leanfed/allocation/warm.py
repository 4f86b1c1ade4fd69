"""Compile what a first plan needs, so that users do not wait for it: `python -m leanfed.allocation.warm`."""

from __future__ import annotations

import numpy as np

from leanfed.allocation.base import ALLOCATORS
from leanfed.allocation.bench import paper_problem
from leanfed.allocation.energy import EnergyState, plan_round
from leanfed.allocation.forms import plan_in
from leanfed.allocation.plan import plan


def load(form: str = "safe") -> None:
    """Load the compiled code of a form, so that the seconds of the next plan are its own."""
    plan_in(form, paper_problem(3, 0, bandwidth_hz=3e5))


def warm() -> None:
    """Solve a tiny problem with every compiled solver; the code stays in a cache next to the package."""
    problem = paper_problem(3, 0, bandwidth_hz=3e5)
    for solver in ALLOCATORS:
        if solver != "dca":  # cvxpy's, with nothing to compile
            plan(problem, solver=solver)
    plan_round(problem, EnergyState.start(np.full(3, 0.3), 2))


if __name__ == "__main__":
    warm()
