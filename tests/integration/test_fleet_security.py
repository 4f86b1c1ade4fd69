"""A real fleet on loopback, by the guide's own commands: it trains while strangers knock, and nobody is left behind."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from benchmarks.fleet import free_port
from flwr.proto.runtime_pb2 import AcquireTaskRequest

from leanfed.deployment.operations import commands, keys
from leanfed.deployment.operations.folder import Bundle, FleetFolder
from leanfed.deployment.operations.log_watch import RUNTIME
from leanfed.deployment.operations.roster import Roster
from leanfed.results import RunFolder
from tests.integration.strangers import PATIENCE_S, call_the_door, post, processes_below

pytestmark = [pytest.mark.fleet, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "docs" / "fleet.md").read_text()
HOSTILE = Path(__file__).parent / "hostile_node"


def guide_commands() -> list[list[str]]:
    """The arguments of the guide's first `leanfed` commands, as a shell would pass them."""
    block = re.search(r"in five commands\n\n```\n(.*?)```", GUIDE, re.DOTALL)[1]
    lines = [line.split("#")[0].split() for line in block.strip().splitlines()]
    assert len(lines) == 5
    return lines[1:]


@dataclass
class Terminal:
    """A command in the foreground of its own terminal."""

    process: subprocess.Popen[str]
    output: Path

    def wait_for(self, words: str, times: int = 1) -> None:
        wait(lambda: self.output.read_text().count(words) >= times or self.process.poll() is not None)
        assert self.output.read_text().count(words) >= times, self.output.read_text()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(60)


@dataclass
class Site:
    """A folder in which the guide is followed."""

    path: Path
    fleet_port: int
    control_port: int
    terminals: list[Terminal] = field(default_factory=list)

    @property
    def fleet(self) -> FleetFolder:
        return FleetFolder.open(self.path / "fleet")

    def call(self, arguments: list[str], **env: str) -> Terminal:
        output = self.path / f"terminal-{len(self.terminals)}.txt"
        parts = [str(p) for a in arguments for p in (sorted(self.path.glob(a)) if "*" in a else [a])]
        with output.open("w") as file:
            process = subprocess.Popen(
                [commands.program("leanfed"), *parts],
                cwd=self.path,
                stdout=file,
                stderr=subprocess.STDOUT,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1", **env},
                start_new_session=True,
            )
        self.terminals.append(Terminal(process, output))
        return self.terminals[-1]

    def refused(self, why: str) -> list[dict[str, object]]:
        return [row for row in self.fleet.audit.read() if row["event"] == "refused" and why in str(row["why"])]


