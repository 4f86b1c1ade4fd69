"""The verb `leanfed demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from leanfed.cli.display import show_comparison
from leanfed.cli.display_run import round_progress
from leanfed.cli.options import Json


def demo(
    out: Annotated[Path, typer.Option(help="Where to put the runs, the picture and the page.")] = Path("runs/demo"),
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each method.")] = 60,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    as_json: Json = False,
) -> None:
    """Compare FLPDSP-OPT, FedPer and FedAvg on digits that come with the installation.

    Example: leanfed demo --seed 1
    """
    from leanfed.report.page import build_report
    from leanfed.runs.carry_out import run as run_settings
    from leanfed.runs.demo import demo_settings, free_folder

    folder = free_folder(out)
    for settings in demo_settings(seed, rounds):
        name = str(settings.algorithm.model_dump()["name"])
        with round_progress(settings.name, rounds, folder / name, quiet=as_json) as listen:
            run_settings(settings, folder / name, listen=listen)
    build_report([folder], folder / "report.html")
    show_comparison([folder], folder / "accuracy.png", [0.8, 0.9], as_json, brief=True, page=folder / "report.html")
