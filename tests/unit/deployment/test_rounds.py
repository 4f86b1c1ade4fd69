"""Rounds over a grid in memory: real apps, real codec, real training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

import polars as pl
from tests.unit.deployment.grids import MemoryClock, MemoryGrid

import leanfed
from leanfed.deployment.config import run_config
from leanfed.deployment.serve import serve
from leanfed.experiments.settings import Settings

CLIENTS = 5


def settings_of(**changes: Any) -> Settings:
    values: dict[str, Any] = {
        "name": "fleet",
        "seed": 3,
        "rounds": 4,
        "task": {"partition": {"kind": "class", "classes_per_client": 2, "clients": CLIENTS}},
        "algorithm": {"name": "flpdsp", "k": 0.1, "r": 0.8, "sparsify": {"error_feedback": True}},
        "evaluation": {"every": 2},
        "run": {"engine": "reference", "threads": 1},
    }
    return Settings.from_values({**values, **changes})


def config_of(settings: Settings, folder: Path, **changes: Any) -> dict[str, Any]:
    values = {"settings": json.dumps(settings.resolved()), "run-folder": str(folder), "deadline-s": 30.0}
    return {**values, "join-s": 30.0, **changes}


def play(settings: Settings, tmp_path: Path, **changes: Any) -> tuple[MemoryGrid, Path]:
    folder = tmp_path / "run"
    config = config_of(settings, folder, **changes)
    clock = MemoryClock()
    grid = MemoryGrid.of(settings.task.partition.clients, tmp_path / "nodes", config, clock)
    serve(grid, run_config(config), clock.clock())
    return grid, folder


def test_a_fleet_learns_what_the_simulator_learns(tmp_path: Path) -> None:
    settings = settings_of()
    _, folder = play(settings, tmp_path)
    here, there = pl.read_parquet(folder / "rounds.parquet"), leanfed.run(settings).rounds
    assert here["train_loss"].to_list() == there["train_loss"].to_list()
    for name in ("accuracy", "loss", "worst_decile"):
        np.testing.assert_allclose(here[name].to_numpy(), there[name].to_numpy(), rtol=1e-12)
