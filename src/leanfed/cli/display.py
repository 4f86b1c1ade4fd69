"""What the command line shows: bars and tables, framed on a terminal, plain elsewhere."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from leanfed.quantities import FURTHER, SCHEMA, costs, guess_of, rises

if TYPE_CHECKING:
    from leanfed.runs.compare import ComparedGroup, ComparedRun

WIDEST = 100_000  # letters of a line that is not for a terminal
screen = Console()
notices = Console(stderr=True)


def warn(text: str) -> None:
    """A warning, apart from what a program reads."""
    notices.print(f"[yellow]warning:[/yellow] {escape(text)}", highlight=False, soft_wrap=True)


def show_table(table: Table) -> None:
    """A table on a terminal; elsewhere plain lines of its cells, as wide as they need to be and without frames."""
    if screen.is_terminal:
        screen.print(table)
        return
    title, caption = table.title, table.caption
    table.title = table.caption = table.box = None
    table.pad_edge = table.collapse_padding = False
    plain = Console(file=io.StringIO(), width=WIDEST, color_system=None, force_terminal=False)
    with plain.capture() as taken:
        plain.print(table, no_wrap=True, overflow="ignore", crop=False)
    body = [line.rstrip() for line in taken.get().splitlines()]
    lines = [*([str(title)] if title else []), *body, *([str(caption)] if caption else [])]
    screen.print("\n".join(lines), highlight=False, soft_wrap=True, markup=False)


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
    targets: Sequence[float] | None,
    as_json: bool,
    *,
    brief: bool = False,
    page: Path | None = None,
) -> None:
    """The tables and the picture of several runs; the brief picture has accuracy over rounds and seconds only."""
    from leanfed.results import find_runs
    from leanfed.runs.compare import draw_comparison, ends_at_equal_cost, grouped, read_runs

    found, left_out = read_runs(find_runs(list(folders)))
    # Best first: in the tables, and in the order of the colours.
    runs = sorted(found, key=lambda run: run.judged[-1], reverse=rises(found[0].main))
    targets = (0.8, 0.9) if targets is None and runs[0].main == "accuracy" else targets or ()
    for reason in left_out:
        notices.print(f"[yellow]note:[/yellow] {escape(reason)}", highlight=False, soft_wrap=True)
    draw_comparison(runs, picture, ("rounds", "latency_s") if brief else None, loss=not brief)
    if as_json:
        made = {"picture": str(picture), **({"page": str(page)} if page else {}), "left_out": left_out}
        rows = [run.row(targets) for run in runs]
        means = [group.row() for group in grouped(runs)]
        typer.echo(json.dumps({"runs": rows, "groups": means, "at_equal_cost": ends_at_equal_cost(runs), **made}))
        return
    groups = grouped(runs)
    if len(groups) < len(runs):
        show_table(_seeds_table(groups))
    show_table(_score_table(runs))
    for target in targets:
        show_table(_target_table(runs, target))
    screen.print(f"picture: {picture}", highlight=False, soft_wrap=True)
    if page is not None:
        screen.print(f"page:    {page}", highlight=False, soft_wrap=True)
    if len(folders) == 1:
        screen.print(f"runs:    {folders[0]}", highlight=False, soft_wrap=True)


def _seeds_table(groups: Sequence[ComparedGroup]) -> Table:
    """Means over seeds with their ranges, as the page has them."""
    main = groups[0].runs[0].main
    names = (main, "worst_decile", guess_of(main))
    table = Table(
        "experiment", "seeds", *(SCHEMA[name].label for name in names), title="means over seeds (lowest to highest)"
    )
    for group in groups:
        cells = []
        for name in names:
            values = group.final(name)
            ends = f" ({min(values):.4f} to {max(values):.4f})" if len(values) > 1 else ""
            cells.append(f"{sum(values) / len(values):.4f}{ends}" if values else "-")
        table.add_row(escape(group.name), str(len(group.runs)), *cells)
    return table


def _score_table(runs: Sequence[ComparedRun]) -> Table:
    """Where each run ended; a dash where an older version did not write a column."""
    main = runs[0].main
    more = [name for name in ("f1", *FURTHER) if all(run.score(name) for run in runs)]
    names = (main, "worst_decile", guess_of(main), *more)
    table = Table("run", "rounds", *(SCHEMA[name].label for name in names))
    for run in runs:
        row = run.row(())
        numbers = (row.get(name) for name in names)
        cells = ("-" if number is None else f"{number:.4f}" for number in numbers)
        table.add_row(escape(run.name), f"{run.spent['rounds'][-1]:.0f}", *cells)
    return table


def _target_table(runs: Sequence[ComparedRun], target: float) -> Table:
    """What it cost each run to keep a target, and to reach it first; a dash where that is not known."""
    shown = {axis: escape(cost.word) for axis, (_, cost) in costs().items()}
    main = runs[0].main
    aim = f"{target:.0%} accuracy" if main == "accuracy" else f"a {SCHEMA[main].label} of {target:g}"
    title = f"to {aim}: sustained (first crossing)"
    table = Table("run", *(f"{word}: sustained (first)" for word in shown.values()), title=title)
    for run in runs:
        first, kept = run.cost_of(target) or {}, run.sustained_cost_of(target) or {}
        cells = [
            f"{f'{kept[axis]:.4g}' if axis in kept else 'never'} ({first[axis]:.4g})" if axis in first else "-"
            for axis in shown
        ]
        table.add_row(escape(run.name), *(cells if first else ["not reached", *cells[1:]]))
    return table
