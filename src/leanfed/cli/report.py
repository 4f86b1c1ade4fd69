"""`leanfed report`: the static page of some runs, and figures and tables for papers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from leanfed.cli.display import screen
from leanfed.cli.display_plan import working
from leanfed.cli.options import Targets
from leanfed.errors import InputError
from leanfed.files import check_parent

KINDS = ("pdf", "png")


def report(
    folders: Annotated[list[Path], typer.Argument(help="Run folders, or folders of run folders.")],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    figures: Annotated[
        str | None, typer.Option(help="Write figures for papers (pdf or png) and LaTeX tables too, beside the page.")
    ] = None,
    target: Targets = None,
    title: Annotated[str | None, typer.Option(help="What the page is called.")] = None,
    results: Annotated[
        Path, typer.Option(help="Where `leanfed reproduce` put its results, for the paper's values.")
    ] = Path("results"),
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object for machines, and nothing else.")
    ] = False,
) -> None:
    """Make one HTML page of some runs: accuracy, time, energy, bits, plans, clients, settings.

    Example: leanfed report runs/demo --out report.html --figures pdf
    """
    from leanfed.report.page import build_report

    if figures is not None and figures not in KINDS:
        raise InputError(f"--figures is {figures!r}, but must be one of: {', '.join(KINDS)}.")
    check_parent(out)
    with working("reading runs", quiet=as_json) as tell:
        data = build_report(folders, out, targets=target or None, title=title, results=results)
        drawn: list[Path] = []
        if figures is not None:
            from leanfed.report.figures import write_figures

            tell("drawing figures")
            drawn = write_figures(data, out.parent / f"{out.stem}-figures", figures)
    if as_json:
        page = {"page": str(out), "bytes": out.stat().st_size, "runs": len(data["runs"])}
        typer.echo(json.dumps({**page, "figures": [str(path) for path in drawn], "flaws": data["flaws"]}))
        return
    for flaw in data["flaws"]:
        text = escape(f"{flaw['file']}: {flaw['message']}")
        screen.print(f"[yellow]note:[/yellow] {text}", highlight=False, soft_wrap=True)
    size = f"{out.stat().st_size / 1e6:.1f} MB, {len(data['runs'])} runs"
    screen.print(f"page: {escape(str(out))} ({size})", highlight=False, soft_wrap=True)
    if drawn:
        screen.print(f"figures: {escape(str(drawn[0].parent))} ({len(drawn)} files)", highlight=False, soft_wrap=True)
