"""Settings drawn from the schema through the reader; some of those that it takes also through a run and other verbs.

python -m tests.chaos.draws
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed
from hypothesis import settings as budget

from leanfed.errors import LeanfedError
from leanfed.runs.settings import Settings
from tests.chaos.commands import Answer, command, kinds
from tests.chaos.counts import COUNTS, record
from tests.chaos.generated import settings

LIMIT_S = 60.0
CHUNK = 500  # settings after which the counts are written
SHORT_S = 5.0  # of a round that is also run, as the dry run estimates it
ONLY_DRAWN = (Phase.generate,)  # what is wrong is not made smaller
VERBS = ("compare", "report", "resume", "plan")


class Draws:
    """What became of settings so far."""

    def __init__(self, folder: Path, every: int) -> None:
        self.folder, self.every = folder, every
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
        """One round of settings that are taken: dry, then for real where that is short, then through another verb."""
        file, run = self.folder / "settings.json", self.folder / "run"
        file.write_text(json.dumps({**values, "rounds": 1}), encoding="utf-8")
        dry = self.asked("dry run", values, "run", file, "--dry-run", "--json")
        if dry.code != 0 or json.loads(dry.said)["estimated_seconds"] > SHORT_S:
            return
        if self.asked("run", values, "run", file, "--out", run, "--json").code == 0:
            verb = VERBS[self.counts["run 0"] % len(VERBS)]
            written = {"report": ("--out", "page.html"), "compare": ("--picture", "c.svg")}
            place = [written[verb][0], self.folder / written[verb][1]] if verb in written else []
            of = ["--fleet", run / "fleet.parquet"] if verb == "plan" else [run]
            self.asked(verb, values, verb, *of, *place, "--json")
        shutil.rmtree(run, ignore_errors=True)

    def asked(self, what: str, values: dict[str, Any], *words: str | Path) -> Answer:
        """What a command says, counted by its exit code."""
        answer = command(*words, limit_s=LIMIT_S)
        self.counts[f"{what} {answer.code}"] += 1
        if answer.trouble is not None:
            self.wrong.append(answer.trouble)
            print(f"{what}: {json.dumps(values)}: {answer.trouble}", flush=True)
        return answer

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


def main() -> None:
    """Draw many settings and record the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--every", type=int, default=40, help="one in so many of the settings that are taken is tried")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=COUNTS, help="where the counts go")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="leanfed-draws-") as folder:
        checked = Draws(Path(folder), options.every)
        for first in range(0, options.cases, CHUNK):
            draw(min(CHUNK, options.cases - first), options.seed + first, checked)
            record("settings", "python -m tests.chaos.draws", checked.report(), options.out)


if __name__ == "__main__":
    main()
