"""The contract of an allocator, and the registry that holds them by name."""

from __future__ import annotations

from typing import Final, Protocol

from leanfed.allocation.problem import Problem
from leanfed.allocation.solution import Solution
from leanfed.registry import Registry


class Allocator(Protocol):
    """A function that plans one round: from a `Problem` to the k, r and bandwidth share of every client.

    `payload` says how the bits of an upload are counted (`exact` or `paper`). Further options are keyword arguments
    with defaults; `leanfed plan` passes its --k, --r and --seed to an allocator that has options of these names. A
    client that cannot meet its limits is in the solution's `excluded`, with k = r = l = 0. The smallest one that works
    sends nothing and keeps whole heads, on even shares:

    >>> import numpy as np
    >>> from leanfed.allocation.base import ALLOCATORS
    >>> from leanfed.allocation.bench import paper_problem
    >>> from leanfed.allocation.plan import plan
    >>> from leanfed.allocation.solution import assemble
    >>> @ALLOCATORS.register("silent")
    ... def silent(problem, *, payload):
    ...     everyone, n = np.ones(problem.clients, dtype=bool), problem.clients
    ...     rates = (np.zeros(n), np.ones(n), np.full(n, 1 / n))
    ...     return assemble(problem, everyone, rates, solver="silent", payload=payload)
    >>> solution = plan(paper_problem(4, seed=0), solver="silent")
    >>> str(solution.status), solution.objective, solution.l.tolist()
    ('solved', 0.0, [0.25, 0.25, 0.25, 0.25])
    >>> ALLOCATORS.remove("silent")
    """

    def __call__(self, problem: Problem, /, *, payload: str) -> Solution:
        """The plan of one round."""


ALLOCATORS: Final[Registry[Allocator]] = Registry("allocator")
