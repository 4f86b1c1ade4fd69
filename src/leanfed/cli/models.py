"""The verb `leanfed models`."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from leanfed.cli.display import screen, show_table
from leanfed.cli.options import Import, Json, import_all


def models(
    name: Annotated[str | None, typer.Argument(help="A model.", show_default="the names of all")] = None,
    outputs: Annotated[int, typer.Option(min=1, help="Classes, or numbers to predict.")] = 10,
    split: Annotated[
        str | None, typer.Option(help="Another last layer of the base, as task.split.", show_default="the model's own")
    ] = None,
    imports: Import = None,
    as_json: Json = False,
) -> None:
    """List the models, or show the layers of one and where it is cut into shared base and private head.

    Example: leanfed models lenet5 --split conv2
    """
    from leanfed.tasks.cut import layers_of
    from leanfed.tasks.models import MODELS

    import_all(imports)
    if name is None:
        typer.echo(json.dumps(list(MODELS)) if as_json else "\n".join(MODELS))
        return
    layers, cut = layers_of(name, outputs, cut=split)
    shared, private = (sum(layer.size for layer in layers if layer.shared is part) for part in (True, False))
    if as_json:
        rows = [{"layer": one.name, "kind": one.kind, "values": one.size, "shared": one.shared} for one in layers]
        typer.echo(json.dumps({"model": name, "cut": cut, "shared": shared, "private": private, "layers": rows}))
        return
    table = Table("layer", "kind", "values", "part")
    for layer in layers:
        table.add_row(escape(layer.name), layer.kind, f"{layer.size:,}", "base" if layer.shared else "head")
    show_table(table)
    screen.print(f"cut after {cut}: {shared:,} values shared, {private:,} private", highlight=False, soft_wrap=True)
