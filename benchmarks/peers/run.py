"""Speed side by side with other frameworks: the same round in each, checked, then measured in turns.

    python benchmarks/peers/run.py [--envs FOLDER] [--only NAME...] [--out results/peers/peers.json]

Each framework is installed in a virtual environment of its own. Before anything is measured, the weights after a first
round are compared with those of a loop in plain PyTorch; a contender that differs gets no number. README.md in this
folder says what is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # so that it runs as a script, too

from benchmarks.peers.environments import NotRun, cache_folder, interpreter
from benchmarks.peers.field import FIELD, Contender
from benchmarks.peers.given import BATCH, CLIENTS, LEARNING_RATE, expected, given_round, settings_of
from benchmarks.peers.race import Runner, one_core
from benchmarks.peers.table import FORMAT, RESULTS, peers_table, ratios
from benchmarks.peers.turns import Flat, GivenRound

from leanfed.files import make_folder, write_json

TOLERANCE = 1e-4  # of a weight after a round, and at most this share of the largest change of a weight in the round:
SHARE = 0.01
LEAST_REPEATS = 5
Row = dict[str, Any]


def deviation(found: Flat, wanted: Flat, start: Flat) -> float:
    """The largest difference of a weight; refused where a round computes something else."""
    if found.shape != wanted.shape or not np.isfinite(found).all():
        raise NotRun(f"computes something else: {found.shape} weights, not all of {wanted.shape} finite")
    largest = float(np.abs(found - wanted).max())
    moved = float(np.abs(wanted - start[: len(wanted)]).max())
    if largest > min(TOLERANCE, SHARE * moved):
        raise NotRun(
            f"computes something else: a weight is off by {largest:.2g}, and none moves by more than {moved:.2g}"
        )
    return largest


def command_of(contender: Contender, python: Path, steps: int) -> list[str]:
    """How a contender is started."""
    base = [str(python), "-m", "benchmarks.peers.contenders", contender.module]
    given = [json.dumps(settings_of(contender.method, steps))] if contender.module == "leanfed_run" else []
    return [*base, *given]


def new_row(contender: Contender, steps: int) -> Row:
    """A row without a number."""
    pinned = contender.requirements.read_text(encoding="utf-8").split("\n")[0] if contender.installed else ""
    return {
        "contender": contender.name,
        "title": contender.title,
        "package": contender.package,
        "pinned": pinned.partition("==")[2],
        "local_steps": steps,
        "versions": {},
        "reason": None,  # why there is no number
        "deviation": None,
        "seconds": [],  # of a round, the mean of each turn
        "median_s": None,
        "ratio": None,  # to leanfed, the median over turns
    }


class Race:
    """All contenders on one round."""

    def __init__(self, field: tuple[Contender, ...], steps: int, options: argparse.Namespace, folder: Path) -> None:
        self.given: GivenRound = given_round(steps)
        self.file = folder / f"round-{steps}.npz"
        self.given.write(self.file)
        self.schedule = [1, options.warm_up, *[options.rounds] * options.repeats]
        self.envs: Path = options.envs
        self.rows = {contender.name: new_row(contender, steps) for contender in field}
        self.wanted = {method: expected(method, self.given) for method in {contender.method for contender in field}}
        self.runners: dict[str, Runner] = {}

    def start(self, contender: Contender, ends: ExitStack) -> None:
        """Set up, compare a first round, warm up; a contender that fails drops out with the reason."""
        row, steps = self.rows[contender.name], self.given.steps
        try:
            python = interpreter(contender, self.envs)
            runner = Runner(contender.name, command_of(contender, python, steps), self.file, self.schedule)
            ends.callback(runner.close)
            row["versions"] = runner.versions()
            _, weights = runner.turn()
            start = self.given.flat(self.given.weights)
            row["deviation"] = deviation(weights, self.wanted[contender.method], start)
            runner.turn()
        except NotRun as error:
            row["reason"] = str(error)
        else:
            self.runners[contender.name] = runner
        print(f"{steps} steps, {contender.name}: {row['reason'] or 'ready'}", file=sys.stderr, flush=True)

    def measure(self) -> None:
        """One turn for everybody who is left."""
        for name, runner in list(self.runners.items()):
            row = self.rows[name]
            try:
                seconds, _ = runner.turn()
                row["seconds"].append(statistics.fmean(seconds))
            except NotRun as error:
                row.update(reason=str(error), seconds=[])
                del self.runners[name]

    def run(self, field: tuple[Contender, ...]) -> list[Row]:
        """The rows of this round."""
        with ExitStack() as ends:
            for contender in field:
                self.start(contender, ends)
            for _ in self.schedule[2:]:
                self.measure()
        return list(self.rows.values())


def summarised(rows: list[Row]) -> list[Row]:
    """The rows with medians and ratios."""
    paired = ratios(rows)
    for row in rows:
        own = paired.get((row["contender"], row["local_steps"]))
        row["median_s"] = statistics.median(row["seconds"]) if row["seconds"] else None
        row["ratio"] = statistics.median(own) if own else None
    return rows


def processor() -> str:
    """The model of the processor, as Linux names it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    return {
        "cores": os.cpu_count(),
        "pinned_to_core": one_core(),
        "processor": processor(),
        "platform": platform.platform(),
        "python": platform.python_version(),
    }


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envs", type=Path, default=cache_folder(), help="folder of the virtual environments")
    parser.add_argument("--only", nargs="+", choices=[contender.name for contender in FIELD], metavar="NAME")
    parser.add_argument("--local-steps", nargs="+", type=int, default=[1, 5])
    parser.add_argument("--repeats", type=int, default=7, help=f"turns that count, at least {LEAST_REPEATS}")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of a turn")
    parser.add_argument("--warm-up", type=int, default=3, help="rounds that do not count")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    if given.repeats < LEAST_REPEATS:
        parser.error(f"--repeats = {given.repeats} is too few for a median. Give {LEAST_REPEATS} or more.")
    if min(given.rounds, given.warm_up, *given.local_steps) < 1:
        parser.error("--rounds, --warm-up and --local-steps must be 1 or more.")
    return given


def conditions(given: argparse.Namespace, local_steps: list[int], weights: int) -> dict[str, Any]:
    """What was measured."""
    return {
        "dataset": "mnist-5k",
        "model": "lenet5",
        "weights": weights,
        "clients": CLIENTS,
        "batch_size": BATCH,
        "learning_rate": LEARNING_RATE,
        "local_steps": local_steps,
        "repeats": given.repeats,
        "rounds_per_turn": given.rounds,
        "warm_up_rounds": 1 + given.warm_up,
        "tolerance": TOLERANCE,
    }


def main() -> None:
    """Race after race; the file is written after each, so that a stop loses only the race that it ends."""
    given = options()
    given.envs = make_folder(given.envs.resolve())
    make_folder(given.out.parent)
    field = tuple(contender for contender in FIELD if given.only is None or contender.name in given.only)
    before, rows = os.getloadavg(), []
    with tempfile.TemporaryDirectory(prefix="leanfed-peers-") as folder:
        for number, steps in enumerate(given.local_steps, start=1):
            race = Race(field, steps, given, Path(folder))
            rows += race.run(field)
            weights = sum(value.size for value in race.given.weights.values())
            results = {
                "format": FORMAT,
                "machine": machine(),
                "load_average": {"start": before, "end": os.getloadavg()},
                "settings": conditions(given, given.local_steps[:number], weights),
                "rows": summarised(rows),
            }
            write_json(given.out, results)
    print(peers_table(results))


if __name__ == "__main__":
    main()
