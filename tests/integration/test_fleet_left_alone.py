"""A real fleet on loopback that nobody looks after: its server and a node are killed, strangers try their luck."""

from __future__ import annotations

import json
import os
import shutil
import signal
import ssl
import subprocess
import time
from pathlib import Path

import httpx
import pytest

pytest.importorskip("flwr")

from benchmarks.fleet import LEANFED, LocalFleet, audit, events, local_fleet, wait_for
from flwr.common.serde import fab_to_proto
from flwr.proto.control_pb2 import StartRunRequest
from flwr.supercore.fab import Fab
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE

from leanfed.deployment.operations.folder import FleetFolder
from leanfed.deployment.operations.superlink import OUTSIDE

KEYS = ("deadline-s=60", "join-s=240", "quorum=0.5")
PATIENCE_S = 600.0


@pytest.mark.fleet
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


@pytest.mark.slow
def test_nodes_outlive_a_server_that_is_gone_for_longer_than_flowers_ten_retries(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with local_fleet(tmp_path, 2) as fleet:
        kill_the_server_for(fleet, out, seconds=90.0)
        wait_for((out / "summary.json").is_file, "the end of the run", PATIENCE_S)
        for number in range(2):
            facts = node_status(fleet, number)
            assert (facts["state"], facts["restarts"]) == ("joined", 0)
    assert [row["round"] for row in events(out, "round")] == [0, 1, 2, 3]


def start_a_foreign_app(fleet: LocalFleet) -> None:
    """Any user of the server's machine reaches the control port; without the owner's secret it gets no further."""
    folder = FleetFolder.open(fleet.fleet)
    body = StartRunRequest(fab=fab_to_proto(Fab("0" * 64, b"code of a stranger's", {}))).SerializeToString()
    kinds = {"content-type": PROTOBUF_MEDIA_TYPE, "accept": PROTOBUF_MEDIA_TYPE}
    trust = ssl.create_default_context(cafile=str(folder.ca / "ca.crt"))
    with httpx.Client(verify=trust, trust_env=False, timeout=60) as client:
        for path in ("start-run", "list-nodes", "register-node"):
            url = f"https://127.0.0.1:{folder.control_port}/v1/control/{path}"
            assert client.post(url, content=body, headers=kinds).status_code == 401
    refused = [row for row in audit(fleet, "refused") if row["why"] == OUTSIDE]
    assert refused[0]["path"] == "/v1/control/start-run"
    assert audit(fleet, "run taken") == []


def join_with_an_edited_number(fleet: LocalFleet) -> None:
    """A copied folder whose client number was changed is refused before it starts anything."""
    copy = fleet.folder / "copied"
    shutil.copytree(fleet.fleet / "nodes" / "edge-0", copy, ignore=shutil.ignore_patterns("logs", "flwr", "warm"))
    (copy / "node.json").write_text(json.dumps({**json.loads((copy / "node.json").read_text()), "client_id": 1}))
    done = subprocess.run([*LEANFED, "deploy", "node", str(copy)], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "A number belongs to a key" in done.stdout + done.stderr


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


def kill_a_nodes_keeper(fleet: LocalFleet) -> None:
    """kill -9 of the one process that a service manager knows: nothing that it started lives on."""
    folder = str(fleet.fleet / "nodes" / "edge-1")
    assert len(below(folder)) >= 4
    process = fleet.processes.pop("node-1")
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    wait_for(lambda: below(folder) == [], "the end of all its processes", 60.0)
    assert node_status(fleet, 1)["state"] == "not running"


def below(folder: str) -> list[str]:
    """Command lines that name a node's folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if folder in line:
            found.append(line)
    return found


def node_status(fleet: LocalFleet, number: int) -> dict[str, object]:
    facts: dict[str, object] = json.loads(
        fleet.call("deploy", "status", str(fleet.fleet / "nodes" / f"edge-{number}"), "--json")
    )
    return facts
