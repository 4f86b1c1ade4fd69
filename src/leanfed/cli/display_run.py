"""What a run shows while it goes on: a live table on a terminal, plain lines elsewhere, and how it ends."""

from __future__ import annotations

import json
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich import box
from rich.console import Group
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from leanfed.cli.display import notices, screen, show_table
from leanfed.errors import LeanfedError
from leanfed.results import RunFolder

if TYPE_CHECKING:
    from leanfed.rounds.loop import RoundRecord

Listener = Callable[["RoundRecord"], None]
SHOWN = 8  # tested rounds in the live table
LINES = 20  # plain lines of a whole run, about
SPENT = {"latency_s": 1.0, "energy_j": 1.0, "upload_bits": 1e9}  # column -> what one unit of it is shown as

RESULTS = (  # label, key of the summary, unit, what one unit is
    ("accuracy", "accuracy", "", 1.0),
    ("worst decile", "worst_decile", "", 1.0),
    ("majority guess", "majority_guess", "", 1.0),
    ("pooled F1", "f1", "", 1.0),
    ("F1 of the majority guess", "majority_f1", "", 1.0),
    ("loss", "loss", "", 1.0),
    ("simulated time", "latency_s", "s", 1.0),
    ("energy", "energy_j", "J", 1.0),
    ("uploaded", "upload_bits", "Gbit", 1e9),
    ("computed", "flops", "TFLOP", 1e12),
)


class Stopped(KeyboardInterrupt):
    """SIGTERM, which ends a run as Ctrl-C does."""


@contextmanager
def round_progress(name: str, rounds: int, folder: Path, *, quiet: bool) -> Iterator[Listener]:
    """Show rounds as they end; Ctrl-C and SIGTERM end with a word on how to go on."""
    show = _nothing if quiet else _live_table if notices.is_terminal else _plain_lines
    try:
        with _terminate_as_interrupt(), show(name, rounds, folder) as listen:
            yield listen
    except KeyboardInterrupt as stop:
        notices.print(f"stopped; go on with: leanfed resume {folder}", highlight=False, soft_wrap=True, markup=False)
        raise typer.Exit(128 + (signal.SIGTERM if isinstance(stop, Stopped) else signal.SIGINT)) from None


@contextmanager
def _terminate_as_interrupt() -> Iterator[None]:
    """Let SIGTERM raise in the main thread, as SIGINT does, so that the last checkpoint is finished."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: object) -> None:
        raise Stopped

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _nothing(name: str, rounds: int, folder: Path) -> Iterator[Listener]:
    yield lambda record: None


class RoundTable:
    """The last tested rounds, with what the run has spent so far."""

    def __init__(self, folder: Path) -> None:
        self.spent = _spent_before(folder)
        self.rows: deque[tuple[str, ...]] = deque(maxlen=SHOWN)

    def add(self, row: dict[str, Any]) -> bool:
        """Take a round in; tells whether it was tested."""
        for column in SPENT:
            self.spent[column] += row[column]
        if row["accuracy"] is None:
            return False
        scores = (row["accuracy"], row["worst_decile"], row["loss"])
        spent = (f"{self.spent[column] / unit:,.4g}" for column, unit in SPENT.items())
        rates = (f"{row['k_mean']:.3f}", f"{row['r_mean']:.3f}", str(row["participants"]))
        self.rows.append((str(row["round"] + 1), *(f"{score:.4f}" for score in scores), *spent, *rates))
        return True

    def table(self) -> Table:
        """As it stands."""
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for heading in ("round", "accuracy", "worst decile", "loss", "sim s", "joules", "Gbit", "k", "r", "clients"):
            table.add_column(heading, justify="right", no_wrap=True)
        for row in self.rows:
            table.add_row(*row)
        return table


def _spent_before(folder: Path) -> dict[str, float]:
    """What the rounds of a run that is resumed have cost already."""
    try:
        table = RunFolder(folder).read_table("rounds")
    except LeanfedError:  # it begins
        return dict.fromkeys(SPENT, 0.0)
    return {column: float(table[column].sum()) for column in SPENT}


@contextmanager
def _live_table(name: str, rounds: int, folder: Path) -> Iterator[Listener]:
    """A table of the last tested rounds above a bar with the time left."""
    columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[note]}")]
    bar = Progress(*columns, TimeRemainingColumn(), console=notices)
    item = bar.add_task(escape(name), total=rounds, note="the first use compiles kernels")
    table = RoundTable(folder)

    def picture() -> Group:
        return Group(table.table(), bar) if table.rows else Group(bar)

    with Live(get_renderable=picture, console=notices, refresh_per_second=4):

        def listen(record: RoundRecord) -> None:
            table.add(record.row)
            bar.update(item, completed=record.progress.round, note=f"majority guess {record.row['majority_guess']:.3f}")

        yield listen


@contextmanager
def _plain_lines(name: str, rounds: int, folder: Path) -> Iterator[Listener]:
    """A line for every twentieth of the run, and for the first and the last tested round: logs stay short."""
    table, last = RoundTable(folder), -1

    def listen(record: RoundRecord) -> None:
        nonlocal last
        row, number = record.row, record.progress.round
        part = number * LINES // rounds
        if table.add(row) and (part > last or number == rounds):
            last = part
            notices.print(
                f"{name}: round {number} of {rounds}, accuracy {row['accuracy']:.4f} "
                f"(majority guess {row['majority_guess']:.4f}), loss {row['loss']:.4f}, "
                f"{table.spent['latency_s']:.4g} simulated s, {table.spent['energy_j']:.4g} J, "
                f"{table.spent['upload_bits'] / 1e9:.4g} Gbit",
                highlight=False,
                soft_wrap=True,
                markup=False,
            )

    yield listen


def show_summary(summary: dict[str, Any], folder: Path, as_json: bool) -> None:
    """The end of a run."""
    if as_json:
        typer.echo(json.dumps({**summary, "folder": str(folder)}))
        return
    table = Table("", "", title=f"{escape(summary['name'])} after {summary['rounds']} rounds", show_header=False)
    for label, key, unit, size in RESULTS:
        if isinstance(summary.get(key), (int, float)):  # a fleet measures what a simulation counts, and the reverse
            number = summary[key] / size
            table.add_row(label, f"{number:,.4g} {unit}" if unit else f"{number:.4f}")
    show_table(table)
    screen.print(f"wrote {folder}", highlight=False, soft_wrap=True, markup=False)
