"""Kills (SIGKILL) at random instants of runs and resumes, their first moments included; then the run is taken up.

python -m tests.chaos.kills
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from leanfed.files import sha256_of
from tests.chaos.counts import COUNTS, record
from tests.chaos.forks import LIMIT_S, ROOT, Ending, Forks, compile_shim, why_not
from tests.chaos.variants import VARIANTS, WATCHED, settings_of
from tests.chaos.walk import KINDS, Whole, differences, take_up, unbroken

ALONE = [variant for variant in VARIANTS if variant not in WATCHED]
"""Ranks that have not met yet end by who started them: tests/integration/test_torchrun.py kills those."""


class Killer:
    """One warm process, the unbroken runs, and how long each took."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.forks = Forks(compile_shim(folder))
        self.wholes: dict[str, Whole] = {}
        self.seconds: dict[str, float] = {}
        self.runs = 0  # that were killed at least once, or ended before
        self.kills = 0  # that came before the end
        self.unborn = 0  # of them, before there were settings
        for variant in ALONE:
            unbroken(self.forks, variant, folder / f"first-{variant}")  # its own first time loads more
            began = time.perf_counter()
            self.wholes[variant] = unbroken(self.forks, variant, folder / f"whole-{variant}")
            self.seconds[variant] = time.perf_counter() - began

    def all(self, kills: int, processes: int) -> Iterator[str]:
        """What is wrong after so many kills, some of them of new interpreters."""
        yield from self.processes(processes)
        while self.kills < kills:
            yield from self.troubles(self.runs)

    def troubles(self, case: int) -> list[str]:
        """What is wrong after one to five kills; everything follows from the case's number but the machine's speed."""
        chance = random.Random(case)
        variant, folder = chance.choice(ALONE), self.folder / f"case-{case}"
        whole = self.seconds[variant]
        found = []
        for _ in range(chance.randint(1, 5)):
            # A third of the kills come while the folder is made.
            instant = chance.uniform(0, chance.choice((0.3, 1.0, 1.0)) * whole)
            ending = self.stop(variant, folder, instant)
            found += [] if ending.ended in ("done", "killed") else [f"{ending.ended}: case {case}: {ending.text}"]
        ending = take_up(self.forks, variant, folder)
        found += [] if ending.ended == "done" else [f"bricked: case {case}: {ending.text}"]
        found += differences(self.wholes[variant], folder, f"case {case}")
        shutil.rmtree(folder)
        self.runs += 1
        return found

    def stop(self, variant: str, folder: Path, instant: float) -> Ending:
        """Take a run up and kill it after some seconds."""
        ending = take_up(self.forks, variant, folder, kill_after_s=instant)
        if ending.ended == "killed":
            self.kills += 1
            self.unborn += not (folder / "settings.json").is_file()
        return ending

    def processes(self, cases: int) -> Iterator[str]:
        """The same with new interpreters, as `leanfed run` starts them, imports and all."""
        variant = "error-feedback"
        file, chance = self.folder / "settings.json", random.Random(cases)
        file.write_text(json.dumps(settings_of(variant)), encoding="utf-8")
        expected = self.wholes[variant].content
        began = time.perf_counter()
        assert not killed_cli(["run", str(file), "--out", str(self.folder / "process")], LIMIT_S)
        longest = time.perf_counter() - began
        for case in range(cases):
            folder = self.folder / f"process-{case}"
            if killed_cli(["run", str(file), "--out", str(folder)], chance.uniform(0, longest)):
                self.kills += 1
                self.unborn += not (folder / "settings.json").is_file()
            ending = take_up(self.forks, variant, folder)
            if ending.ended != "done":
                yield f"bricked: process {case}: {ending.text}"
            # Who wrote environment.json says so in it.
            whole = Whole((), {**expected, "environment.json": sha256_of(folder / "environment.json")})
            yield from differences(whole, folder, f"process {case}")
            shutil.rmtree(folder)
            self.runs += 1

    def close(self) -> None:
        """End the warm process."""
        self.forks.close()


def killed_cli(words: list[str], instant: float) -> bool:
    """Start the command line and kill it after some seconds; False if it ended before."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "leanfed.cli", *words]
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            process.wait(instant)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            return True
    return False


def main() -> None:
    """Kill many and record the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--processes", type=int, default=10, help="how many new interpreters are killed, too")
    parser.add_argument("--out", type=Path, default=COUNTS, help="where the counts go")
    options = parser.parse_args()
    if reason := why_not():
        sys.exit(f"Runs cannot be killed here: {reason}.")
    found = Counter(dict.fromkeys(KINDS, 0))
    with tempfile.TemporaryDirectory(prefix="leanfed-kills-") as folder:
        killer = Killer(Path(folder))
        for line in killer.all(options.kills, options.processes):
            print(line, flush=True)
            found[line.partition(":")[0]] += 1
        killer.close()
    counts = {"kills": killer.kills, "unborn": killer.unborn, "runs": killer.runs, "found": found}
    record("kills", "python -m tests.chaos.kills", {**counts, "processes": options.processes}, options.out)


if __name__ == "__main__":
    main()
