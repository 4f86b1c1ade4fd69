"""Memory of a warm node between two messages, process by process: PSS, which counts shared pages once among all.

python -m benchmarks.node_memory [OUT] [--python PYTHON]

A server and one node on this machine carry out a short run with LeNet-5; then the node's processes are read. PYTHON is
the interpreter of the node, for an environment made by release/node.txt; the server has this one.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from benchmarks.fleet import descendants, local_fleet, wait_for

from leanfed.files import write_json

ROLES = {  # a word of a process's command line -> what it is
    "operations.warm_programs": "torch",
    "operations.supernode": "supernode",
    "flower-superexec": "superexec",
    "deploy": "deploy_node",
}
SETTINGS = """
rounds = 2
[task.partition]
kind = "iid"
clients = 1
[algorithm]
name = "flpdsp"
k = 0.1
"""
SETTLE_S = 5.0  # after the run, until what it used is loaded for the next


def role(pid: int) -> str:
    words = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    if Path(f"/proc/{pid}/comm").read_text().startswith("flower-superexe"):  # as much as the kernel keeps of a name
        return "superexec"
    return next((name for word, name in ROLES.items() if word in words), words.strip() or "ended")


def pss_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1000


def measure(python: str) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as place, local_fleet(Path(place), 1, node_python=python) as fleet:
        out, settings = Path(place) / "run", Path(place) / "settings.toml"
        settings.write_text(SETTINGS)
        fleet.run(settings, out)
        wait_for((out / "summary.json").is_file, "the end of the run", 600.0)
        time.sleep(SETTLE_S)
        top = fleet.processes["node-0"].pid
        found: dict[str, float] = {}
        for pid in [top, *descendants(top)]:
            with suppress(OSError):
                found[role(pid)] = found.get(role(pid), 0.0) + pss_mb(pid)
    sizes = {name: round(found[name]) for name in sorted(found, key=lambda name: -found[name])}
    return {"node_mb": round(sum(found.values())), "processes_mb": sizes}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", nargs="?", type=Path)
    parser.add_argument("--python", default=sys.executable)
    given = parser.parse_args()
    measured = measure(given.python)
    print(json.dumps(measured, indent=1))
    if given.out is not None:
        write_json(given.out, measured)
