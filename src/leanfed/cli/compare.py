"""The verb `leanfed compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from leanfed.cli.display import show_comparison
from leanfed.cli.options import Json


def compare(
    folders: Annotated[list[Path], typer.Argument(help="Run folders, or folders of run folders.")],
    picture: Annotated[Path, typer.Option(help="Where to put the picture.")] = Path("comparison.png"),
    target: Annotated[list[float] | None, typer.Option(min=0, max=1, help="Accuracies to time; 0.8 and 0.9.")] = None,
    as_json: Json = False,
) -> None:
    """Put runs side by side: final accuracy, what each target cost, and curves over seconds, joules, bits and rounds.

    Example: leanfed compare runs/fedper runs/flpdsp --target 0.9
    """
    show_comparison(folders, picture, target or [0.8, 0.9], as_json)