def wait(condition: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, "too long"
        time.sleep(0.1)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    place = Site(tmp_path, free_port(), free_port())
    (place.path / "start.toml").write_text(re.search(r"<!-- start.toml -->\n```toml\n(.*?)```", GUIDE, re.DOTALL)[1])
    yield place
    for terminal in reversed(place.terminals):
        if terminal.process.poll() is None:
            terminal.process.kill()  # its children go with it
            terminal.process.wait()


def knock(site: Site) -> None:
    """Everything a stranger may try, while the fleet trains."""
    fleet, other = site.fleet, keys.make_fleet(site.path / "other", nodes=["edge-0"])
    trust = ["--root-certificates", str(fleet.ca / "ca.crt")]
    strangers = (
        [*trust, "--auth-supernode-private-key", str(other.bundle("edge-0") / "node.key")],
        trust,
        ["--insecure"],
        ["--root-certificates", str(other.ca / "ca.crt")],
    )
    address = f"127.0.0.1:{site.fleet_port}"
    with ThreadPoolExecutor(len(strangers)) as together:
        homes = [site.path / f"stranger-{number}" for number in range(len(strangers))]
        list(together.map(lambda home, arguments: call_the_door(address, home, *arguments), homes, strangers))
    body = AcquireTaskRequest().SerializeToString()
    for port, path, status in (
        (site.control_port, "/v1/runtime/acquire-task", 401),
        (site.fleet_port, "/v1/runtime/acquire-task", 404),
        (site.fleet_port, "/v1/control/start-run", 404),
    ):
        assert post(fleet, port, path, body) == status


def train_while_strangers_knock(site: Site) -> None:
    make, serve, join, run = (arguments[1:] for arguments in guide_commands())
    ports = ["--port", str(site.fleet_port), "--control-port", str(site.control_port)]
    assert site.call([*make, *ports]).process.wait(PATIENCE_S) == 0
    server = site.call(serve)
    server.wait_for("ready")
    # The third node is hostile: it sends noise instead of its update, then a frame that claims ten gigabytes.
    nodes = [site.call([*join[:2], f"fleet/nodes/edge-{n}"]) for n in (0, 1)]
    nodes.append(
        site.call(
            [*join[:2], "fleet/nodes/edge-2"], PYTHONPATH=f"{HOSTILE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
        )
    )
    for node in nodes:
        node.wait_for("has joined")
    training = site.call([*run, "--out", "run"])
    knock(site)
    assert training.process.wait(PATIENCE_S) == 0, training.output.read_text()

    # The run is unharmed: all its rounds, with the two honest nodes in each.
    folder = RunFolder(site.path / "run")
    assert folder.finished
    assert folder.read_table("rounds").height == 3
    accepted = [(r["round"], r["client"]) for r in site.fleet.audit.read() if r["event"] == "accepted"]
    assert sorted(accepted) == [(number, client) for number in range(3) for client in (0, 1)]

    # And everybody who was refused is named.
    for why in (
        *("unknown key", "no key of this fleet", "plain text, not TLS", "it trusts another authority"),
        *(RUNTIME, "call to the runtime API", "call to the control API"),
    ):
        assert site.refused(why), why
    assert {row["kind"] for row in site.refused("") if row.get("client") == 2} == {"malformed"}


def try_an_expired_key_and_an_expired_certificate(site: Site) -> None:
    fleet = site.fleet
    keys.add_node(fleet, "late")
    keys.renew(fleet, "late", -1)
    late = site.call(["deploy", "node", "fleet/nodes/late", "--max-retries", "0"])
    assert late.process.wait(PATIENCE_S) == 2
    assert "expired key" in late.output.read_text()
    (refusal,) = site.refused("expired key")
    assert refusal["node"] == "late"

    # An impostor with a certificate of ours that has ended: the node does not talk to it, and says why.
    impostor = site.path / "impostor"
    shutil.copytree(fleet.path, impostor, ignore=shutil.ignore_patterns("state.db*", "flwr", "logs", "warm"))
    old = FleetFolder.open(impostor)
    keys.issue_server(old, days=-1)
    port = free_port()
    door = subprocess.Popen(commands.door(old, host="127.0.0.1", port=port, max_upload_mb=1), cwd=site.path)
    try:
        wait(lambda: any(row.get("address") == f"127.0.0.1:{port}" for row in old.audit.read()))
        node = site.call(
            ["deploy", "node", "impostor/nodes/edge-0", "--server", f"127.0.0.1:{port}", "--max-retries", "0"]
        )
        assert node.process.wait(PATIENCE_S) == 2
    finally:
        door.terminate()
        door.wait(30)
    assert "has expired" in node.output.read_text()
    assert [row["event"] for row in Bundle.open(old.bundle("edge-0")).audit.read()][-1] == "server refused"
    assert list(old.audit.read())[-1]["why"] == "the client refused our certificate: it has expired"


def revoke_one_and_add_another(site: Site) -> None:
    fleet = site.fleet
    assert site.call(["deploy", "keys", "fleet", "--revoke", "edge-1", "--add", "edge-9"]).process.wait(PATIENCE_S) == 0
    edge_1 = next(t for t in site.terminals if "edge-1 (client 1) has joined" in t.output.read_text())
    assert edge_1.process.wait(PATIENCE_S) == 2  # SuperNode ends without a word when it is refused; we say why
    assert "refused edge-1: revoked key" in edge_1.output.read_text()
    assert site.refused("revoked key")
    newcomer = site.call(["deploy", "node", "fleet/nodes/edge-9"])
    newcomer.wait_for("has joined")
    assert Roster.load(fleet.registry)["edge-9"].client_id == 4
    status = site.call(["deploy", "status", "fleet", "--json"])
    assert status.process.wait(PATIENCE_S) == 0
    facts = json.loads(status.output.read_text())
    assert facts["server"] == "running"
    states = {row["node"]: row["state"] for row in facts["nodes"]}
    assert states["edge-1"] == "revoked key"
    assert states["edge-9"] == states["edge-0"] == "online"
    assert facts["refusals"]


def stop_everything(site: Site) -> None:
    for terminal in reversed(site.terminals):
        if terminal.process.poll() is None:
            assert terminal.stop() == 0, terminal.output.read_text()
    assert [row["event"] for row in site.fleet.audit.read()][-1] == "server stopped"
    assert not site.fleet.running.exists()
    assert processes_below(site.path) == []


def test_the_guides_fleet_trains_while_strangers_knock_and_leaves_nothing_behind(site: Site) -> None:
    # One test: starting a fleet costs most of its time.
    train_while_strangers_knock(site)
    try_an_expired_key_and_an_expired_certificate(site)
    revoke_one_and_add_another(site)
    stop_everything(site)
