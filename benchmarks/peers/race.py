"""Processes that take turns: each runs its rounds while all others wait."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Sequence
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.peers.environments import NotRun
from benchmarks.peers.turns import FLOATS, PIPE, ROUND, SCHEDULE, Flat

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 900.0  # for any one answer
ONE_THREAD = {
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"),
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    "JAX_PLATFORMS": "cpu",
    "JAX_TRACEBACK_FILTERING": "off",  # else the last line of an error is about the filter
}
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "FLWR_TELEMETRY_ENABLED": "0"}  # nothing is reported to anybody


def one_core() -> int | None:
    """The core that all contenders share; None where processes cannot be pinned."""
    return max(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None


class Runner:
    """One contender's process."""

    def __init__(self, name: str, command: Sequence[str], round_file: Path, schedule: Sequence[int]) -> None:
        self.log = round_file.parent / f"{name}.log"
        core = one_core()
        self._pipe, theirs = Pipe()
        variables = {PIPE: str(theirs.fileno()), ROUND: str(round_file), SCHEDULE: ",".join(map(str, schedule))}
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, **ONE_THREAD, **QUIET, **variables},
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=None if core is None else lambda: os.sched_setaffinity(0, {core}),
            )
        theirs.close()  # so that the end of the process is the end of the pipe

    def versions(self) -> dict[str, str]:
        """What the contender runs on, as soon as it is set up."""
        return dict(self._answer()["versions"])

    def turn(self) -> tuple[list[float], Flat]:
        """The next turn of the schedule: the seconds of every round, and the weights after the last."""
        try:
            self._pipe.send(True)
        except OSError as error:
            raise NotRun(self._last_words()) from error
        answer = self._answer()
        return answer["seconds"], np.frombuffer(answer["weights"], dtype=FLOATS)

    def close(self, patience_s: float = 60.0) -> None:
        """Let the process end by itself if its schedule is done, else end it and what it started."""
        self._pipe.close()
        try:
            self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGTERM)
            self._process.wait()

    def _answer(self) -> dict[str, Any]:
        ends = time.monotonic() + PATIENCE_S
        try:
            while not self._pipe.poll(1.0):
                self._check(ends)
            answer: dict[str, Any] = self._pipe.recv()
        except (EOFError, OSError) as error:
            raise NotRun(self._last_words()) from error
        return answer

    def _check(self, ends: float) -> None:
        if self._process.poll() is not None:
            raise NotRun(self._last_words())
        if time.monotonic() > ends:
            raise NotRun(f"no answer within {PATIENCE_S:g} s; {self._last_words()}")

    def _last_words(self) -> str:
        lines = [line for line in self.log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
        return f"did not run: {without_paths(' '.join(lines[-1:])) or 'it said nothing'}"


def without_paths(line: str) -> str:
    """A message that says nothing about the folders of this machine."""
    return re.sub(r"\s*\(?(?<![\w.])/[\w.+/-]+\)?", "", line).strip()
