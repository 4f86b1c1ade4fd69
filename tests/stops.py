"""What ends a run in a test."""

from __future__ import annotations

from collections.abc import Callable

from leanfed.rounds.loop import RoundRecord


class Stop(Exception):
    """Stands for whatever ends a run."""


def stop_after(rounds: int) -> Callable[[RoundRecord], None]:
    """A listener that stops a run after so many rounds."""

    def listen(record: RoundRecord) -> None:
        if record.progress.round == rounds:
            raise Stop

    return listen
