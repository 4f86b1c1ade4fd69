"""Every method as the batteries run it: with the fewest steps that still show all of it."""

from __future__ import annotations

from typing import Any

from leanfed.algorithms import ALGORITHMS
from leanfed.algorithms.base import Algorithm

FEWEST: dict[str, dict[str, Any]] = {"fedmask": {"pruning_steps": 2}, "pfedme": {"inner_steps": 2}}


def method_of(name: str) -> Algorithm:
    """The method of this name with its defaults, but few steps where it takes many."""
    return ALGORITHMS[name](**FEWEST.get(name, {}))
