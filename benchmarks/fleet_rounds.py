"""Seconds and CPU-seconds of a round on a real fleet of four nodes, with warm nodes and without.

    python -m benchmarks.fleet_rounds [OUT]

The first round is left out: it loads data and fills caches. CPU-seconds are those of all nodes and the server.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import polars as pl
from benchmarks.fleet import events, local_fleet, wait_for

from leanfed.files import write_json

NODES, ROUNDS = 4, 7


def measure(root: Path, *, warm: bool) -> dict[str, Any]:
    """One run; a row of the table."""
    out = root / "run"
    with local_fleet(root, NODES, warm=warm) as fleet:
        fleet.run(fleet.settings(ROUNDS), out, "deadline-s=240", "join-s=280")
        wait_for(lambda: len(events(out, "round")) >= 1, "the first round", 900)
        began, cpu_s = time.monotonic(), fleet.cpu_s()
        wait_for(lambda: len(events(out, "round")) >= ROUNDS, "the last round", 900)
        seconds, cpu_s, load = time.monotonic() - began, fleet.cpu_s() - cpu_s, os.getloadavg()[0]
        wait_for((out / "summary.json").is_file, "the end", 300)
    rounds = ROUNDS - 1
    losses = pl.read_parquet(out / "rounds.parquet")["train_loss"].to_list()
    each = [row["seconds"]["total"] for row in events(out, "round")][1:]
    return {
        "nodes": NODES,
        "warm": warm,
        "seconds_per_round": round(seconds / rounds, 2),
        "median_seconds_per_round": round(statistics.median(each), 2),
        "cpu_s_per_round": round(cpu_s / rounds, 2),
        "cpu_s_per_message": round(cpu_s / rounds / NODES, 2),
        "load_average": round(load, 1),  # of the machine while it was measured, this fleet included
        "losses": losses,
    }


def main() -> None:
    rows = []
    for warm in (True, False):
        with tempfile.TemporaryDirectory(prefix="leanfed-rounds-") as folder:
            rows.append(measure(Path(folder), warm=warm))
            print(json.dumps(rows[-1]), flush=True)
    if rows[0]["losses"] != rows[1]["losses"]:
        sys.exit("warm and cold nodes did not learn the same")
    if len(sys.argv) > 1:
        write_json(Path(sys.argv[1]), {"rows": rows})


if __name__ == "__main__":
    main()
