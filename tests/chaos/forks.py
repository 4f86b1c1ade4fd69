"""Warm processes in which runs and resumes meet faults: one that stays, and one that forks a child to be killed.

Started by `Forks`, below, with faults.c preloaded; one JSON line asks, one answers. A run costs a third of a second,
where a new interpreter would take five.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from leanfed.rounds.ranks import Ranks

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
LIMIT_S = 600.0  # of one run; it takes half a second where the machine is idle, minutes where it is overloaded
SOON_S = 120.0  # in which a rank ends after the other; it waits for an answer for ten minutes, not for a dead one
RANKS = 2
HOW = {"fail": 1, "full": 2, "kill": 3, "torn": 4}  # as in faults.c
Ended = Literal["done", "explained", "raw", "killed", "hung"]


@dataclass(frozen=True)
class Ending:
    """How a run or a resume ended, what it said, and the calls it made in the folder, with the bytes of each."""

    ended: Ended
    text: str
    hit: bool
    calls: tuple[tuple[str, int], ...]


class Child(NamedTuple):
    """A forked process, and where its report is read."""

    process: int
    report: IO[str]


def why_not() -> str | None:
    """Why faults cannot be injected on this machine, or None."""
    if sys.platform != "linux":
        return "the shim is written for Linux"
    return None if shutil.which("cc") else "there is no C compiler"


def compile_shim(folder: Path) -> Path:
    """The shared library of faults.c."""
    shim = folder / "faults.so"
    command = ["cc", "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o", shim, HERE / "faults.c", "-ldl"]
    subprocess.run(command, check=True, timeout=60)
    return shim


class Forks:
    """The two warm processes, seen from outside; each is started when it is first asked."""

    def __init__(self, shim: Path) -> None:
        self._shim = shim
        self._processes: dict[str, subprocess.Popen[str]] = {}

    def _process(self, kind: Literal["stays", "forks"]) -> subprocess.Popen[str]:
        if kind not in self._processes:
            self._processes[kind] = self._started(kind)
        return self._processes[kind]

    def _started(self, kind: str) -> subprocess.Popen[str]:
        single = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL", "NUMBA")}
        paths = os.pathsep.join([str(ROOT), str(ROOT / "src")])
        return subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "tests.chaos.forks", self._shim, kind],
            env={**os.environ, **single, "POLARS_MAX_THREADS": "1", "LD_PRELOAD": str(self._shim), "PYTHONPATH": paths},
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(
        self,
        verb: Literal["run", "resume"],
        folder: Path,
        settings: dict[str, Any],
        *,
        at: tuple[str, int] | None = None,
        how: str = "fail",
        kill_after_s: float | None = None,
        rank: int | None = None,
    ) -> Ending:
        """Run or resume; `at` is the call to fail: its key and how many of that key come before.

        With a `rank` it is done by two ranks, and this one's calls are watched.
        """
        asked = {"verb": verb, "folder": str(folder), "settings": settings, "kill_after_s": kill_after_s}
        request = {**asked, "aim": None if at is None else [*at, HOW[how]], "rank": rank}
        fatal = kill_after_s is not None or (at is not None and how in ("kill", "torn")) or rank is not None
        process = self._process("forks" if fatal else "stays")
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        answer = json.loads(process.stdout.readline())
        return Ending(answer["ended"], answer["text"], answer["hit"], tuple(map(tuple, answer["calls"])))

    def close(self) -> None:
        """End the processes."""
        for process in self._processes.values():
            process.communicate(timeout=60)


def main() -> None:
    """Answer requests until there are no more."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a child prints is no answer
    faulthandler.register(signal.SIGUSR1)  # where a child hangs
    warm()
    shim_file, kind = sys.argv[1:]
    sys.argv = ["leanfed"]  # environment.json holds it
    forking = kind == "forks"
    if forking:
        gc.disable()
        gc.freeze()  # a collection in a child would touch, and so copy, every page
    shim = ctypes.CDLL(shim_file)
    shim.faults_key.restype, shim.faults_size.restype = ctypes.c_char_p, ctypes.c_longlong
    for line in sys.stdin:
        asked = json.loads(line)
        print(json.dumps(in_child(shim, asked) if forking else in_time(shim, asked)), file=answers, flush=True)


def warm() -> None:
    """Load all that a run needs, but nothing with threads (polars, the engine of ranks): they do not survive a fork.

    A lock that one of them holds at that moment would never be released.
    """
    import torch

    from leanfed.allocation.warm import load
    from leanfed.rounds import client_store
    from leanfed.runs.prepare import engine_of, prepare
    from leanfed.runs.settings import Settings
    from leanfed.simulation.choose import warm as load_kernels
    from tests.chaos.variants import VARIANTS, WATCHED, settings_of

    torch.set_num_threads(1)
    client_store.MEMORY_LIMIT_BYTES = 0  # so that the scratch file of large states is met too
    load_kernels()
    load()
    for name in VARIANTS.keys() - WATCHED.keys():
        settings = Settings.from_values(settings_of(name))
        experiment = prepare(settings)
        engine = engine_of(settings, experiment.world)
        clients = experiment.world.new_clients()
        server = experiment.world.algorithm.start_server(experiment.world.task)
        engine.run_round(server, clients, experiment.planner.plan(0).plan)
        engine.evaluate(server, clients)


