"""`leanfed report`: the static page of some runs, and figures and tables for papers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from leanfed.display import screen
from leanfed.display_plan import working


def report(
    folders: Annotated[list[Path], typer.Argument(help="Run folders, or folders of run folders.")],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    target: Annotated[list[float] | None, typer.Option(min=0, max=1, help="Accuracies to time; 0.8 and 0.9.")] = None,
    title: Annotated[str | None, typer.Option(help="What the page is called.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object for machines, and nothing else.")
    ] = False,
) -> None:
    """Make one HTML page of some runs: accuracy, time, energy, bits, plans, clients, settings.

    Example: leanfed report runs/demo --out report.html
    """
    from leanfed.report.data import TARGETS
    from leanfed.report.page import build_report

    with working("reading runs", quiet=as_json):
        data = build_report(folders, out, targets=target or TARGETS, title=title)
    if as_json:
        told = {"page": str(out), "bytes": out.stat().st_size, "runs": len(data["runs"]), "flaws": data["flaws"]}
        typer.echo(json.dumps(told))
        return
    for flaw in data["flaws"]:
        text = escape(f"{flaw['file']}: {flaw['message']}")
        screen.print(f"[yellow]note:[/yellow] {text}", highlight=False, soft_wrap=True)
    screen.print(f"page: {out} ({out.stat().st_size / 1e6:.1f} MB, {len(data['runs'])} runs)", highlight=False)
