"""A large report: 20 runs of 1,000 rounds and 100 clients are built in time, stay small and open fast."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

from leanfed.report.page import build_report
from tests.browser.conftest import Open
from tests.unit.report.folders import write_run

SEEDS, METHODS = 5, ("flpdsp", "fedper", "fedavg", "lg-fedavg")


def test_twenty_long_runs_fit_the_page(tmp_path: Path, open_page: Open) -> None:
    first = write_run(tmp_path / "runs/flpdsp-0", rounds=1_000, clients=100)
    for method in METHODS:
        for seed in range(SEEDS):
            folder = tmp_path / f"runs/{method}-{seed}"
            if folder != first:
                shutil.copytree(first, folder)
            settings = json.loads((folder / "settings.json").read_text())
            settings |= {"seed": seed, "name": method, "algorithm": {"name": method}}
            (folder / "settings.json").write_text(json.dumps(settings))
    # Seconds of this process and of the page's own thread: what others do on the machine does not count.
    began = time.process_time()
    data = build_report([tmp_path / "runs"], tmp_path / "page.html")
    assert time.process_time() - began < 20
    assert data["flaws"] == []
    assert (len(data["runs"]), len(data["groups"])) == (20, 4)
    assert (tmp_path / "page.html").stat().st_size < 15e6
    watched = open_page("about:blank")
    told = watched.page.context.new_cdp_session(watched.page)
    told.send("Performance.enable", {"timeDomain": "threadTicks"})
    watched.page.goto((tmp_path / "page.html").as_uri())
    watched.page.wait_for_selector("#figure-accuracy[data-state='drawn']")
    metrics = {row["name"]: row["value"] for row in told.send("Performance.getMetrics")["metrics"]}
    assert metrics["TaskDuration"] < 3
    watched.draw_all()
    assert len(watched.traces("heat")[0]["z"]) == 100
