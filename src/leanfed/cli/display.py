"""What the command line shows: bars and tables, framed on a terminal, plain elsewhere."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

if TYPE_CHECKING:
    from leanfed.runs.compare import ComparedRun

screen = Console()
notices = Console(stderr=True)


def show_table(table: Table) -> None:
    """A table on a terminal; elsewhere plain lines of its cells, as wide as they need to be and without frames."""
    if screen.is_terminal:
        screen.print(table)
        return
    title, caption = table.title, table.caption
    table.title = table.caption = table.box = None
    table.pad_edge = table.collapse_padding = False
    with screen.capture() as taken:
        screen.print(table, width=10_000, crop=False)
    body = [line.rstrip() for line in taken.get().splitlines()]
    lines = [*([str(title)] if title else []), *body, *([str(caption)] if caption else [])]
    screen.print("\n".join(lines), highlight=False, soft_wrap=True, markup=False)


@contextmanager
def byte_progress(name: str, *, quiet: bool) -> Iterator[Callable[[int, int | None], None]]:
    """A bar over the bytes of a download."""
    if not notices.is_terminal and not quiet:
        notices.print(f"fetching {name}", highlight=False, soft_wrap=True, markup=False)
    with Progress(console=notices, disable=quiet or not notices.is_terminal) as bar:
        item = bar.add_task(f"fetching {name}", total=None)
        yield lambda done, total: bar.update(item, completed=done, total=total)


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
    show_table(table)


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
    from leanfed.results import find_runs
    from leanfed.runs.compare import DRAWN, draw_comparison, read_run

    # Best first: in the tables, and in the order of the colours.
    runs = sorted((read_run(folder) for folder in find_runs(list(folders))), key=lambda run: -run.accuracy[-1])
    draw_comparison(runs, picture, ("rounds", "latency_s") if brief else DRAWN, loss=not brief)
    if as_json:
        made = {"picture": str(picture), **({"page": str(page)} if page else {})}
        typer.echo(json.dumps({"runs": [run.row(targets) for run in runs], **made}))
        return
    show_table(_accuracy_table(runs))
    for target in targets:
        show_table(_target_table(runs, target))
    screen.print(f"picture: {picture}", highlight=False, soft_wrap=True)
    if page is not None:
        screen.print(f"page:    {page}", highlight=False, soft_wrap=True)
    if len(folders) == 1:
        screen.print(f"runs:    {folders[0]}", highlight=False, soft_wrap=True)


def _accuracy_table(runs: Sequence[ComparedRun]) -> Table:
    """Where each run ended."""
    binary = all(run.f1 for run in runs)
    table = Table("run", "rounds", "accuracy", "worst decile", "majority guess", *(["pooled F1"] if binary else []))
    for run in runs:
        numbers = (run.accuracy[-1], run.worst_decile[-1], run.majority_guess, *(run.f1[-1:] if binary else []))
        table.add_row(escape(run.name), f"{run.spent['rounds'][-1]:.0f}", *(f"{number:.4f}" for number in numbers))
    return table


def _target_table(runs: Sequence[ComparedRun], target: float) -> Table:
    """What it cost each run to reach a target accuracy."""
    table = Table("run", "rounds", "seconds", "joules", "gigabits", "TFLOPs", title=f"to {target:.0%} accuracy")
    for run in runs:
        cost = run.cost_of(target)
        table.add_row(
            escape(run.name),
            *(["not reached", *"-" * 4] if cost is None else [f"{value:.4g}" for value in cost.values()]),
        )
    return table
