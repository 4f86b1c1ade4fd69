"""The verb `leanfed data`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.table import Table

from leanfed.cli.display import notices, show_table
from leanfed.cli.options import DataDir, Json
from leanfed.errors import InputError


def data(
    names: Annotated[list[str] | None, typer.Argument(help="Data sets.", show_default="all")] = None,
    fetch: Annotated[list[str] | None, typer.Option(help="Fetch this data set from the hub; may be repeated.")] = None,
    verify: Annotated[bool, typer.Option(help="Decode what is here and check every sample.")] = False,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """List the data sets: what is here, what can be fetched, and from where.

    Example: leanfed data mnist --verify
    """
    from leanfed.tasks.inventory import fetch_dataset, inventory

    for name in fetch or []:
        if not as_json:
            notices.print(f"fetching {name}", highlight=False, soft_wrap=True, markup=False)
        fetch_dataset(name, data_dir)
    rows = inventory(data_dir, names or (), verify=verify)
    if as_json:
        typer.echo(json.dumps(rows))
        return
    show_table(_inventory_table(rows))
    if any("damaged" in row["here"] for row in rows):
        raise InputError(
            "A data set is damaged; the table says which. Fetch it again with `leanfed data --fetch NAME`."
        )


def _inventory_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """One row per split of a data set; what is missing is yellow, what is damaged red."""
    table = Table("data set", "split", "samples", "here", "where", "licence")
    for row in rows:
        colour = {"yes": "green", "no": "yellow"}.get(row["here"], "red" if "damaged" in row["here"] else "green")
        here = f"[{colour}]{row['here']}[/]"
        table.add_row(row["dataset"], row["split"], f"{row['samples']:,}", here, row["where"], row["licence"])
    return table
