"""Who gets what: the joint allocation of k, r and bandwidth (no torch)."""

from leanfed.allocation import certified, dca, fast_form, rules  # noqa: F401  (registers the allocators)
from leanfed.allocation.base import ALLOCATORS, Allocator
from leanfed.allocation.certified import solve_certified
from leanfed.allocation.plan import plan
from leanfed.allocation.problem import Problem
from leanfed.allocation.solution import Excluded, Solution, Status

__all__ = ["ALLOCATORS", "Allocator", "Excluded", "Problem", "Solution", "Status", "plan", "solve_certified"]
