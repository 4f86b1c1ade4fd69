"""Finished runs without a folder, for what entries measure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import polars as pl

from leanfed.algorithms.flpdsp import Flpdsp


def outcome(labels: Mapping[str, str], accuracy: Sequence[float], seconds: float, seed: int) -> Any:
    """A run of one evaluation a round, each round of the same seconds."""
    count = len(accuracy)
    rows = {
        "round": range(count),
        "accuracy": accuracy,
        "loss": [1.0] * count,
        "worst_decile": accuracy,
        "majority_guess": [0.5] * count,
        "latency_s": [seconds] * count,
        "energy_j": [2.0] * count,
        "participants": [60] * count,
        "k_mean": [0.05] * count,
    }
    settings = SimpleNamespace(seed=seed, name=labels["method"], algorithm=Flpdsp())
    job = SimpleNamespace(labels=dict(labels), settings=settings)
    return SimpleNamespace(job=job, run=SimpleNamespace(settings=settings, rounds=pl.DataFrame(rows)))
