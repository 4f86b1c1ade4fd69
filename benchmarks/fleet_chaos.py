"""Kill -9 in the middle of rounds: a node, the server's run, the whole server. Prints what was lost.

    python -m benchmarks.fleet_chaos [OUT]

A node is started again as a service manager would; run and server are started again and the run is resumed by one
command. In the end the run is compared with a simulated one in which the same clients took part in the same rounds.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import polars as pl
from benchmarks.fleet import LocalFleet, audit, descendants, events, local_fleet, wait_for

import leanfed
from leanfed.files import write_json
from leanfed.runs.settings import Settings

NODES, ROUNDS = 4, 9
KEYS = ("deadline-s=150", "join-s=280", "quorum=0.5")
PATIENCE_S = 900.0


def main() -> None:
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    with tempfile.TemporaryDirectory(prefix="leanfed-chaos-") as folder:
        root = Path(folder)
        out = root / "run"
        with local_fleet(root, NODES) as fleet:
            settings = fleet.settings(ROUNDS)
            fleet.run(settings, out, *KEYS)
            for act, after in ((kill_node, 1), (kill_run, 3), (kill_server, 5)):
                wait_for(lambda after=after: rounds_done(out) > after, f"round {after}", PATIENCE_S)
                in_the_middle(out)
                act(fleet, out)
            wait_for((out / "summary.json").is_file, "the end of the run", PATIENCE_S)
            report = compare(fleet, settings, out)
    print(json.dumps(report, indent=2))
    print("lost: nothing" if report["lost"] == [] else f"LOST: {report['lost']}")
    if target is not None:
        write_json(target, report)
    sys.exit(bool(report["lost"]))


def rounds_done(out: Path) -> int:
    return len(events(out, "round"))


def in_the_middle(out: Path) -> None:
    """Wait until the next round's orders are surely out, and stop well before its end."""
    time.sleep(1.5)
    print(f"{time.strftime('%X')} in the middle of round {rounds_done(out)}", flush=True)


def kill_node(fleet: LocalFleet, out: Path) -> None:
    print("kill -9 of node 2; started again", flush=True)
    fleet.kill("node-2")
    fleet.start_node(2)


def kill_run(fleet: LocalFleet, out: Path) -> None:
    print("kill -9 of the server's run; resumed", flush=True)
    for pid in descendants(fleet.processes["server"].pid):
        with suppress(OSError):
            if Path(f"/proc/{pid}/comm").read_text().strip() == "flwr-serverapp":
                os.kill(pid, signal.SIGKILL)
    time.sleep(1.0)
    fleet.resume(out, *KEYS)


def kill_server(fleet: LocalFleet, out: Path) -> None:
    print("kill -9 of SuperLink, its SuperExec, its run and the door; started again and resumed", flush=True)
    fleet.kill("server")
    fleet.start_server()
    fleet.resume(out, *KEYS)


def compare(fleet: LocalFleet, settings: Path, out: Path) -> dict[str, Any]:
    """What was lost: rounds, heads, learning; an empty list says nothing."""
    rounds, clients = (pl.read_parquet(out / f"{name}.parquet") for name in ("rounds", "clients"))
    took_part = clients.group_by("round", maintain_order=True).agg("client")["client"].to_list()
    same = Settings.from_toml(settings).resolved() | {"participation": {"cohorts": took_part}}
    simulated = leanfed.run(Settings.from_values(same)).rounds
    unbroken = leanfed.run(Settings.from_toml(settings)).rounds
    apart = float((rounds["train_loss"] - simulated["train_loss"]).abs().max())
    lost = [f"round {number}" for number in range(ROUNDS) if number not in rounds["round"].to_list()]
    lost += [f"head of client {row['client']}" for row in audit(fleet, "store_fresh") + audit(fleet, "store_ahead")]
    lost += [
        f"head of client {number}" for number in range(NODES) if last_round(fleet, number) != newest(clients, number)
    ]
    lost += [] if apart <= 1e-6 else [f"learning: losses differ by {apart:g} from the simulator's"]
    return {
        "lost": lost,
        "rounds": rounds.height,
        "took_part": took_part,
        "largest_difference_of_losses": apart,
        "accuracy": rounds["accuracy"][-1],
        "accuracy_simulated": simulated["accuracy"][-1],
        "accuracy_unbroken": unbroken["accuracy"][-1],
        "elapsed_s": rounds["elapsed_s"].to_list(),
        "audit": {
            name: len(audit(fleet, name)) for name in ("joined", "accepted", "late", "lost", "refused", "no_quorum")
        },
    }


def newest(clients: pl.DataFrame, number: int) -> int:
    """The last round of a client that the server applied."""
    return int(clients.filter(pl.col("client") == number)["round"].max())


def last_round(fleet: LocalFleet, number: int) -> int:
    """The round of the head that a node's store would go on with."""
    (store,) = (fleet.fleet / "nodes" / f"edge-{number}" / "store").iterdir()
    manifest = json.loads((store / "manifest.json").read_text())
    return int(manifest["committed"]["round"])


if __name__ == "__main__":
    main()
