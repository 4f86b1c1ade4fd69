"""Bytes of frames in a round of a real fleet on this machine, up and down, with values in fewer bits and differences.

    python -m benchmarks.fleet_bytes [OUT]

LeNet-5, k = 0.05, a test after every round. The first round brings the base to nodes that have nothing, and is told by
itself; a run of T rounds takes (first + (T - 1) later) / T a round.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import polars as pl
from benchmarks.fleet import LocalFleet, local_fleet, wait_for

from leanfed.files import write_json

NODES, ROUNDS = 4, 5
TODAY = "float32, base"
RADIOS = {
    TODAY: "",
    **{
        f"{kind}, differences": f'values = "{kind}"\nbroadcast = "difference"\nvalues_down = "{kind}"\n'
        for kind in ("log8", "log4", "sign")
    },
}


def measure(fleet: LocalFleet, root: Path, name: str) -> dict[str, Any]:
    """Bytes of one run's frames per round and node."""
    out, settings = root / name.replace(", ", "-"), fleet.settings(ROUNDS)
    text = settings.read_text().replace("k = 0.1\n", "k = 0.05\n")
    settings.write_text(f"{text}[radio]\n{RADIOS[name]}")
    fleet.run(settings, out, "deadline-s=240", "join-s=280")
    wait_for((out / "summary.json").is_file, "the end", 900)
    rounds, clients = (pl.read_parquet(out / f"{table}.parquet") for table in ("rounds", "clients"))
    up = clients.group_by("round", maintain_order=True).agg(pl.col("frame_bytes").sum())["frame_bytes"] / NODES
    down = rounds["base_bytes"] / NODES
    later = {"up": round(up[1:].mean()), "down": round(down[1:].mean())}
    return {
        "radio": name,
        "nodes": NODES,
        "first": {"up": round(up[0]), "down": round(down[0])},
        "later": later,
        "losses": rounds["train_loss"].to_list(),
    }


def main() -> None:
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="leanfed-bytes-") as folder, local_fleet(Path(folder), NODES) as fleet:
        for name in RADIOS:
            rows.append(measure(fleet, Path(folder), name))
            today = sum(rows[0]["later"].values())
            rows[-1]["of_today"] = round(sum(rows[-1]["later"].values()) / today, 4)
            print(json.dumps(rows[-1]), flush=True)
    if len(sys.argv) > 1:
        write_json(Path(sys.argv[1]), rows)


if __name__ == "__main__":
    main()
