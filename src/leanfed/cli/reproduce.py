"""The verb `reproduce`: the paper's tables and figures, one command for each."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from leanfed.cli.display import notices, screen
from leanfed.cli.options import DataDir, On
from leanfed.errors import LeanfedError

if TYPE_CHECKING:
    from leanfed.reproduction.reproduce import Watch

COLOURS = {
    **dict.fromkeys(("holds", "within", "better"), "green"),
    **dict.fromkeys(("fails", "worse"), "red"),
    "not judged": "yellow",
}


def reproduce(
    names: Annotated[list[str] | None, typer.Argument(help="Tables and figures by name.", show_default="all")] = None,
    show_list: Annotated[bool, typer.Option("--list", help="List what there is, and what is known of it.")] = False,
    quick: Annotated[
        bool, typer.Option(help="A small version on the embedded digits, which says that it is one.")
    ] = False,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="How many seeds.", show_default="as many as the entry names")
    ] = None,
    runs: Annotated[Path, typer.Option(help="Where runs are kept; finished ones beneath it are used.")] = Path(
        "runs/reproduce"
    ),
    out: Annotated[Path, typer.Option(help="Where results go, in a folder per entry.")] = Path("results"),
    processes: Annotated[
        int | None, typer.Option(min=1, help="Runs at a time.", show_default="one for each core")
    ] = None,
    on: On = None,
    train: Annotated[bool, typer.Option(help="--no-train: judge on the runs that are finished.")] = True,
    judge_only: Annotated[
        bool,
        typer.Option("--judge-only", help="Judge the numbers in the results files anew, redraw the figures."),
    ] = False,
    data_dir: DataDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, and nothing else.")] = False,
) -> None:
    """Reproduce tables and figures of the paper: ours beside the published numbers, with a verdict on every claim.

    Runs that are finished are kept, one that was stopped goes on, and the same command may be given again at any time.

    Example: leanfed reproduce mnist-cost --seeds 3
    """
    from leanfed.reproduction.reproduce import Request, judge_again_all, listed
    from leanfed.reproduction.reproduce import reproduce as carry_out

    if show_list:
        _show_list(listed(out), as_json)
        return
    request = Request(names or (), runs, out, seeds, quick, train, processes, data_dir, on)
    with _progress(quiet=as_json) as watch:
        written = judge_again_all(request) if judge_only else carry_out(request, watch)
    if as_json:
        typer.echo(json.dumps({"page": str(request.page), "entries": written}))
    else:
        _show(written, request.page, quick)
    failures = [text for results in written for text in results["failures"]]
    if failures:
        raise LeanfedError(f"{len(failures)} runs could not be carried out, the first: {failures[0]}")


@contextmanager
def _progress(*, quiet: bool) -> Iterator[Watch]:
    """A bar over the rounds of all missing runs, and an estimate before it; Ctrl-C says how to go on."""
    from leanfed.reproduction.reproduce import Watch

    columns = [
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    ]
    with Progress(*columns, console=notices, disable=quiet, refresh_per_second=2, speed_estimate_period=300) as bar:
        item = bar.add_task("looking for finished runs", total=None)

        def begin(count: int, rounds: int, seconds: float) -> None:
            if not quiet:
                notices.print(f"{count} runs are missing: about {max(1, round(seconds / 60))} minutes", highlight=False)
            bar.reset(item, total=rounds, description="rounds")

        try:
            yield Watch(begin, lambda: bar.advance(item))
        except KeyboardInterrupt:
            bar.stop()
            notices.print("stopped; the same command goes on where it stopped", highlight=False)
            raise typer.Exit(130) from None


def _show_list(rows: Sequence[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(rows))
        return
    table = Table("name", "what", "runs", "claims held", "core minutes")
    for row in rows:
        held = row["holds"] + row["within"] + row["better"]
        judged = held + row["worse"] + row["fails"]
        known = f"{held} of {judged}" if judged else "-"
        minutes = "-" if row["core_minutes"] is None else f"{row['core_minutes']:.1f}"
        table.add_row(row["name"], row["title"], str(row["runs"]), known, minutes)
    screen.print(table)


def _show(written: Sequence[dict[str, Any]], page: Path, quick: bool) -> None:
    for results in written:
        table = Table("claim", "paper", "ours", "verdict", title=results["title"])
        for claim in results["claims"]:
            colour = COLOURS[claim["verdict"]]
            table.add_row(claim["claim"], claim["paper"], claim["ours"], f"[{colour}]{claim['verdict']}[/]")
        if results["claims"]:
            screen.print(table)
        if results["runs_missing"]:
            notices.print(f"[yellow]{results['runs_missing']} of {results['runs']} runs are missing[/yellow]")
    if quick:
        screen.print("a quick version: it shows that everything works and is no evidence", highlight=False)
    screen.print(f"wrote {page}", highlight=False, soft_wrap=True)
