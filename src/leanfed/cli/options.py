"""Options that several verbs share, and what they do."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from leanfed.errors import InputError

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object for machines, and nothing else.")]
DATA_DIR = "LEANFED_DATA, else your own data folder"  # what --data-dir is when left out
DataDir = Annotated[Path | None, typer.Option(help="Folder of data sets.", show_default=DATA_DIR)]


def numbers(values: list[float] | None) -> list[float] | None:
    """Refuse what is no number or has no end."""
    for value in values or ():
        if not math.isfinite(value):
            raise InputError(f"--target is {value}, but must be a number such as 0.9.")
    return values


Targets = Annotated[
    list[float] | None,
    typer.Option(
        min=0,
        callback=numbers,
        help="Accuracies to time, or errors where numbers are predicted.",
        show_default="0.8, 0.9",
    ),
]
Import = Annotated[
    list[Path] | None,
    typer.Option(
        "--import",
        help="Run this Python file first; it registers your own models, data, allocators. May be repeated.",
    ),
]
Ranks = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=1_024,
        help="Spread the clients over so many processes on this machine; on several machines use torchrun.",
    ),
]

On = Annotated[
    str | None,
    typer.Option(
        help="Where runs are carried out: ray, ray://HOST:PORT, slurm, slurm://PARTITION?minutes=600&memory_gb=8.",
        show_default="this machine",
    ),
]


def is_rank() -> bool:
    """Whether torchrun, or `leanfed run --ranks`, has started this process as one of several."""
    return all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))


def import_all(files: Sequence[Path] | None) -> None:
    """Run the user's own files, which register what they add."""
    if files:
        from leanfed.tasks.user_data import import_file

        for file in files:
            import_file(file)
