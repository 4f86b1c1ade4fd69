"""What ends a run in a test."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import leanfed
from leanfed.rounds.loop import RoundRecord
from leanfed.runs.settings import Settings


class Stop(Exception):
    """Stands for whatever ends a run."""


def stop_after(rounds: int) -> Callable[[RoundRecord], None]:
    """A listener that stops a run after so many rounds."""

    def listen(record: RoundRecord) -> None:
        if record.progress.round == rounds:
            raise Stop

    return listen


def check_resumed(settings: Settings, folder: Path, rounds: int) -> None:
    """Stop a run after so many rounds and resume it: rows and weights are those of the unbroken run."""
    whole = leanfed.run(settings, folder / "whole")
    with pytest.raises(Stop):
        leanfed.run(settings, folder / "broken", listen=stop_after(rounds))
    resumed = leanfed.resume(folder / "broken")
    assert resumed.rounds.equals(whole.rounds)
    assert resumed.clients.equals(whole.clients)
    weights = [(folder / name / "weights.safetensors").read_bytes() for name in ("whole", "broken")]
    assert weights[0] == weights[1]


class Killed(BaseException):
    """Stands for kill -9, in this process."""


@contextmanager
def killed_at_flush(number: int) -> Iterator[None]:
    """Die at the n-th flush to disk, as by kill -9: from then on nothing is written, moved or cleaned up."""
    flushed = 0

    def die_at_last(descriptor: int) -> None:
        nonlocal flushed
        flushed += 1
        if flushed >= number:
            raise Killed

    def unlink_alive(path: Path, missing_ok: bool = False) -> None:
        if flushed < number:
            unlink(path, missing_ok=missing_ok)

    unlink = Path.unlink
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(os, "fsync", die_at_last)
        patch.setattr(Path, "unlink", unlink_alive)
        yield
