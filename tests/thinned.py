"""Large products of cases, thinned for the default run."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import pytest


def in_turn(*axes: Iterable[str]) -> list[Any]:
    """Every combination of the names; those whose places in their axes add up to an odd number are slow tests.

    So every name is met by default, and of three axes or more every two names of different axes meet.
    """
    numbered = itertools.product(*(list(enumerate(axis)) for axis in axes))
    return [
        pytest.param(
            *(name for _, name in chosen),
            id="-".join(name for _, name in chosen),
            marks=pytest.mark.slow if sum(place for place, _ in chosen) % 2 else (),
        )
        for chosen in numbered
    ]


def by_default(cases: Iterable[str], *often: str) -> list[Any]:
    """Every case by its name; all but the named ones are slow tests."""
    named = list(cases)
    assert set(often) <= set(named)
    return [pytest.param(name, id=name, marks=() if name in often else pytest.mark.slow) for name in named]
