"""A real fleet on loopback that nobody looks after: its server and a node are killed, strangers try their luck."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from benchmarks.fleet import LocalFleet, audit, events, local_fleet, wait_for

from tests.integration.strangers import (
    PATIENCE_S,
    join_with_an_edited_number,
    kill_a_nodes_keeper,
    node_status,
    start_a_foreign_app,
)

pytestmark = [pytest.mark.fleet, pytest.mark.slow]

KEYS = ("deadline-s=60", "join-s=240", "quorum=0.5")


def test_a_fleet_outlives_its_server_and_runs_no_app_of_a_strangers(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with local_fleet(tmp_path, 2) as fleet:
        start_a_foreign_app(fleet)
        join_with_an_edited_number(fleet)
        kill_the_server_for(fleet, out, seconds=2.0)
        kill_a_nodes_keeper(fleet)
        wait_for((out / "summary.json").is_file, "the end of the run", PATIENCE_S)
    assert [row["round"] for row in events(out, "round")] == [0, 1, 2, 3]
    assert audit(fleet, "store_fresh") == audit(fleet, "store_ahead") == []


def test_nodes_outlive_a_server_that_is_gone_for_longer_than_flowers_ten_retries(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with local_fleet(tmp_path, 2) as fleet:
        kill_the_server_for(fleet, out, seconds=90.0)
        wait_for((out / "summary.json").is_file, "the end of the run", PATIENCE_S)
        for number in range(2):
            facts = node_status(fleet, number)
            assert (facts["state"], facts["restarts"]) == ("joined", 0)
    assert [row["round"] for row in events(out, "round")] == [0, 1, 2, 3]


def kill_the_server_for(fleet: LocalFleet, out: Path, seconds: float) -> None:
    """kill -9 in the middle of the run; nodes say so, stay, and the new server goes on with the run by itself."""
    settings = fleet.folder / "settings.toml"
    settings.write_text(fleet.settings(4).read_text().replace("classes_per_client = 3", "classes_per_client = 6"))
    fleet.run(settings, out, *KEYS)
    wait_for(lambda: len(events(out, "round")) >= 2, "the second round", PATIENCE_S)
    fleet.kill("server")
    time.sleep(seconds)
    wait_for(lambda: node_status(fleet, 0)["state"] == "away", "a node that notices", PATIENCE_S)
    fleet.start_server()
    wait_for(lambda: "answers again" in fleet.log("node-0"), "a node that notices", PATIENCE_S)
    wait_for(lambda: len(audit(fleet, "run resumed")) == 1, "the continuation", PATIENCE_S)
    wait_for(lambda: len(events(out, "round")) >= 3, "the next round", PATIENCE_S)
