"""The same apps and settings in Flower's simulation engine."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("flwr")
pytest.importorskip("ray")

from benchmarks.fleet_simulation import simulate


@pytest.mark.fleet
@pytest.mark.slow
def test_virtual_nodes_learn_what_the_simulator_learns(tmp_path: Path) -> None:
    report = simulate(tmp_path, clients=6, rounds=2)
    assert report["participants"] == [6, 6]
    assert report["largest_difference_of_losses"] == 0.0
    assert report["largest_difference_of_accuracies"] < 1e-12
