"""A report over 20 runs of 1,000 rounds and 100 clients: seconds to build, bytes, seconds to open in Chromium.

    chrt -r 5 python benchmarks/report_scale.py [OUT [RUNS]]

`chrt` keeps other work on the machine from counting; on a quiet one it can be left out.
The run folders are written by the real loop over the real fleet, plans and accounts; only the learning is left out,
which the page does not look at. Making them takes some minutes, which count nowhere; RUNS keeps them where it is named.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from playwright.sync_api import sync_playwright

import leanfed
from leanfed.algorithms.contract import ServerState
from leanfed.compression import exact
from leanfed.files import write_json
from leanfed.records import RoundPlan
from leanfed.report.page import build_report
from leanfed.rounds.client_store import ClientStore
from leanfed.rounds.engine import Engine
from leanfed.rounds.evaluation import Evaluation
from leanfed.rounds.exchange import Answers
from leanfed.rounds.world import World
from leanfed.runs import play
from leanfed.runs.settings import Settings

SEEDS, ROUNDS, CLIENTS = 5, 1_000, 100
METHODS: dict[str, dict[str, Any]] = {
    "FLPDSP-OPT": {"algorithm": {"name": "flpdsp"}, "allocation": {"rule": "joint", "form": "fast"}},
    "FLPDSP": {"algorithm": {"name": "flpdsp", "k": 0.1, "r": 0.8}},
    "FedPer": {"algorithm": {"name": "fedper"}},
    "FedAvg": {"algorithm": {"name": "fedavg"}},
}
OPENINGS = 5


class NoLearning(Engine):
    """Answers every round at once with columns of the right shape; accuracy rises with the rounds."""

    name = "no learning"

    def __init__(self, world: World, seed: int) -> None:
        self.world, self.learner = world, world.new_learner()
        self.random, self.rounds = np.random.default_rng(seed), 0

    def exchange(self, server: ServerState, clients: ClientStore, plan: RoundPlan, *, single: bool) -> Answers:
        """Gradients of zero."""
        count, size = len(plan.participants), len(server.shared)
        self.rounds = plan.round + 1
        gamma, losses = self.world.task.gamma[list(plan.participants)], self.random.uniform(0.1, 2.3, count)
        entries = np.ceil(plan.k * size).astype(np.int64)
        return Answers(gamma, losses, np.full(count, 32), entries, None, exact.zeros(size), (), None)

    def evaluate(self, server: ServerState, clients: ClientStore) -> Evaluation:
        """1 - exp(-t / 150) and some noise, client by client."""
        level = 0.95 * (1 - np.exp(-self.rounds / 150))
        accuracy = np.clip(level + self.random.normal(0, 0.05, CLIENTS), 0, 1)
        return Evaluation(accuracy, 2.3 * (1 - accuracy), self.world.task.gamma)


def make_runs(folder: Path, rounds: int = ROUNDS) -> None:
    """The twenty run folders."""
    for name, changes in METHODS.items():
        for seed in range(SEEDS):
            if (folder / f"{name.lower()}-{seed}/summary.json").is_file():
                continue
            values = {
                "name": name,
                "seed": seed,
                "rounds": rounds,
                "task": {"partition": {"kind": "class", "classes_per_client": 2, "clients": CLIENTS}},
                "evaluation": {"every": 5},
                "run": {"checkpoint_every": rounds, "keep_weights": False},
                **changes,
            }
            with mock.patch.object(play, "engine_of", lambda settings, world: NoLearning(world, settings.seed)):
                leanfed.run(Settings.from_values(values), folder / f"{name.lower()}-{seed}")


def measure(runs: Path, page: Path) -> dict[str, Any]:
    """Build the page once and open it some times."""
    load = os.getloadavg()[0]
    wall, cpu = time.perf_counter(), time.process_time()
    data = build_report([runs], page)
    built = {"build_s": time.perf_counter() - wall, "build_cpu_s": time.process_time() - cpu}
    if data["flaws"] or len(data["runs"]) != SEEDS * len(METHODS):
        sys.exit(f"the page is not whole: {data['flaws']}")
    opened = openings(page)
    return {
        "runs": len(data["runs"]),
        "rounds": data["runs"][0]["rounds"],
        "clients": data["groups"][0]["clients"],
        **{name: round(value, 2) for name, value in built.items()},
        "megabytes": round(page.stat().st_size / 1e6, 2),
        "open_s": [round(seconds, 2) for seconds, _ in sorted(opened)],
        "open_cpu_s": [round(seconds, 2) for _, seconds in sorted(opened)],
        "load_before": round(load, 2),
        "real_time": os.sched_getscheduler(0) == os.SCHED_RR,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
    }


def openings(page: Path) -> list[tuple[float, float]]:
    """Seconds from asking for the file to its first figure drawn and every table filled; also of the page's own CPU."""
    found = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for _ in range(OPENINGS):
            window = browser.new_page(viewport={"width": 1280, "height": 900})
            told = window.context.new_cdp_session(window)
            told.send("Performance.enable", {"timeDomain": "threadTicks"})
            began = time.perf_counter()
            window.goto(page.as_uri())
            window.wait_for_selector("#figure-accuracy[data-state='drawn']")
            wall = time.perf_counter() - began
            metrics = {row["name"]: row["value"] for row in told.send("Performance.getMetrics")["metrics"]}
            found.append((wall, metrics["TaskDuration"]))
            window.close()
        browser.close()
    return found


def main() -> None:
    """Make, measure, print, keep."""
    with tempfile.TemporaryDirectory(prefix="leanfed-scale-") as folder:
        runs = Path(sys.argv[2] if len(sys.argv) > 2 else folder + "/runs")
        make_runs(runs)
        row = measure(runs, Path(folder) / "report.html")
    print(json.dumps(row))
    if len(sys.argv) > 1:
        write_json(Path(sys.argv[1]), row)


if __name__ == "__main__":
    main()
