"""Damaged run folders through the verbs that read them, and the readers of the served pages.

python -m tests.chaos.folders --cases 2000
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import leanfed
from leanfed.report.live.board import Board
from leanfed.report.live.processes import Processes
from leanfed.runs.settings import Settings
from tests.chaos.commands import Answer, Late, command, kinds, within
from tests.chaos.counts import COUNTS, record
from tests.chaos.damage import damage_folder
from tests.chaos.variants import settings_of
from tests.stops import Stop, stop_after

ROUNDS, STOPPED = 3, 2
LIMIT_S = 60.0
CHUNK = 50  # folders after which the counts are written
VERBS = ("compare", "report", "plan", "run", "resume")


def whole_folders(root: Path) -> list[Path]:
    """A run that has ended, one that was stopped, and one of joint plans that was stopped."""
    made = []
    for name, stop in (("error-feedback", None), ("momentum", STOPPED), ("joint-plan", STOPPED)):
        path = root / "wholes" / name
        settings = Settings.from_values({**settings_of(name), "rounds": ROUNDS})
        with suppress(Stop):
            leanfed.run(settings, path, listen=stop_after(stop or ROUNDS + 1))
        made.append(path)
    return made


def beside(root: Path) -> Path:
    """The folder of runs in which damaged ones appear, with a whole one in it."""
    shutil.copytree(root / "wholes" / "error-feedback", root / "runs" / "whole")
    return root / "runs"


def answers(case: int, wholes: list[Path], runs: Path) -> Iterator[tuple[str, Answer]]:
    """What a damaged folder beside a whole one makes the served pages and one verb say."""
    chance = random.Random(case)
    folder = runs / f"case-{case}"
    shutil.copytree(chance.choice(wholes), folder)
    told = damage_folder(folder, chance)
    verb = VERBS[case % len(VERBS)]
    yield f"case {case} ({told}): serve", served(runs, folder.name)
    yield f"case {case} ({told}): {verb}", command(*words(verb, folder, runs), "--json", limit_s=LIMIT_S)
    shutil.rmtree(folder)


def words(verb: str, folder: Path, runs: Path) -> list[str | Path]:
    """The command line of a verb for one run, or for it and a whole one."""
    match verb:
        case "compare":
            return ["compare", runs, "--picture", runs.with_suffix(".svg")]
        case "report":
            return ["report", runs, "--out", runs.with_suffix(".html")]
        case "plan":
            return ["plan", "--fleet", folder / "fleet.parquet"]
        case "run":
            return ["run", folder / "settings.json", "--out", folder]
    return [verb, folder]


def served(runs: Path, name: str) -> Answer:
    """What the pages of `leanfed serve` read: the list of runs and the data of one."""
    try:
        with within(LIMIT_S):
            board = Board(runs, Processes())
            folder = board.find(name)
            json.dumps([board.rows(), folder and board.data(name, folder)])
    except Late:
        return Answer(None, f"hung: {traceback.format_exc()}")
    except Exception:
        return Answer(None, f"raw: {traceback.format_exc()}")
    return Answer(0, "")


def main() -> None:
    """Damage many folders and record the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=2_000)
    parser.add_argument("--out", type=Path, default=COUNTS, help="where the counts go")
    options = parser.parse_args()
    codes: Counter[str] = Counter()
    wrong: list[str] = []
    with tempfile.TemporaryDirectory(prefix="leanfed-folders-") as root:
        wholes, runs = whole_folders(Path(root)), beside(Path(root))
        for case in range(options.cases):
            for what, answer in answers(case, wholes, runs):
                codes[f"{what.rpartition(' ')[2]} {answer.code}"] += 1
                if answer.trouble is not None:
                    wrong.append(answer.trouble)
                    print(what, answer.trouble, flush=True)
            if (case + 1) % CHUNK == 0 or case + 1 == options.cases:
                counts = {"folders": case + 1, "exit_codes": dict(sorted(codes.items())), "found": kinds(wrong)}
                record("folders", "python -m tests.chaos.folders", counts, options.out)


if __name__ == "__main__":
    main()
