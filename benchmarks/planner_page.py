"""From a slider's move to the allocation redrawn, for 100 devices: milliseconds in Chromium, and of the answer alone.

    chrt -r 5 python benchmarks/planner_page.py [OUT]

`chrt` keeps other work on the machine from counting; on a quiet one it can be left out.
A real `leanfed serve` on loopback. The page notes when a slider moved and when the figure was redrawn; the answer alone
is a POST to /api/plan with another bandwidth each time.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from leanfed.files import write_json

CLIENTS, MOVES = 100, 25
MOVE = """(value) => {
  const slider = document.getElementById("slider-bandwidth_hz");
  document.body.dataset.state = "moving";
  slider.value = value;
  slider.dispatchEvent(new Event("input", { bubbles: true }));
}"""


@contextmanager
def served() -> Iterator[str]:
    """The address of a server over an empty folder."""
    with tempfile.TemporaryDirectory(prefix="leanfed-planner-") as folder:
        command = [sys.executable, "-m", "leanfed.cli", "serve", folder, "--port", "0", "--json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            yield json.loads(server.stdout.readline())["url"]
            server.terminate()


def redraws(url: str) -> list[float]:
    """Milliseconds of every move; the page has settled before the next one."""
    found = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.set_default_timeout(120_000)
        page.goto(url + "planner")
        page.wait_for_selector("body[data-state=whole]")
        assert int(page.input_value("#slider-clients-number")) == CLIENTS
        for move in range(MOVES):
            page.evaluate(MOVE, 500 + 8 * move)
            page.wait_for_selector("body[data-state=whole]")
            found.append(float(page.get_attribute("body", "data-redraw-ms") or "nan"))
        browser.close()
    return found


def answers(url: str) -> list[float]:
    """Milliseconds of the answer over HTTP."""
    found = []
    for move in range(MOVES):
        question = json.dumps({"clients": CLIENTS, "changes": {"bandwidth_hz": 5e6 + 2e5 * move}}).encode()
        asked = urllib.request.Request(url + "api/plan", question, {"Content-Type": "application/json"})
        began = time.perf_counter()
        with urllib.request.urlopen(asked) as answer:
            json.load(answer)
        found.append(1e3 * (time.perf_counter() - began))
    return found


def spread(values: Sequence[float]) -> dict[str, int]:
    """Whole milliseconds."""
    return {"least": round(min(values)), "median": round(statistics.median(values)), "most": round(max(values))}


def main() -> None:
    """Measure, print, keep."""
    load = os.getloadavg()[0]
    with served() as url:
        row: dict[str, Any] = {"clients": CLIENTS, "moves": MOVES}
        row |= {"redraw_ms": spread(redraws(url)), "answer_ms": spread(answers(url))}
    row |= {
        "load_before": round(load, 2),
        "real_time": os.sched_getscheduler(0) == os.SCHED_RR,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
    }
    print(json.dumps(row))
    if len(sys.argv) > 1:
        write_json(Path(sys.argv[1]), row)


if __name__ == "__main__":
    main()
