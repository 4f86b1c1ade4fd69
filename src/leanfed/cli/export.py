"""`leanfed export`: a client's own model as a file for other programs."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from leanfed.cli.display import screen, show_table
from leanfed.cli.display_plan import working
from leanfed.cli.options import DataDir, Import, Json, import_all
from leanfed.errors import InputError, nearest
from leanfed.files import check_parent


def export(
    folder: Annotated[Path, typer.Argument(help="The folder of a finished run.")],
    client: Annotated[int, typer.Option(help="Whose model.")] = 0,
    format: Annotated[str, typer.Option(help="torch (a torch.export program), onnx or executorch.")] = "onnx",
    out: Annotated[
        Path | None, typer.Option(help="The file to write.", show_default="client-N.onnx, .pt2 or .pte in this folder")
    ] = None,
    int8: Annotated[bool, typer.Option("--int8", help="Weights and activations in 8 bits (onnx).")] = False,
    units: Annotated[
        float | None,
        typer.Option(help="Keep this share of the head's units, those with the largest weights.", show_default="all"),
    ] = None,
    imports: Import = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Write a client's personal model to a file that runs without leanfed, and measure it.

    Size, milliseconds a sample (one thread of this machine) and accuracy on the client's own test set are told
    beside those of the same model in PyTorch. A description (JSON) is written next to the file. Units of the head that
    pruning has emptied (algorithm.prune.unit = "unit") are left out.

    Example: leanfed export runs/demo --client 7 --format onnx --out client-7.onnx
    """
    from leanfed.runs.export import ENDINGS, export_model

    known = {str(name): name for name in ENDINGS}
    if format not in known:
        raise InputError(f"--format is {format!r}; {nearest(format, known)}")
    import_all(imports)
    path = out or Path(f"client-{client}{ENDINGS[known[format]]}")
    check_parent(path)
    with working("exporting", quiet=as_json):
        made = export_model(folder, client, known[format], path, int8=int8, units=units, data_dir=data_dir)
    if as_json:
        both = {"file": asdict(made.file), "original": asdict(made.original)}
        typer.echo(
            json.dumps({"path": str(path), "client": client, "units": made.units, "judged_by": made.judged_by, **both})
        )
        return
    table = Table("model", "kB", "ms a sample", made.judged_by)
    for name, one in (("in PyTorch", made.original), (path.name, made.file)):
        table.add_row(escape(name), f"{one.bytes / 1e3:,.1f}", f"{one.latency_ms:.3f}", f"{one.score:.4f}")
    show_table(table)
    for layer, (has, had) in made.units.items():
        screen.print(f"{escape(layer)}: {has} of {had} units")
    screen.print(f"model: {escape(str(path))}, described in {escape(made.description.name)}", soft_wrap=True)
