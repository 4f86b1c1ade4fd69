"""The verb `leanfed compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from leanfed.cli.display import show_comparison
from leanfed.cli.options import Json, Targets
from leanfed.errors import InputError
from leanfed.files import check_parent

PICTURES = (".png", ".pdf", ".svg")


def compare(
    folders: Annotated[list[Path], typer.Argument(help="Run folders, or folders of run folders.")],
    picture: Annotated[Path, typer.Option(help="Where to put the picture.")] = Path("comparison.png"),
    target: Targets = None,
    as_json: Json = False,
) -> None:
    """Put runs side by side: final scores, what each target cost, and curves over seconds, joules, bits and rounds.

    Example: leanfed compare runs/fedper runs/flpdsp --target 0.9
    """
    if picture.suffix not in PICTURES:
        raise InputError(f"--picture {picture} ends in {picture.suffix!r}, but must end in {', '.join(PICTURES)}.")
    check_parent(picture)
    show_comparison(folders, picture, target or None, as_json)
