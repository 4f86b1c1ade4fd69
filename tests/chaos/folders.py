"""Damaged run folders through every verb that reads them and the served pages: each says what is wrong, or goes on.

python -m tests.chaos.folders --cases 2000
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any
from unittest.mock import patch

import httpx

import leanfed
from leanfed.charts.curves import Panel, draw_panels
from leanfed.files import sha256_of
from leanfed.report.live.board import Board
from leanfed.report.live.processes import Processes
from leanfed.report.live.server import create_app
from leanfed.report.live.web_access import Rules
from leanfed.runs.settings import Settings
from tests.chaos.commands import Answer, Late, command, kinds, within
from tests.chaos.counts import COUNTS, record
from tests.chaos.damage import damage_folder
from tests.chaos.variants import settings_of
from tests.stops import Stop, stop_after

ROUNDS, STOPPED = 3, 2
LIMIT_S = 60.0
TOGETHER = 10  # folders that are served, compared and reported together
CHUNK = 50  # folders after which the counts are written
KINDS = ("raw", "hung", "changed", "different")  # what may be wrong
RESULTS = ("rounds.parquet", "clients.parquet", "evaluations.parquet", "weights.safetensors")


@dataclass(frozen=True)
class Whole:
    """A folder before it is damaged, and the sums of what it ends with if it was stopped."""

    path: Path
    sums: dict[str, str]


@dataclass
class Pictures:
    """Draws what it has not drawn before: most damage changes no curve, and drawing would cost more than all else."""

    drawn: set[str] = field(default_factory=set)

    def __call__(self, path: Path, panels: Sequence[Panel], **look: Any) -> None:
        curves = {repr(curve) for panel in panels for curve in panel.curves} | {str(panel.floor) for panel in panels}
        if curves - self.drawn:
            draw_panels(path, panels, **look)
            self.drawn |= curves


@dataclass(frozen=True)
class Damaged:
    """A damaged folder, what was done to it, and what it held then."""

    case: int
    path: Path
    whole: Whole
    told: str
    content: dict[str, str | None]

    @property
    def keeps_settings(self) -> bool:
        """Whether its settings are those of the whole folder."""
        return self.content.get("settings.json") == sha256_of(self.whole.path / "settings.json")


def whole_folders(root: Path) -> list[Whole]:
    """A run that has ended, one that was stopped, and one of joint plans that was stopped."""
    return [
        made_folder(root, *each) for each in (("error-feedback", None), ("momentum", STOPPED), ("joint-plan", STOPPED))
    ]


def made_folder(root: Path, name: str, stop: int | None) -> Whole:
    """A folder of one variant's run, ended or stopped after some rounds."""
    settings = Settings.from_values({**settings_of(name), "rounds": ROUNDS})
    path = root / "wholes" / name
    if stop is None:
        leanfed.run(settings, path)
        return Whole(path, {})
    with suppress(Stop):
        leanfed.run(settings, path, listen=stop_after(stop))
    ended = root / "ended" / name
    shutil.copytree(path, ended)
    leanfed.resume(ended)
    return Whole(path, sums_of(ended))


def sums_of(folder: Path) -> dict[str, str]:
    """The sums of a run's results."""
    return {name: sha256_of(folder / name) for name in RESULTS if (folder / name).is_file()}


def everything(folder: Path) -> dict[str, str | None]:
    """Path -> SHA-256 of every file, None for folders."""
    return {str(path.relative_to(folder)): sha256_of(path) if path.is_file() else None for path in folder.rglob("*")}


def beside(root: Path) -> Path:
    """The folder of runs in which damaged ones appear, with a whole one in it."""
    shutil.copytree(root / "wholes" / "error-feedback", root / "runs" / "whole")
    return root / "runs"


def damaged_folder(case: int, wholes: list[Whole], runs: Path) -> Damaged:
    """The folder of a case among the runs."""
    chance = random.Random(case)
    folder, whole = runs / f"case-{case}", chance.choice(wholes)
    shutil.copytree(whole.path, folder)
    return Damaged(case, folder, whole, f"case {case} ({damage_folder(folder, chance)})", everything(folder))


