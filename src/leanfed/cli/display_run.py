"""What a run shows while it goes on: a live table on a terminal, plain lines elsewhere, and how it ends."""

from __future__ import annotations

import json
import os
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
from leanfed.quantities import SCHEMA, Quantity, main_score, summarised
from leanfed.quantities import spent as spent_costs

if TYPE_CHECKING:
    from leanfed.rounds.loop import RoundRecord

Listener = Callable[["RoundRecord"], None]
SHOWN = 8  # tested rounds in the live table
LINES = 20  # plain lines of a whole run, about


class Stopped(KeyboardInterrupt):
    """SIGTERM, which ends a run as Ctrl-C does."""


@contextmanager
def round_progress(name: str, rounds: int, folder: Path, *, quiet: bool) -> Iterator[Listener]:
    """Show rounds as they end; Ctrl-C and SIGTERM end with a word on how to go on."""
    show = _nothing if quiet else _live_table if notices.is_terminal else _plain_lines
    try:
        with _signals_stop(), show(name, rounds, folder) as listen:
            yield listen
    except KeyboardInterrupt as stop:
        notices.print(f"stopped; go on with: leanfed resume {folder}", highlight=False, soft_wrap=True, markup=False)
        raise typer.Exit(128 + (signal.SIGTERM if isinstance(stop, Stopped) else signal.SIGINT)) from None


@contextmanager
def rounds_of_all(runs: int, rounds: int, *, quiet: bool) -> Iterator[Callable[[], None]]:
    """A bar over the rounds of several runs; Ctrl-C and SIGTERM end with a word on how to go on."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    try:
        with _signals_stop(), Progress(*columns, console=notices, disable=quiet) as bar:
            item = bar.add_task(f"rounds of {runs} run{'' if runs == 1 else 's'}", total=rounds)
            yield lambda: bar.advance(item)
    except KeyboardInterrupt as stop:
        notices.print("stopped; the same command goes on where it stopped", highlight=False)
        raise typer.Exit(128 + (signal.SIGTERM if isinstance(stop, Stopped) else signal.SIGINT)) from None


@contextmanager
def _signals_stop() -> Iterator[None]:
    """Let SIGTERM raise in the main thread, as SIGINT does, so that the last checkpoint is finished.

    A second signal ends the process at once: a run that is killed can be resumed, too.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: object) -> None:
        for each in before:
            signal.signal(each, lambda number, frame: os._exit(128 + number))
        raise Stopped if number == signal.SIGTERM else KeyboardInterrupt

    before = {signal.SIGTERM: signal.getsignal(signal.SIGTERM)}
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell's background jobs ignore Ctrl-C
        before[signal.SIGINT] = signal.default_int_handler
    for each in before:
        signal.signal(each, stop)
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


@contextmanager
def _nothing(name: str, rounds: int, folder: Path) -> Iterator[Listener]:
    yield lambda record: None


class RoundTable:
    """The last tested rounds, with what the run has spent so far."""

    def __init__(self, folder: Path) -> None:
        self.spent = _spent_before(folder)
        self.rows: deque[tuple[str, ...]] = deque(maxlen=SHOWN)
        self.main = "accuracy"  # what the run is judged by, once it is tested

    def add(self, row: dict[str, Any]) -> bool:
        """Take a round in; tells whether it was tested."""
        for column in self.spent:
            self.spent[column] += row.get(column) or 0.0
        if row["loss"] is None:
            return False
        self.main = main_of(row)
        scores = (row[self.main], row["worst_decile"], row["loss"])
        spent = (f"{self.spent[column] / cost.scale:,.4g}" for column, cost in spent_costs(plotted=True).items())
        rates = ("-" if row[name] is None else f"{row[name]:.3f}" for name in ("k_mean", "r_mean"))
        self.rows.append(
            (
                str(row["round"] + 1),
                *("-" if score is None else f"{score:.4f}" for score in scores),
                *spent,
                *rates,
                str(row["participants"]),
            )
        )
        return True

    def table(self) -> Table:
        """As it stands."""
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        scores = (SCHEMA[name].label for name in ("round", self.main, "worst_decile", "loss"))
        costs = (cost.brief for cost in spent_costs(plotted=True).values())
        for heading in (*scores, *costs, "k", "r", "clients"):
            table.add_column(heading, justify="right", no_wrap=True)
        for row in self.rows:
            table.add_row(*row)
        return table


def main_of(row: dict[str, Any]) -> str:
    """What a tested round is judged by."""
    return main_score({name for name, value in row.items() if value is not None})


def _guess(row: dict[str, Any], decimals: int) -> str:
    """The score of the best constant guess in words."""
    column = next((name for name in ("majority_guess", "constant_guess") if row.get(name) is not None), None)
    return "guess withheld" if column is None else f"{SCHEMA[column].label} {row[column]:.{decimals}f}"


def _spent_before(folder: Path) -> dict[str, float]:
    """What the rounds of a run that is resumed have cost already."""
    columns = spent_costs(plotted=True)
    try:
        from leanfed.results import RunFolder

        table = RunFolder(folder).read_table("rounds")
    except LeanfedError:  # it begins
        return dict.fromkeys(columns, 0.0)
    return {column: float(table[column].sum()) if column in table.columns else 0.0 for column in columns}


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
            bar.update(item, completed=record.progress.round, note=_guess(record.row, 3))

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
            costs = spent_costs(plotted=True)
            spent = (f"{table.spent[column] / cost.scale:.4g} {cost.said}" for column, cost in costs.items())
            notices.print(
                f"{name}: round {number} of {rounds}, {SCHEMA[table.main].label} {row[table.main]:.4f} "
                f"({_guess(row, 4)}), loss {row['loss']:.4f}, {', '.join(spent)}",
                highlight=False,
                soft_wrap=True,
                markup=False,
            )

    yield listen


def _place_at_the_end(quantity: Quantity) -> tuple[bool, bool]:
    """Rates come first, then the loss, then what was spent."""
    return quantity.unit != "1", quantity.score is not None and quantity.score.better == "down"


def show_summary(summary: dict[str, Any], folder: Path, as_json: bool) -> None:
    """The end of a run."""
    if as_json:
        typer.echo(json.dumps({**summary, "folder": str(folder)}))
        return
    table = Table("", "", title=f"{escape(summary['name'])} after {summary['rounds']} rounds", show_header=False)
    for quantity in sorted(summarised(), key=_place_at_the_end):
        number, cost = summary.get(quantity.name), quantity.cost
        if isinstance(number, (int, float)):  # a fleet measures what a simulation counts, and the reverse
            scale, unit = (cost.scale, cost.unit) if cost else (1.0, quantity.unit)
            shown = f"{number:.4f}" if unit == "1" else f"{number / scale:,.4g} {unit}"
            table.add_row(cost.ended if cost else quantity.label, shown)
    show_table(table)
    screen.print(f"wrote {folder}", highlight=False, soft_wrap=True, markup=False)
