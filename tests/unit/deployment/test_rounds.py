"""Rounds over a grid in memory: real apps, real codec, real training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from polars.testing import assert_frame_equal
from safetensors.numpy import load_file

import leanfed
from leanfed.deployment.learning.server import NoQuorumError
from leanfed.errors import LeanfedError, SettingsError
from leanfed.results import RunFolder
from leanfed.tasks.task import build_task
from tests.thinned import by_default
from tests.unit.deployment.fleets import CLIENTS, Trial, die_when, settings_of, write_digits

CODED = {"values": "log4", "broadcast": "difference", "values_down": "log4", "downlink": "broadcast"}
FAST = {"rule": "joint", "form": "fast", "deadline_s": 5.0, "energy_budget_j": None}


LEARNED: dict[str, dict[str, Any]] = {
    "flpdsp": {},
    "fedmask": {"algorithm": {"name": "fedmask"}},
    "momentum": {"algorithm": {"name": "fedavg"}, "training": {"batch_size": 8, "momentum": 0.9}},
    "steps": {"training": {"batch_size": 8, "local_steps": 3}, "participation": {"fraction": 0.6}},
    "adam": {"training": {"batch_size": 8, "optimizer": "adam", "optimizer_part": "private", "optimizer_rate": 0.001}},
    "joint": {"allocation": FAST},
    "measured": {"allocation": FAST | {"form": "tuned"}},
    "coded": {"algorithm": {"name": "flpdsp", "sparsify": {"error_feedback": True}}, "radio": CODED},
    "tuned": {"algorithm": {"name": "fedbabu", "tune_steps": 2}},
    "scaffold": {"algorithm": {"name": "scaffold"}, "participation": {"fraction": 0.6}},
    "feddyn": {"algorithm": {"name": "feddyn"}, "participation": {"fraction": 0.6}},
    "common": {"algorithm": {"name": "flpdsp", "k": 0.1, "sparsify": {"select": "common"}}},
}


# By default what no other one has: masks, a part of the clients, an optimiser's state, signals, views, a tuned test, a
# server that remembers.
@pytest.mark.parametrize(
    "name", by_default(LEARNED, "fedmask", "steps", "adam", "measured", "coded", "tuned", "feddyn")
)
def test_a_fleet_learns_what_the_simulator_learns(tmp_path: Path, name: str) -> None:
    settings = settings_of(**LEARNED[name])
    trial = Trial(settings, tmp_path, {"fleet": "profile"})
    trial.play()
    there = leanfed.run(settings, tmp_path / "simulated").rounds
    here = trial.table("rounds")
    assert here["train_loss"].to_list() == there["train_loss"].to_list()
    for column in (
        "accuracy",
        "loss",
        "worst_decile",
        "majority_guess",
        "latency_s",
        "energy_j",
        "upload_bits",
        "download_bits",
    ):
        np.testing.assert_allclose(here[column].to_numpy(), there[column].to_numpy(), rtol=1e-12)
    by_client = RunFolder(tmp_path / "simulated").read_table("evaluations")
    assert by_client.height == 2 * CLIENTS  # tested after the second round and after the last
    assert_frame_equal(trial.table("evaluations"), by_client, rel_tol=1e-12)


def test_prediction_and_reality_stand_side_by_side(tmp_path: Path) -> None:
    trial = Trial(settings_of(allocation=FAST), tmp_path)
    trial.play()
    clients, rounds = trial.table("clients"), trial.table("rounds")
    assert (
        clients.select("communication_s", "computation_s", "train_s", "upload_s", "elapsed_s").min_horizontal().min()
        > 0
    )
    # From the second round on the CPU is as fast as its last training says, so the model predicts such a time.
    later = clients.filter(clients["round"] == 2)
    ratio = later["computation_s"] / later["train_s"]
    assert 0.02 < ratio.min() <= ratio.max() < 50
    assert rounds["elapsed_s"].min() >= 1.0  # a node takes a second here
    assert (clients["share"] == 1.0).all()  # each on a link of its own: there is no band to share
    predicted = clients["communication_s"] + clients["computation_s"]
    np.testing.assert_allclose(clients["prediction_error"], predicted / clients["elapsed_s"] - 1)
    np.testing.assert_allclose(rounds["prediction_error"], rounds["latency_s"] / rounds["elapsed_s"] - 1)
    assert clients["uncertainty_s"].min() > 0
    assert (clients["coded_bits"] == 8 * clients["frame_bytes"]).all()
    assert (clients["message_bytes"] > clients["frame_bytes"]).all()


def test_the_bytes_counted_are_the_bytes_sent(tmp_path: Path) -> None:
    trial = Trial(settings_of(), tmp_path)
    trial.play()
    clients, accepted = trial.table("clients"), trial.audit("accepted")
    for client in range(CLIENTS):
        sent = [json.loads(line) for line in (trial.store(client) / "sent.jsonl").read_text().splitlines()]
        mine = clients.filter(clients["client"] == client)
        assert [row["bytes"] for row in sent] == mine["frame_bytes"].to_list()
        heard = [row["sha256"] for row in accepted if row["client"] == client]
        assert [row["sha256"] for row in sent] == heard
    on_the_wire = b"".join(trial.grid.wire)
    assert clients["message_bytes"].sum() <= len(on_the_wire)


def test_heads_never_leave_the_device(tmp_path: Path) -> None:
    trial = Trial(settings_of(), tmp_path)
    heads: list[np.ndarray] = []
    memories: list[np.ndarray] = []  # of error feedback

    def look(client: int) -> Any:
        def twist(order: Any, reply: Any) -> Any:
            for file in trial.store(client).glob("state-*"):
                state = load_file(file)
                heads.append(state.pop("private"))
                memories.extend(state.values())
            return reply

        return twist

    for client in range(CLIENTS):
        trial.grid.nodes[100 + client].twist = look(client)
    trial.play()
    assert len(heads) > 2 * CLIENTS
    wire = b"".join(trial.grid.wire)
    assert len(wire) > 100_000
    secrets = np.concatenate([_runs(head) for head in heads])
    assert len(np.unique(secrets)) > sum(head.size for head in heads) / 4  # pruned weights are zero and tell nothing
    assert not _found(secrets, wire)
    assert memories
    assert not _found(np.concatenate([_runs(memory) for memory in memories]), wire)
    for kind in ("float32", "float16"):  # the search finds a few bytes of a head wherever they are
        leak = heads[-1][heads[-1] != 0][7:11].astype(kind).tobytes()
        assert _found(_runs(heads[-1][heads[-1] != 0]), wire[:1003] + leak + wire[1003:])


def _runs(head: np.ndarray) -> np.ndarray:
    """Every eight bytes of a head as it could be written: two weights of 32 bits or four of 16, none of them zero."""
    found = []
    for kind, length in (("float32", 2), ("float16", 4)):
        windows = np.lib.stride_tricks.sliding_window_view(head.astype(kind), length)
        found.append(np.ascontiguousarray(windows[(windows != 0).all(axis=1)]).view(np.uint64).ravel())
    return np.concatenate(found)


def _found(secrets: np.ndarray, wire: bytes) -> bool:
    """Whether any of them is anywhere in the bytes that left, at whatever offset."""
    low = np.uint64(2**24 - 1)
    maybe = np.zeros(2**24, dtype=bool)  # by their low bits: what is not in here need not be compared
    maybe[secrets & low] = True
    words = (np.frombuffer(wire, np.uint64, (len(wire) - start) // 8, start) for start in range(8))
    suspects = np.concatenate([some[maybe[some & low]] for some in words])
    return bool(np.isin(secrets, suspects).any())


def test_devices_that_have_only_their_own_samples(tmp_path: Path) -> None:
    """Each device's folder holds its rows and nobody else's: the fleet learns what dealing the whole set teaches."""
    settings = settings_of(rounds=2)
    task = build_task(settings.task, settings.seed)
    own = settings_of(rounds=2, task={**settings.resolved()["task"], "dataset": "mnist"})
    trial = Trial(own, tmp_path, {"fleet": "profile"})
    for client, node in enumerate(trial.grid.nodes.values()):
        root = tmp_path / f"data-{client}"
        write_digits(root, task, task.partition.train[client], task.partition.test[client])
        node.config |= {"data": "own", "data-dir": str(root)}
    trial.play()
    here, there = trial.table("rounds"), leanfed.run(settings).rounds
    assert here["train_loss"].to_list() == there["train_loss"].to_list()
    for name in ("accuracy", "loss", "majority_guess"):
        np.testing.assert_allclose(here[name].to_numpy(), there[name].to_numpy(), rtol=1e-12)


def test_a_device_with_few_samples_and_one_class_can_take_part(tmp_path: Path) -> None:
    """What a device has need not suffice for a split among all clients."""
    settings = settings_of(rounds=1)
    task = build_task(settings.task, settings.seed)
    alone = settings_of(rounds=1, task={**settings.resolved()["task"], "dataset": "mnist"})
    zeros = np.flatnonzero(task.train.labels == 0)[:3], np.flatnonzero(task.test.labels == 0)[:1]
    write_digits(tmp_path / "data", task, *zeros)
    trial = Trial(alone, tmp_path, {"nodes": 1})
    trial.grid.nodes = {104: trial.grid.nodes[104]}
    trial.grid.nodes[104].config |= {"data": "own", "data-dir": str(tmp_path / "data")}
    trial.play()
    assert trial.took_part() == [[4]]
    assert trial.table("clients")["samples"].to_list() == [8]  # a batch, drawn with replacement


@pytest.mark.parametrize("killed_after", [0, 1, 2])
def test_a_server_that_dies_goes_on_where_it_ended(tmp_path: Path, killed_after: int) -> None:
    settings = settings_of(rounds=4, allocation={**FAST, "energy_total_j": 4.0})
    trial = Trial(settings, tmp_path, {"fleet": "profile"})
    die_when(trial, round_number=killed_after)
    with pytest.raises(RuntimeError, match="power cut"):
        trial.play()
    trial.play(resume=True)
    whole = leanfed.run(settings).rounds
    assert trial.losses() == whole["train_loss"].to_list()
    np.testing.assert_allclose(trial.table("rounds")["accuracy"].to_numpy(), whole["accuracy"].to_numpy())
    assert trial.table("evaluations")["round"].unique(maintain_order=True).to_list() == [1, 3]
    assert trial.table("rounds")["round"].to_list() == [0, 1, 2, 3]
    assert trial.audit("no_quorum") == []  # the fleet was waited for, not half of it


def test_a_run_ends_at_the_accuracy_it_is_after(tmp_path: Path) -> None:
    run = {"engine": "reference", "threads": 1, "stop_at_accuracy": 0.01}
    trial = Trial(settings_of(rounds=9, run=run, evaluation={"every": 2}), tmp_path)
    trial.play()
    rounds = trial.table("rounds")
    assert rounds.height == 3  # tested after the second, heard of with the third
    assert rounds["accuracy"].is_null().to_list() == [True, False, False]


def test_a_resumed_run_needs_its_own_settings(tmp_path: Path) -> None:
    trial = Trial(settings_of(rounds=1), tmp_path)
    trial.play()
    trial.play(resume=True)  # finished: nothing to do
    other = Trial(settings_of(rounds=2), tmp_path)
    with pytest.raises(SettingsError, match="other settings"):
        other.play(resume=True)


def test_nobody_comes(tmp_path: Path) -> None:
    trial = Trial(settings_of(), tmp_path)
    trial.grid.nodes.clear()
    with pytest.raises(NoQuorumError, match="No node joined within 30 s"):
        trial.play()
    assert not RunFolder(trial.folder).finished


def test_a_relative_run_folder_is_refused(tmp_path: Path) -> None:
    trial = Trial(settings_of(), tmp_path, {"run-folder": "somewhere"})
    with pytest.raises(LeanfedError, match="absolute path"):
        trial.play()
