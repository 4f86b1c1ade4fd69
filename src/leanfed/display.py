"""What the command line shows: bars, tables, endings."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

if TYPE_CHECKING:
    from leanfed.experiments.compare import ComparedRun
    from leanfed.simulation.rounds import RoundRecord

screen = Console()
notices = Console(stderr=True)


@contextmanager
def round_progress(name: str, rounds: int, folder: Path, *, quiet: bool) -> Iterator[Callable[[RoundRecord], None]]:
    """A bar with the round, the last accuracy and the time left; Ctrl-C ends with a word on how to go on."""
    columns = [
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("accuracy {task.fields[accuracy]}"),
        TimeRemainingColumn(),
    ]
    with Progress(*columns, console=notices, disable=quiet, refresh_per_second=4) as bar:
        item = bar.add_task(name, total=rounds, accuracy="- (the first use compiles kernels)")

        def listen(record: RoundRecord) -> None:
            bar.update(item, completed=record.progress.round)
            if record.row["accuracy"] is not None:
                guess = record.row["majority_guess"]
                bar.update(item, accuracy=f"{record.row['accuracy']:.3f} (majority guess {guess:.3f})")

        try:
            yield listen
        except KeyboardInterrupt:
            bar.stop()
            notices.print(f"stopped; go on with: leanfed resume {folder}", highlight=False, soft_wrap=True)
            raise typer.Exit(130) from None


@contextmanager
def byte_progress(name: str, *, quiet: bool) -> Iterator[Callable[[int, int | None], None]]:
    """A bar over the bytes of a download."""
    with Progress(console=notices, disable=quiet) as bar:
        item = bar.add_task(f"fetching {name}", total=None)
        yield lambda done, total: bar.update(item, completed=done, total=total)


def show_summary(summary: dict[str, Any], folder: Path, as_json: bool) -> None:
    """The end of a run."""
    if as_json:
        typer.echo(json.dumps({**summary, "folder": str(folder)}))
        return
    screen.print(
        f"{summary['name']}: accuracy {summary['accuracy']:.4f} after {summary['rounds']} rounds "
        f"(worst decile {summary['worst_decile']:.4f}, majority guess {summary['majority_guess']:.4f})",
        highlight=False,
    )
    screen.print(f"wrote {folder}", highlight=False, soft_wrap=True)


def show_estimate(estimate: dict[str, Any], as_json: bool) -> None:
    """The answer of a dry run."""
    if as_json:
        typer.echo(json.dumps(estimate))
        return
    table = Table(show_header=False)
    for key, value in estimate.items():
        if key.endswith("_bytes"):
            value = f"{value / 2**20:.1f} MiB"
        table.add_row(key.replace("_bytes", "").replace("_", " "), str(value))
    screen.print(table)


def show_comparison(
    folders: Sequence[Path],
    picture: Path,
    targets: Sequence[float],
    as_json: bool,
    *,
    brief: bool = False,
    page: Path | None = None,
) -> None:
    """The tables and the picture of several runs; the brief picture has accuracy over rounds and seconds only."""
    from leanfed.experiments.compare import DRAWN, draw_comparison, read_run
    from leanfed.results import find_runs

    # Best first: in the tables, and in the order of the colours.
    runs = sorted((read_run(folder) for folder in find_runs(list(folders))), key=lambda run: -run.accuracy[-1])
    draw_comparison(runs, picture, ("rounds", "latency_s") if brief else DRAWN, loss=not brief)
    if as_json:
        made = {"picture": str(picture), **({"page": str(page)} if page else {})}
        typer.echo(json.dumps({"runs": [run.row(targets) for run in runs], **made}))
        return
    screen.print(_accuracy_table(runs))
    for target in targets:
        screen.print(_target_table(runs, target))
    screen.print(f"picture: {picture}", highlight=False, soft_wrap=True)
    if page is not None:
        screen.print(f"page:    {page}", highlight=False, soft_wrap=True)
    if len(folders) == 1:
        screen.print(f"runs:    {folders[0]}", highlight=False, soft_wrap=True)


def _accuracy_table(runs: Sequence[ComparedRun]) -> Table:
    """Where each run ended."""
    table = Table("run", "rounds", "accuracy", "worst decile", "majority guess")
    for run in runs:
        numbers = (run.accuracy[-1], run.worst_decile[-1], run.majority_guess)
        table.add_row(run.name, f"{run.spent['rounds'][-1]:.0f}", *(f"{number:.4f}" for number in numbers))
    return table


def _target_table(runs: Sequence[ComparedRun], target: float) -> Table:
    """What it cost each run to reach a target accuracy."""
    table = Table("run", "rounds", "seconds", "joules", "gigabits", "TFLOPs", title=f"to {target:.0%} accuracy")
    for run in runs:
        cost = run.cost_of(target)
        table.add_row(
            run.name, *(["not reached", *"-" * 4] if cost is None else [f"{value:.4g}" for value in cost.values()])
        )
    return table
