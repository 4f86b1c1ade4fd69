"""Rules against dishonest clients on a fleet: the simulator's rounds and weights, and a poisoned node of five."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import leanfed
from leanfed.results import RunFolder
from leanfed.runs.settings import Settings
from tests.unit.deployment.fleets import CLIENTS, Trial, settings_of
from tests.unit.deployment.test_bad_nodes import scaled
from tests.unit.deployment.test_faults import BAD


def test_a_fleets_rule_and_its_memory_are_the_simulators(tmp_path: Path) -> None:
    """Every rule, by its losses: tests/unit/deployment/test_bad_nodes.py."""
    settings = settings_of(aggregation={"name": "majority"}, rounds=3)
    trial = Trial(settings, tmp_path, {"fleet": "profile"})
    trial.play()
    there = leanfed.run(settings)
    assert trial.losses() == there.rounds["train_loss"].to_list()
    assert trial.table("clients")["weight"].to_list() == there.clients["weight"].to_list()
    told = [row["weights"] for row in trial.audit("round")]
    assert [list(weights) for weights in told] == [[str(client) for client in range(CLIENTS)]] * 3


@pytest.mark.slow
@pytest.mark.parametrize(("rule", "points"), [("clip-dedupe", 2), ("majority", 1)])
def test_one_poisoned_node_of_five_does_not_bend_the_rule(tmp_path: Path, rule: str, points: int) -> None:
    """It sends -5 times its update, below what is refused as too large; the clean run is a simulation, as above."""
    trial = Trial(poisonable(rule), tmp_path, {"fleet": "profile"})
    trial.grid.nodes[100 + BAD].twist = lambda order, reply: scaled(reply, -5.0)
    trial.play()
    assert trial.audit("refused") == []
    weights = {
        client: np.mean([row["weights"][client] for row in trial.audit("round")]) for client in map(str, range(5))
    }
    assert min(weights, key=lambda client: weights[client]) == str(BAD)  # the node that is cut down is seen
    clean = leanfed.run(poisonable(rule), tmp_path / "clean")
    assert clean.folder is not None
    held, free = (honest(RunFolder(folder).read_table("evaluations")) for folder in (trial.folder, clean.folder))
    assert held > free - points / 100
    bent = leanfed.run(poisonable("mean", adversary={"kind": "sign-flip", "share": 0.2}))
    assert bent.accuracy < free - 0.3


def honest(tested: pl.DataFrame) -> float:
    """Mean accuracy of the honest nodes."""
    return float(np.mean(tested.filter(tested["client"] != BAD)["accuracy"].to_numpy()))


def poisonable(rule: str, **changes: Any) -> Settings:
    """Samples dealt evenly, so that four honest nodes agree, and enough local steps to learn within a few rounds."""
    return settings_of(
        rounds=20,
        task={"partition": {"kind": "iid", "clients": CLIENTS}},
        training={"batch_size": 16, "local_steps": 20},
        algorithm={"name": "flpdsp", "k": 0.1, "r": 1.0, "sparsify": {"error_feedback": True}},
        evaluation={"every": 20},
        aggregation={"name": rule},
        run={"threads": 1},
        **changes,
    )
