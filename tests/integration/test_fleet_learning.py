"""A real fleet on loopback: server and nodes as processes with TLS and keys, against the simulator and strangers."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import leanfed
from leanfed.results import RunFolder
from leanfed.runs.settings import Settings
from leanfed.tasks.task import build_task

pytest.importorskip("flwr")

from benchmarks.fleet import LocalFleet, audit, local_fleet, wait_for

from leanfed.deployment.operations import keys
from leanfed.deployment.operations.folder import FleetFolder
from tests.integration.strangers import (
    call_the_door,
    join_with_an_edited_number,
    kill_a_nodes_keeper,
    processes_below,
    start_a_foreign_app,
)
from tests.unit.deployment.fleets import settings_of, write_digits

NODES, ROUNDS = 2, 2
MASKED = """
[radio]
masked_sum = true
"""


@pytest.mark.fleet
def test_a_fleet_of_processes_equals_the_simulator_among_strangers(tmp_path: Path) -> None:
    # One test: starting a fleet costs most of its time. Longer ones with more strangers and kills are slow tests.
    out = tmp_path / "run"
    with local_fleet(tmp_path, NODES) as fleet:
        start_a_foreign_app(fleet)
        settings = fleet.settings(ROUNDS)  # six classes each cover the ten digits
        text = settings.read_text().replace("classes_per_client = 3", "classes_per_client = 6")
        settings.write_text(f'{text}\n[task]\nsplit = "auto"\n')
        fleet.run(settings, out, "deadline-s=240", "join-s=280")
        join_with_an_edited_number(fleet)
        call_with_a_key_of_another_fleet(fleet)
        wait_for((out / "summary.json").is_file, "the end of the run", 900)
        _check_bytes(fleet, out)
        kill_a_nodes_keeper(fleet)
    assert processes_below(fleet.fleet) == []
    for number in range(NODES):  # none by a program of its own:
        log = fleet.fleet / "nodes" / f"edge-{number}" / "logs" / f"edge-{number}-warm.log"
        asked = ROUNDS + 2  # the question who it is, the rounds, the last test, and a probe where its link was unsure
        assert log.read_text().count("warm: flwr-clientapp") in (asked, asked + 1)
    assert (fleet.fleet / "server/logs/warm.log").read_text().count("warm: flwr-serverapp") == 1
    here = pl.read_parquet(out / "rounds.parquet")
    there = leanfed.run(Settings.from_toml(settings), tmp_path / "simulated").rounds
    for name in ("train_loss", "loss", "accuracy"):
        assert here[name].to_list() == pytest.approx(there[name].to_list(), abs=1e-6)
    assert here["participants"].to_list() == [NODES] * ROUNDS
    splits = [RunFolder(folder).read_settings()["task"]["split"] for folder in (out, tmp_path / "simulated")]
    assert splits[0] == splits[1] != "auto"  # chosen before any node was asked
    assert here["refused"].sum() == 0
    tested = [RunFolder(folder).read_table("evaluations") for folder in (out, tmp_path / "simulated")]
    assert_frame_equal(*tested, abs_tol=1e-6)


def call_with_a_key_of_another_fleet(fleet: LocalFleet) -> None:
    """Flower's own node, which trusts our authority but whose key nobody here has issued."""
    mine, other = FleetFolder.open(fleet.fleet), keys.make_fleet(fleet.folder / "other", nodes=["edge-0"])
    trust = ("--root-certificates", str(mine.ca / "ca.crt"))
    key = ("--auth-supernode-private-key", str(other.bundle("edge-0") / "node.key"))
    call_the_door(f"127.0.0.1:{mine.port}", fleet.folder / "stranger", *trust, *key)
    assert [row for row in audit(fleet, "refused") if "unknown key" in row["why"]]


@pytest.mark.slow
def test_a_fleet_of_processes_sums_under_masks_with_signed_keys(tmp_path: Path) -> None:
    """Its losses are the simulator's but for the grid; every node has checked its neighbours' keys by its authority."""
    out = tmp_path / "run"
    with local_fleet(tmp_path, 3) as fleet:
        settings = fleet.settings(ROUNDS)
        text = settings.read_text().replace("sparsify.error_feedback = true", 'sparsify.select = "common"')
        settings.write_text(text.replace("classes_per_client = 3", "classes_per_client = 4") + MASKED)
        fleet.run(settings, out, "deadline-s=240", "join-s=280")
        wait_for((out / "summary.json").is_file, "the end of the run", 900)
        heard = audit(fleet, "unmasked")
        assert audit(fleet, "given_up") == audit(fleet, "declined") == []
    assert [(row["round"], row["uploaded"]) for row in heard] == [(number, 3) for number in range(ROUNDS)]
    assert all(row["bytes_down"] > 3 * 2 * (49 + 49 + 32) + 3 * 2 * 300 for row in heard)  # keys, and cards with names
    here = pl.read_parquet(out / "rounds.parquet")
    there = leanfed.run(Settings.from_toml(settings)).rounds
    assert here["train_loss"].to_list() == pytest.approx(there["train_loss"].to_list(), abs=1e-6)
    assert here["participants"].to_list() == [3] * ROUNDS


@pytest.mark.slow
def test_nodes_with_data_of_their_own_learn_what_dealing_the_set_teaches(tmp_path: Path) -> None:
    dealt = settings_of(task={"partition": {"kind": "class", "classes_per_client": 6, "clients": 2}})
    task = build_task(dealt.task, dealt.seed)
    own = tmp_path / "own.json"
    own.write_text(json.dumps({**dealt.resolved(), "task": {**dealt.resolved()["task"], "dataset": "mnist"}}))
    given = {}
    for client in range(2):
        write_digits(tmp_path / f"data-{client}", task, task.partition.train[client], task.partition.test[client])
        given[client] = ["--data", "own", "--data-dir", str(tmp_path / f"data-{client}")]
    with local_fleet(tmp_path / "fleet", 2, node_options=given) as fleet:
        fleet.run(own, tmp_path / "run", "deadline-s=240", "join-s=280", "fleet=profile")
        wait_for((tmp_path / "run" / "summary.json").is_file, "the end of the run", 900)
    here, there = pl.read_parquet(tmp_path / "run" / "rounds.parquet"), leanfed.run(dealt).rounds
    assert here["train_loss"].to_list() == pytest.approx(there["train_loss"].to_list(), abs=1e-6)
    assert here["accuracy"].to_list()[-1] == pytest.approx(there["accuracy"].to_list()[-1], abs=1e-6)


def _check_bytes(fleet: LocalFleet, out: Path) -> None:
    """What each node wrote down as sent is what the server counted, byte for byte."""
    clients, accepted = pl.read_parquet(out / "clients.parquet"), audit(fleet, "accepted")
    for number in range(NODES):
        (store,) = (fleet.fleet / "nodes" / f"edge-{number}" / "store").iterdir()
        sent = [json.loads(line) for line in (store / "sent.jsonl").read_text().splitlines()]
        mine = clients.filter(clients["client"] == number)
        assert [row["bytes"] for row in sent] == mine["frame_bytes"].to_list()
        assert [8 * row["bytes"] for row in sent] == mine["coded_bits"].to_list()
        assert [row["sha256"] for row in sent] == [row["sha256"] for row in accepted if row["client"] == number]
