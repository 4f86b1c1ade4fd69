"""A real fleet behind throttled links: are its seconds predicted, and do planned rates reach a target sooner?

    python -m benchmarks.fleet_links [OUT]

Four nodes behind proxies of our own on loopback (1, 5, 5 and 20 Mbit/s each way, 200, 100, 50 and 10 ms there and back)
play the same experiment four times: planned by the fast form of FLPDSP-OPT from measured links; with fixed rates and
the same aids (whole heads, as many head steps), at the k that the form settles on and at a large one; with fixed rates
as published.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import polars as pl
from benchmarks.fleet import LocalFleet, events, wait_for
from benchmarks.throttle import throttled

from leanfed.files import write_json
from leanfed.tasks.head_budget import head_steps

LINKS = [(1e6, 0.2), (5e6, 0.1), (5e6, 0.05), (20e6, 0.01)]  # bit/s, seconds there and back
ROUNDS, LEARNED = 30, 10
TARGETS = (0.6, 0.7, 0.8, 0.85, 0.9)
SETTINGS = """
name = "links"
seed = 3
rounds = {rounds}
[task]
dataset = "mnist-5k"
[task.partition]
kind = "class"
classes_per_client = 4
clients = {nodes}
[training]
local_steps = 2
[algorithm]
name = "flpdsp"
{rates}
sparsify.error_feedback = true
{allocation}
[evaluation]
every = 1
[run]
engine = "reference"
threads = 1
"""
FIXED = {"rates": "k = 0.5\nr = 0.5", "allocation": ""}
AIDED = "k = {k}\nr = 1.0\nhead_steps = {steps}\nprune.head_memory = 'keep'"
HEAD_STEPS = head_steps("lenet5", None)  # as many as the fast form takes
RULE, LARGE = ({"rates": AIDED.format(k=k, steps=HEAD_STEPS), "allocation": ""} for k in (0.05, 0.5))
PLANNED = {
    "rates": "",
    "allocation": '[allocation]\nrule = "joint"\nform = "fast"\ndeadline_s = 120.0\nenergy_budget_j = 1e6',
}

RUNS = {"planned": PLANNED, "rule": RULE, "large": LARGE, "fixed": FIXED}


def play(fleet: LocalFleet, name: str, given: dict[str, str]) -> Path:
    """One run, waited for."""
    settings = fleet.folder / f"{name}.toml"
    settings.write_text(SETTINGS.format(rounds=ROUNDS, nodes=len(LINKS), **given))
    out = fleet.folder / name
    fleet.run(settings, out, "deadline-s=240", "join-s=400")
    wait_for((out / "summary.json").is_file, f"the end of {name}", 3000)
    return out


def row_of(name: str, out: Path) -> dict[str, Any]:
    """What a run tells: errors of predictions after ten rounds, and measured seconds to each target."""
    rounds, clients = (pl.read_parquet(out / f"{table}.parquet") for table in ("rounds", "clients"))
    later = clients.filter((pl.col("round") >= LEARNED) & pl.col("prediction_error").is_not_null())
    elapsed = rounds["elapsed_s"].cum_sum().to_list()
    reached = {}
    for target in TARGETS:
        first = [n for n, value in enumerate(rounds["accuracy"].to_list()) if value is not None and value >= target]
        reached[f"{target:g}"] = round(elapsed[first[0]], 1) if first else None
    whole = rounds.filter(pl.col("round") >= LEARNED)["prediction_error"].drop_nulls().abs().median()
    return {
        "run": name,
        "median_error_clients": round(float(later["prediction_error"].abs().median()), 3),  # type: ignore[arg-type]
        "median_error_rounds": None if whole is None else round(float(whole), 3),  # type: ignore[arg-type]
        "errors_by_link": {
            str(client): round(float(rows["prediction_error"].abs().median()), 3)  # type: ignore[arg-type]
            for (client,), rows in sorted(later.group_by("client"))
        },
        "median_seconds_per_round": round(statistics.median(rounds["elapsed_s"].to_list()), 2),
        "mean_k": round(float(clients["k"].mean()), 4),  # type: ignore[arg-type]
        "participants": round(clients.height / rounds.height, 2),
        "accuracy": rounds["accuracy"].to_list()[-1],
        "seconds_to": reached,
        "rounds": rounds.height,
        "probes": sum(
            1 for line in (out.parent / "fleet" / "audit.jsonl").read_text().splitlines() if '"probed"' in line
        ),
    }


def main() -> None:
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # by the way that stops the fleet
    rows = []
    with tempfile.TemporaryDirectory(prefix="leanfed-links-") as folder:
        fleet = LocalFleet(Path(folder), len(LINKS))
        fleet.make()
        door = json.loads((fleet.fleet / "nodes" / "edge-0" / "node.json").read_text())["server"].rsplit(":", 1)[1]
        with throttled(int(door), LINKS) as proxies:
            for number, proxy in enumerate(proxies):
                fleet.node_options[number] = ["--server", f"127.0.0.1:{proxy.port}"]
            try:
                fleet.start_server()
                fleet.start_nodes()
                for name, given in RUNS.items():
                    out = play(fleet, name, given)
                    load = round(os.getloadavg()[0], 1)
                    rows.append({**row_of(name, out), "load_average": load, "rounds_logged": len(events(out, "round"))})
                    print(json.dumps(rows[-1]), flush=True)
            finally:
                fleet.stop()
    if len(sys.argv) > 1:
        links = [{"mbit_per_s": rate / 1e6, "rtt_ms": 1e3 * rtt} for rate, rtt in LINKS]
        write_json(Path(sys.argv[1]), {"links": links, "rows": rows})


if __name__ == "__main__":
    main()
