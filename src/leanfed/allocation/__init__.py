"""Who gets what: the joint allocation of k, r and bandwidth (no torch)."""

from leanfed.allocation.certified import solve_certified
from leanfed.allocation.plan import allocator, plan
from leanfed.allocation.problem import Problem
from leanfed.allocation.solution import Excluded, Solution, Status

__all__ = ["Excluded", "Problem", "Solution", "Status", "allocator", "plan", "solve_certified"]
