"""Settings drawn from the schema through the reader; those that it takes also through a run and all other verbs.

python -m tests.chaos.draws
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections import Counter
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed
from hypothesis import settings as budget

from leanfed.errors import LeanfedError
from leanfed.runs.settings import Settings
from tests.chaos.commands import Answer, command, kinds
from tests.chaos.counts import COUNTS, record
from tests.chaos.folders import served
from tests.chaos.generated import settings

LIMIT_S = 60.0
CHUNK = 500  # settings after which the counts are written
SHORT_S = 5.0  # of a round that is also run, as the dry run estimates it
ONLY_DRAWN = (Phase.generate,)  # what is wrong is not made smaller
TOGETHER = 8  # runs that are served, reported and compared together


class Draws:
    """What became of settings so far."""

    def __init__(self, folder: Path, every: int) -> None:
        self.folder, self.every = folder, every
        self.runs = folder / "runs"
        self.made: list[dict[str, Any]] = []  # settings of the runs in that folder
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []

    def check(self, values: dict[str, Any]) -> None:
        """Settings are taken or refused in words; one in so many that are taken is tried."""
        self.counts["settings"] += 1
        try:
            Settings.from_values(values)
        except LeanfedError as error:
            if error.exit_code != 2 or not str(error):
                self.wrong.append(f"raw: exit code {error.exit_code}: {error}")
            self.counts["refused"] += 1
            return
        self.counts["taken"] += 1
        if self.counts["taken"] % self.every == 0:
            self.try_out(values)

    def try_out(self, values: dict[str, Any]) -> None:
        """One round of settings that are taken: dry, then for real where that is short, then through other verbs."""
        file, run = self.folder / "settings.json", self.runs / f"run-{len(self.made)}"
        file.write_text(json.dumps({**values, "rounds": 1}), encoding="utf-8")
        self.counts["tried"] += 1
        dry = self.asked("dry run", values, "run", file, "--dry-run", "--json")
        if dry.code != 0:
            return
        if json.loads(dry.said)["estimated_seconds"] > SHORT_S:
            self.counts["long"] += 1
            return
        shown = ["--json"] if self.counts["tried"] % 2 else []
        if self.asked("run", values, "run", file, "--out", run, *shown).code != 0:
            shutil.rmtree(run, ignore_errors=True)
            return
        self.made.append(values)
        self.asked("resume", values, "resume", run, *shown)
        self.asked("plan", values, "plan", "--fleet", run / "fleet.parquet", *shown)
        if len(self.made) == TOGETHER:
            self.look()

    def look(self) -> None:
        """Serve, report and compare the runs that were made since the last time, and remove them."""
        if not self.made:
            return
        names = [f"run-{place}" for place in range(len(self.made))]
        self.heard("serve", self.made, served(self.runs, *names))
        self.asked("report", self.made, "report", self.runs, "--out", self.folder / "page.html", "--json")
        self.asked("compare", self.made, "compare", self.runs, "--picture", self.folder / "picture.svg")
        self.made = []
        shutil.rmtree(self.runs)

    def asked(self, what: str, values: object, *words: str | Path) -> Answer:
        """What a command says, counted by its exit code."""
        return self.heard(what, values, command(*words, limit_s=LIMIT_S))

    def heard(self, what: str, values: object, answer: Answer) -> Answer:
        """Count an answer by its exit code, and print what is wrong with it."""
        self.counts[f"{what} {answer.code}"] += 1
        if answer.trouble is not None:
            self.wrong.append(answer.trouble)
            print(f"{what}: {json.dumps(values)}: {answer.trouble}", flush=True)
        return answer

    def add(self, other: Draws) -> None:
        """What became of others, too."""
        self.counts += other.counts
        self.wrong += other.wrong

    def report(self) -> dict[str, Any]:
        """The counts, and how many troubles there are of each kind."""
        return {**dict(sorted(self.counts.items())), "found": kinds(self.wrong)}


def draw(cases: int, start: int, checked: Draws) -> None:
    """Check so many settings; which ones follows from `start`."""

    @seed(start)
    @given(settings())
    @budget(
        max_examples=cases, database=None, deadline=None, suppress_health_check=HealthCheck, phases=[Phase.generate]
    )
    def each(values: dict[str, Any]) -> None:
        checked.check(values)

    each()
    checked.look()


def chunk(cases: int, start: int, every: int) -> Draws:
    """Check some settings in a folder of their own."""
    with tempfile.TemporaryDirectory(prefix="leanfed-draws-") as folder:
        checked = Draws(Path(folder), every)
        draw(cases, start, checked)
    return checked


def main() -> None:
    """Draw many settings and record the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--every", type=int, default=1, help="one in so many of the settings that are taken is tried")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=COUNTS, help="where the counts go")
    options = parser.parse_args()
    total = Draws(Path(), options.every)
    # New interpreters: one that ran thousands of unlike settings holds gigabytes.
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as pool:
        chunks = [
            pool.submit(chunk, min(CHUNK, options.cases - first), options.seed + first, options.every)
            for first in range(0, options.cases, CHUNK)
        ]
        for checked in map(Future.result, chunks):
            total.add(checked)
            record("settings", "python -m tests.chaos.draws", total.report(), options.out)


if __name__ == "__main__":
    main()
