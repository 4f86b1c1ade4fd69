"""The verb `leanfed study`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from leanfed.cli.display import notices, screen, show_table
from leanfed.cli.display_run import rounds_of_all
from leanfed.cli.options import DataDir, Import, Json, On, import_all


def study(
    file: Annotated[Path, typer.Argument(help="Study file (TOML): seeds, \\[base], \\[grid], \\[methods.NAME].")],
    out: Annotated[Path, typer.Option(help="Where runs, tables and figures go.")] = Path("runs/study"),
    processes: Annotated[
        int | None, typer.Option(min=1, help="Runs at a time.", show_default="1, and elsewhere all at once")
    ] = None,
    on: On = None,
    data_dir: DataDir = None,
    imports: Import = None,
    train: Annotated[bool, typer.Option(help="--no-train: make the tables of the runs that are finished.")] = True,
    as_json: Json = False,
) -> None:
    """Compare methods over grids of settings and seeds: means, intervals, paired differences, ranks, figures.

    Runs that are finished are kept, one that was stopped goes on: the same command may be given again at any time.

    Example: leanfed study methods.toml --out runs/methods --processes 2
    """
    from leanfed.runs.places import Terms
    from leanfed.runs.read import read
    from leanfed.runs.study import Carried, carry_out_study, home_of, missing, read_study
    from leanfed.runs.study_tables import block_of, write_study

    import_all(imports)
    asked, jobs = read_study(file)
    left = missing(jobs, out / "runs")
    if train:
        with rounds_of_all(len(left), sum(job.settings.rounds for job in left), quiet=as_json) as tell:
            carried = carry_out_study(
                jobs,
                out / "runs",
                terms=Terms(processes or (1 if on is None else None), data_dir, imports or ()),
                on=on,
                tell=tell,
            )
    else:
        there = [job for job in jobs if job not in left]
        carried = Carried([(job, read(home_of(job.settings, out / "runs"))) for job in there], [])
    results = write_study(asked, carried, out)
    if as_json:
        typer.echo(json.dumps({**results, "folder": str(out)}))
        return
    for reason in carried.failures:
        notices.print(f"[yellow]note:[/yellow] {escape(reason)}", highlight=False, soft_wrap=True)
    block = block_of(results)
    table = Table(*block.head, title=escape(asked.name))
    for row in block.rows:
        table.add_row(*map(escape, row))
    show_table(table)
    screen.print(f"wrote {out}: table.md, table.tex, runs.csv, study.json, figures", highlight=False, soft_wrap=True)
