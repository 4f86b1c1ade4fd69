"""The command line in this process, with a time limit: starting Python anew costs seconds."""

from __future__ import annotations

import io
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import typer

from leanfed.cli import app, main

COMMAND = typer.main.get_command(app)  # made anew it would cost more than most commands
EXPLAINED = (0, 2, 3)  # ok, the user's input, infeasible; 1 would be a fault of ours


class Late(BaseException):
    """A command took longer than it may."""


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raise Late in the main thread after some seconds of computing, or ten times as many of waiting.

    A busy machine is slow, not wrong: so what is computed is timed by the processor's clock.
    """

    def ring(*_: object) -> None:
        raise Late

    timers = ((signal.ITIMER_PROF, signal.SIGPROF, seconds), (signal.ITIMER_REAL, signal.SIGALRM, 10 * seconds))
    before = {number: signal.signal(number, ring) for _, number, _ in timers}
    for timer, _, limit in timers:
        signal.setitimer(timer, limit)
    try:
        yield
    finally:
        for timer, number, _ in timers:
            signal.setitimer(timer, 0)
            signal.signal(number, before[number])


@dataclass(frozen=True)
class Answer:
    """How a command ended: its exit code and what it said, or a traceback."""

    code: int | None
    said: str

    @property
    def trouble(self) -> str | None:
        """What is wrong with it, beginning with its kind."""
        if self.code is None:
            return self.said
        if self.code not in EXPLAINED or "Traceback" in self.said:
            return f"raw: exit code {self.code}: {self.said}"
        return None if self.code == 0 or self.said.strip() else f"raw: exit code {self.code} without a word"


def command(*words: str | Path, limit_s: float = 60) -> Answer:
    """Call the command line with these words."""
    said, line = io.StringIO(), ["leanfed", *map(str, words)]
    with patch.object(sys, "argv", line), redirect_stdout(said), redirect_stderr(said):
        try:
            with within(limit_s), patch.object(typer.main, "get_command", lambda _: COMMAND):
                main()
        except SystemExit as end:
            return Answer(int(end.code or 0), said.getvalue())
        except Late:
            return Answer(None, f"hung: more than {limit_s:g} s: {traceback.format_exc()}")
        except BaseException:
            return Answer(None, f"raw: {traceback.format_exc()}")
    return Answer(0, said.getvalue())


def kinds(troubles: Sequence[str], names: Sequence[str] = ("raw", "hung")) -> dict[str, int]:
    """How many troubles there are of each kind."""
    return {kind: sum(text.startswith(f"{kind}:") for text in troubles) for kind in names}
