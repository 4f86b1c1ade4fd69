"""What befalls a real fleet: strangers at its ports, a copied node, a killed process; each is checked on the spot."""

from __future__ import annotations

import json
import os
import shutil
import signal
import ssl
import subprocess
from pathlib import Path

import httpx
from benchmarks.fleet import LEANFED, LocalFleet, audit, free_port, wait_for
from flwr.common.serde import fab_to_proto
from flwr.proto.control_pb2 import StartRunRequest
from flwr.supercore.fab import Fab
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE

from leanfed.deployment.operations import commands
from leanfed.deployment.operations.folder import FleetFolder
from leanfed.deployment.operations.superlink import OUTSIDE

PATIENCE_S = 600.0  # a busy machine is slow, not wrong


def post(fleet: FleetFolder, port: int, path: str, body: bytes) -> int:
    """The status of a call by somebody who trusts the fleet's authority and has no secret of it."""
    kinds = {"content-type": PROTOBUF_MEDIA_TYPE, "accept": PROTOBUF_MEDIA_TYPE}
    trust = ssl.create_default_context(cafile=str(fleet.ca / "ca.crt"))
    with httpx.Client(verify=trust, trust_env=False, timeout=60) as client:
        return client.post(f"https://127.0.0.1:{port}{path}", content=body, headers=kinds).status_code


def start_a_foreign_app(fleet: LocalFleet) -> None:
    """Any user of the server's machine reaches the control port; without the owner's secret it gets no further."""
    folder = FleetFolder.open(fleet.fleet)
    body = StartRunRequest(fab=fab_to_proto(Fab("0" * 64, b"code of a stranger's", {}))).SerializeToString()
    for path in ("start-run", "list-nodes", "register-node"):
        assert post(folder, folder.control_port, f"/v1/control/{path}", body) == 401
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


def call_the_door(address: str, home: Path, *arguments: str) -> str:
    """What a bare flower-supernode says that calls our door with its own idea of security."""
    command = [commands.program("flower-supernode"), "--superlink", address, *arguments]
    home.mkdir()
    done = subprocess.run(
        [*command, "--port", str(free_port()), "--max-retries", "0", "--isolation", "process"],
        env=commands.environment(home),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    return done.stdout + done.stderr


def kill_a_nodes_keeper(fleet: LocalFleet) -> None:
    """kill -9 of the one process that a service manager knows: nothing that it started lives on."""
    folder = fleet.fleet / "nodes" / "edge-1"
    assert len(processes_below(folder)) >= 4
    process = fleet.processes.pop("node-1")
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    wait_for(lambda: processes_below(folder) == [], "the end of all its processes", 60.0)
    assert node_status(fleet, 1)["state"] == "not running"


def node_status(fleet: LocalFleet, number: int) -> dict[str, object]:
    facts: dict[str, object] = json.loads(
        fleet.call("deploy", "status", str(fleet.fleet / "nodes" / f"edge-{number}"), "--json")
    )
    return facts


def processes_below(path: Path) -> list[str]:
    """Command lines that name a folder: what a fleet in it has left behind."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(path) in line:
            found.append(line)
    return found