def in_time(shim: ctypes.CDLL, asked: dict[str, Any]) -> dict[str, Any]:
    """Do what is asked in this process."""

    def late(*_: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
    found = carry_out(shim, asked)
    signal.setitimer(signal.ITIMER_REAL, 0)
    return {**found, "ended": "hung"} if "TimeoutError" in found["text"] else found


def in_child(shim: ctypes.CDLL, asked: dict[str, Any]) -> dict[str, Any]:
    """Fork, let the child do what is asked, and say how it ended."""
    if asked["rank"] is not None:
        return in_ranks(shim, asked)
    return ended(forked(lambda: carry_out(shim, asked)), asked["kill_after_s"])


def in_ranks(shim: ctypes.CDLL, asked: dict[str, Any]) -> dict[str, Any]:
    """Fork two ranks, and say how the watched one ended; the other must end as well, and soon."""
    with tempfile.TemporaryDirectory(prefix="leanfed-ranks-") as place:

        def job(rank: int) -> Callable[[], dict[str, Any]]:
            return lambda: as_rank(shim, asked, rank, Path(place) / "store")

        children = [forked(job(rank)) for rank in range(RANKS)]
        found = ended(children.pop(asked["rank"]), asked["kill_after_s"])
        others = [ended(child, None, SOON_S) for child in children]
    for other in others:
        if other["ended"] in ("raw", "hung", "killed"):
            return {**found, "ended": other["ended"], "text": f"another rank: {other['text']}"}
        if other["ended"] != "done" and found["ended"] == "done":
            return {**found, "ended": "raw", "text": f"one rank is done, but another says: {other['text']}"}
    return found


def as_rank(shim: ctypes.CDLL, asked: dict[str, Any], rank: int, place: Path) -> dict[str, Any]:
    """This rank's part of what is asked; only the watched one meets a fault."""
    from torch.distributed import FileStore

    from leanfed.rounds.ranks import RankSettings
    from leanfed.simulation.process_group import ProcessGroup

    group = ProcessGroup(FileStore(str(place), RANKS), rank, RANKS, RankSettings(), on_host=RANKS)
    try:
        return carry_out(shim, asked if rank == asked["rank"] else {**asked, "aim": None}, group)
    finally:
        group.leave()


def forked(job: Callable[[], dict[str, Any]]) -> Child:
    """A child that does a job and reports."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        with os.fdopen(writing, "w") as report:
            report.write(json.dumps(job()))
        os._exit(0)
    os.close(writing)
    return Child(child, os.fdopen(reading))


def ended(child: Child, kill_after_s: float | None, limit_s: float = LIMIT_S) -> dict[str, Any]:
    """How a child ended; it is killed when its time has come, or when it takes too long."""
    with child.report as report:
        text = read_within(report, limit_s if kill_after_s is None else kill_after_s)
    late = text is None and kill_after_s is None
    if late:
        os.kill(child.process, signal.SIGUSR1)
        time.sleep(1)
    if text is None:
        os.kill(child.process, signal.SIGKILL)
    os.waitpid(child.process, 0)
    if text:
        found: dict[str, Any] = json.loads(text)
        return found
    return {"ended": "hung" if late else "killed", "text": "", "hit": not late, "calls": []}


def read_within(report: IO[str], seconds: float) -> str | None:
    """All that a child reports, nothing if it dies before, or None if it does neither in time."""
    ready, _, _ = select.select([report], [], [], seconds)
    return report.read() if ready else None


def carry_out(shim: ctypes.CDLL, asked: dict[str, Any], ranks: Ranks | None = None) -> dict[str, Any]:
    """Arm the shim, run or resume, and say how it ended."""
    from leanfed.errors import LeanfedError
    from leanfed.runs.carry_out import resume, run
    from leanfed.runs.ranked import run_on
    from leanfed.runs.settings import Settings

    folder = Path(asked["folder"])
    shim.faults_watch(str(folder).encode())
    if asked["aim"] is not None:
        key, occurrence, how = asked["aim"]
        shim.faults_aim(key.encode(), occurrence, how)
    ended, text = "done", ""
    try:
        settings = Settings.from_values(asked["settings"]) if asked["verb"] == "run" else None
        if ranks is not None:
            run_on(ranks, settings, folder)
        elif settings is not None:
            run(settings, folder)
        else:
            resume(folder)
    except LeanfedError as error:
        ended, text = "explained", str(error)
    except BaseException:
        ended, text = "raw", traceback.format_exc()
    count, hit = shim.faults_count(), bool(shim.faults_hit())
    calls = [(shim.faults_key(n).decode(), shim.faults_size(n)) for n in range(count)]
    shim.faults_watch(b"")
    return {"ended": ended, "text": text, "hit": hit, "calls": calls}


if __name__ == "__main__":
    main()
