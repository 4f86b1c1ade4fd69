"""Registries as they were before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from leanfed.algorithms import ALGORITHMS
from leanfed.tasks.datasets import DATASETS
from leanfed.tasks.losses import LOSSES
from leanfed.tasks.models import MODELS


@contextmanager
def registered_for_now() -> Iterator[None]:
    """Methods, data sets, models and losses that are added within are gone afterwards."""
    before = {registry: set(registry) for registry in (ALGORITHMS, DATASETS, MODELS, LOSSES)}
    try:
        yield
    finally:
        for registry, names in before.items():
            for name in set(registry) - names:
                registry.remove(name)
