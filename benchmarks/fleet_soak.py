"""A fleet left alone among faults: nodes and server killed at random, an outage, a poisoned node and a slow one.

    python -m benchmarks.fleet_soak [OUT] [--nodes 8] [--rounds 200] [--outage-s 180] [--every-s 60] [--seed 0]

Nodes are started again as a service manager would; the server, once it is up, goes on with its run by itself. In the
end the run is beside an undisturbed one of the simulator with the same settings, all clients honest; every round must
be there, every honest head must be the one of its last applied round, and no process may be left.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
from benchmarks.fleet import LocalFleet, audit, events, wait_for
from benchmarks.fleet_chaos import last_round, newest
from benchmarks.throttle import throttled

import leanfed
from leanfed.files import write_json
from leanfed.runs.settings import Settings

SLOW = (0.25e6, 0.3)  # bit/s, seconds there and back
POISON = Path(__file__).parent / "poisoned_node"
KEYS = ("deadline-s=120", "join-s=60", "quorum=0.5", "close-at=0.85", "late=use", "attempts=20")
SETTINGS = """
name = "soak"
seed = 3
rounds = {rounds}
[task]
dataset = "mnist-5k"
[task.partition]
kind = "class"
classes_per_client = 4
clients = {nodes}
[training]
local_steps = 5
[algorithm]
name = "flpdsp"
k = 0.1
r = 0.8
sparsify.error_feedback = true
[evaluation]
every = 5
[run]
engine = "reference"
threads = 1
"""


class Chaos(threading.Thread):
    """Kills at random until it is told to stop; what it did is in `acts`."""

    def __init__(self, fleet: LocalFleet, out: Path, given: argparse.Namespace) -> None:
        super().__init__(daemon=True)
        self.fleet, self.out, self.given = fleet, out, given
        self.draw = random.Random(given.seed)
        self.acts: list[dict[str, Any]] = []
        self.done = threading.Event()
        self.outage_due = True

    def run(self) -> None:
        while not self.done.wait(self.draw.uniform(0.5, 1.5) * self.given.every_s):
            passed = len(events(self.out, "round"))
            if self.outage_due and passed >= self.given.rounds // 2:
                self.outage_due = False
                self._server("outage", self.given.outage_s)
            elif self.draw.random() < 0.25:
                self._server("server", 5.0)
            else:
                self._node(self.draw.randrange(self.given.nodes))

    def _note(self, what: str, **facts: Any) -> None:
        self.acts.append({"at_round": len(events(self.out, "round")), "killed": what, **facts})
        print(f"{time.strftime('%X')} {json.dumps(self.acts[-1])}", flush=True)

    def _server(self, what: str, away_s: float) -> None:
        self._note(what, away_s=away_s)
        self.fleet.kill("server")
        self.done.wait(away_s)
        self.fleet.start_server()

    def _node(self, number: int) -> None:
        self._note("node", node=number)
        self.fleet.kill(f"node-{number}")
        self.done.wait(self.draw.uniform(1.0, 20.0))
        self.fleet.start_node(number)


def left_behind(folder: Path) -> list[str]:
    """Processes that still name the fleet's folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in words and int(path.parent.name) != os.getpid():
            found.append(words[:120])
    return found


def report_of(fleet: LocalFleet, out: Path, settings: Path, chaos: Chaos, poisoned: int) -> dict[str, Any]:
    rounds, clients = (pl.read_parquet(out / f"{name}.parquet") for name in ("rounds", "clients"))
    undisturbed = leanfed.run(Settings.from_toml(settings)).rounds
    lost = [f"round {number}" for number in range(rounds.height) if number not in rounds["round"].to_list()]
    honest = [number for number in range(chaos.given.nodes) if number != poisoned]
    lost += [f"head of client {number}" for number in honest if last_round(fleet, number) != newest(clients, number)]
    lost += [f"head of client {row['client']}" for row in audit(fleet, "store_fresh") if row["round"] > 0]
    names = ("joined", "accepted", "used_late", "late", "lost", "refused", "set_aside", "no_quorum", "rests", "probed")
    accuracy, there = rounds["accuracy"].drop_nulls()[-1], undisturbed["accuracy"].drop_nulls()[-1]
    return {
        "nodes": chaos.given.nodes,
        "rounds": rounds.height,
        "acts": dict(Counter(act["killed"] for act in chaos.acts)),
        "outage_s": chaos.given.outage_s,
        "poisoned_updates_applied": clients.filter(pl.col("client") == poisoned).height,
        "lost": lost,
        "accuracy": accuracy,
        "accuracy_undisturbed": there,
        "points_apart": round(100 * (accuracy - there), 2),
        "seconds": round(float(rounds["elapsed_s"].sum()), 1),
        "load_average": round(os.getloadavg()[0], 1),
        "audit": {name: len(audit(fleet, name)) for name in names},
        "refused_as": dict(Counter(row.get("kind", "door") for row in audit(fleet, "refused"))),
    }


def play(root: Path, given: argparse.Namespace) -> dict[str, Any]:
    poisoned, slow = given.nodes - 2, given.nodes - 1
    fleet = LocalFleet(root, given.nodes)
    settings, out = root / "soak.toml", root / "run"
    settings.write_text(SETTINGS.format(rounds=given.rounds, nodes=given.nodes))
    fleet.make()
    fleet.node_env[poisoned] = {"PYTHONPATH": f"{POISON}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    door = json.loads((fleet.fleet / "nodes" / "edge-0" / "node.json").read_text())["server"].rsplit(":", 1)[1]
    with throttled(int(door), [SLOW]) as (proxy,):
        fleet.node_options[slow] = ["--server", f"127.0.0.1:{proxy.port}"]
        chaos = Chaos(fleet, out, given)
        try:
            fleet.start_server()
            fleet.start_nodes()
            fleet.run(settings, out, *KEYS)
            wait_for(lambda: bool(events(out, "round")), "the first round", 1200)
            chaos.start()
            wait_for((out / "summary.json").is_file, "the end of the run", given.patience_s)
        finally:
            chaos.done.set()
            if chaos.is_alive():
                chaos.join(400)
            fleet.stop()
        report = report_of(fleet, out, settings, chaos, poisoned)
    return {**report, "processes_left": left_behind(root)}


def main() -> None:
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # by the way that stops the fleet
    asked = argparse.ArgumentParser()
    asked.add_argument("out", nargs="?", type=Path)
    for name, value in (("nodes", 8), ("rounds", 200), ("seed", 0)):
        asked.add_argument(f"--{name}", type=int, default=value)
    for name, seconds in (("outage-s", 180.0), ("every-s", 60.0), ("patience-s", 14_400.0)):
        asked.add_argument(f"--{name}", type=float, default=seconds)
    given = asked.parse_args()
    with tempfile.TemporaryDirectory(prefix="leanfed-soak-") as folder:
        report = play(Path(folder), given)
    print(json.dumps(report, indent=1))
    if given.out is not None:
        write_json(given.out, report)
    sys.exit(bool(report["lost"] or report["processes_left"]))


if __name__ == "__main__":
    main()
