"""A settings file in Flower's simulation engine: 100 virtual clients, three rounds, against leanfed's own simulator.

    python -m benchmarks.fleet_simulation [OUT]

Ray listens on all addresses, so the engine gets a network of its own where the machine lets us make one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import polars as pl

import leanfed
from leanfed.files import write_json
from leanfed.runs.settings import Settings

CLIENTS, ROUNDS = 100, 3
ALONE = ["unshare", "--map-root-user", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
SETTINGS = """
name = "virtual"
seed = 1
rounds = {rounds}
[task.partition]
kind = "dirichlet"
alpha = 0.5
clients = {clients}
[algorithm]
name = "flpdsp"
k = 0.1
r = 0.8
[evaluation]
every = 1
[run]
engine = "reference"
threads = 1
"""


def simulate(root: Path, clients: int, rounds: int) -> dict[str, Any]:
    """Both simulators on one settings file; what they took, and how far their losses are apart."""
    settings, out = root / "settings.toml", root / "out"
    settings.write_text(SETTINGS.format(clients=clients, rounds=rounds))
    began = time.monotonic()
    command = [sys.executable, "-m", "leanfed.deployment.learning.simulate", str(settings), str(out)]
    ended = subprocess.run([*_apart(), *command], capture_output=True, text=True, check=False)
    seconds = time.monotonic() - began
    if ended.returncode:
        raise RuntimeError(f"Flower's simulation ended with {ended.returncode}: {ended.stderr[-2000:]}")
    here = pl.read_parquet(out / "run" / "rounds.parquet")
    began = time.monotonic()
    there = leanfed.run(Settings.from_toml(settings)).rounds
    own = time.monotonic() - began
    return {
        "clients": clients,
        "rounds": here.height,
        "participants": here["participants"].to_list(),
        "seconds": round(seconds, 1),
        "seconds_of_rounds": [round(value, 2) for value in here["elapsed_s"]],
        "seconds_of_leanfed_run": round(own, 2),
        "train_loss": here["train_loss"].to_list(),
        "accuracy": here["accuracy"].to_list(),
        "largest_difference_of_losses": float((here["train_loss"] - there["train_loss"]).abs().max()),
        "largest_difference_of_accuracies": float((here["accuracy"] - there["accuracy"]).abs().max()),
        "load_average": round(os.getloadavg()[0], 1),
    }


def _apart() -> list[str]:
    """A network of its own, or nothing where that is not allowed."""
    try:
        allowed = subprocess.run([*ALONE, "true"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        allowed = False
    return ALONE if allowed else []


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="leanfed-virtual-") as folder:
        report = simulate(Path(folder), CLIENTS, ROUNDS)
    print(json.dumps(report, indent=2))
    if len(sys.argv) > 1:
        write_json(Path(sys.argv[1]), report)


if __name__ == "__main__":
    main()