def answers(
    cases: Iterable[int], wholes: list[Whole], runs: Path, pictures: Pictures
) -> Iterator[tuple[str, str, Answer]]:
    """(verb, whom, answer) of damaged folders beside a whole one: served, compared and reported together, then alone.

    An answer to several folders is one for each of them.
    """
    folders = [damaged_folder(case, wholes, runs) for case in cases]
    together = "; ".join(folder.told for folder in folders)
    answer = served(runs, "whole", *(folder.path.name for folder in folders))
    yield from (("serve", together, answer) for _ in folders)
    for verb, place in (
        ("compare", ("--picture", runs.with_suffix(".svg"))),
        ("report", ("--out", runs.with_suffix(".html"))),
    ):
        with patch("leanfed.runs.compare.draw_panels", pictures):
            answer = command(verb, runs, *place, *shown(folders[0].case // len(folders)), limit_s=LIMIT_S)
        yield from ((verb, together, answer) for _ in folders)
    for folder in folders:
        yield from alone(folder, runs)
        shutil.rmtree(folder.path)


def alone(folder: Damaged, runs: Path) -> Iterator[tuple[str, str, Answer]]:
    """The verbs that take one folder; all but the last, `resume`, must leave it as it is."""
    settings, how = folder.path / "settings.json", shown(folder.case)
    yield "plan", folder.told, command("plan", "--fleet", folder.path / "fleet.parquet", *how, limit_s=LIMIT_S)
    yield "run", folder.told, command("run", settings, "--out", folder.path, *how, limit_s=LIMIT_S)
    if not folder.keeps_settings:  # they may say anything, so they are also run in a folder of their own
        anew = runs.with_name("anew")
        yield "run anew", folder.told, command("run", settings, "--out", anew, *how, limit_s=LIMIT_S)
        shutil.rmtree(anew, ignore_errors=True)
    if changed := everything(folder.path).items() ^ folder.content.items():
        yield "look", folder.told, Answer(None, f"changed: {changed}")
    resumed = command("resume", folder.path, *how, limit_s=LIMIT_S)
    yield "resume", folder.told, resumed
    sums = folder.whole.sums
    if folder.keeps_settings and sums and resumed.code == 0 and (found := sums_of(folder.path)) != sums:
        yield "look", folder.told, Answer(None, f"different: {found.items() ^ sums.items()}")


def shown(case: int) -> list[str]:
    """Every other answer is asked for as JSON."""
    return ["--json"] if case % 2 else []


def served(runs: Path, *names: str) -> Answer:
    """What `leanfed serve` answers for the list of runs, the page and data of some, and these side by side."""
    try:
        with within(LIMIT_S):
            found = apart(lambda: asyncio.run(statuses(runs, names)))
    except Late:
        return Answer(None, f"hung: {traceback.format_exc()}")
    except Exception:
        return Answer(None, f"raw: {traceback.format_exc()}")
    return Answer(0 if max(found) < 500 else None, "raw: " + " ".join(map(str, found)))


def apart(work: Callable[[], list[int]]) -> list[int]:
    """The result of some work in a thread: a browser that another test has open keeps a loop running in this one."""
    result: Future[list[int]] = Future()

    def carry_out() -> None:
        try:
            result.set_result(work())
        except BaseException as error:
            result.set_exception(error)

    Thread(target=carry_out, daemon=True).start()  # one that hangs does not keep the process
    return result.result()


async def statuses(runs: Path, names: Sequence[str]) -> list[int]:
    """The status of every page; what the application raises is raised here."""
    app, _ = create_app(Board(runs, Processes()), Rules("127.0.0.1", 8050))
    pages = (f"/{kind}/{name}" for name in names for kind in ("run", "data"))
    compared = "&".join(f"run={name}" for name in names)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:8050") as client:
        return [(await client.get(path)).status_code for path in ("/", *pages, f"/compare?{compared}")]


def main() -> None:
    """Damage many folders and record the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=2_000)
    parser.add_argument("--out", type=Path, default=COUNTS, help="where the counts go")
    options = parser.parse_args()
    codes: Counter[str] = Counter()
    wrong: list[str] = []
    with tempfile.TemporaryDirectory(prefix="leanfed-folders-") as root:
        wholes, runs, pictures = whole_folders(Path(root)), beside(Path(root)), Pictures()
        for first in range(0, options.cases, TOGETHER):
            cases = range(first, min(first + TOGETHER, options.cases))
            for verb, told, answer in answers(cases, wholes, runs, pictures):
                codes[f"{verb} {answer.code}"] += 1
                if answer.trouble is not None:
                    wrong.append(answer.trouble)
                    print(f"{told}: {verb}: {answer.trouble}", flush=True)
            if cases.stop % CHUNK == 0 or cases.stop == options.cases:
                counts = {
                    "folders": cases.stop,
                    "exit_codes": dict(sorted(codes.items())),
                    "found": kinds(wrong, KINDS),
                }
                record("folders", "python -m tests.chaos.folders", counts, options.out)


if __name__ == "__main__":
    main()
