"""A bar over the rounds of a run that a script or a notebook carries out."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from leanfed.quantities import SCHEMA, main_score

if TYPE_CHECKING:
    from leanfed.rounds.loop import RoundRecord

Listener = Callable[["RoundRecord"], None]


def somebody_looks() -> bool:
    """Whether there is a terminal or a notebook to draw on."""
    return sys.stderr.isatty() or "ipykernel" in sys.modules


@contextmanager
def round_bar(name: str, rounds: int, done: int = 0) -> Iterator[Listener]:
    """Rounds as they end, with the last score."""
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    notebook = "ipykernel" in sys.modules
    console = Console(force_jupyter=True) if notebook else Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[note]}"))
    fleeting = console.is_terminal and not notebook
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=fleeting) as bar:
        item = bar.add_task(escape(name), total=rounds, completed=done, note="")

        def listen(record: RoundRecord) -> None:
            row = {column: value for column, value in record.row.items() if value is not None}
            main = main_score(row)
            if main in row:
                bar.update(item, note=f"{SCHEMA[main].label} {row[main]:.4f}")
            bar.update(item, completed=record.progress.round)

        yield listen
