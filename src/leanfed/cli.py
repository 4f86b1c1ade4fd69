"""The command line: one function per verb. Exit codes: 0 ok, 2 the user's input, 3 infeasible, 1 a fault of ours."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from leanfed import __version__
from leanfed.display import byte_progress, notices, round_progress, screen, show_comparison, show_estimate, show_summary
from leanfed.errors import InputError, LeanfedError

if TYPE_CHECKING:
    from leanfed.experiments.settings import Settings

app = typer.Typer(
    name="leanfed",
    help="Lightweight personalised federated learning for the mobile edge.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object for machines, and nothing else.")]
DataDir = Annotated[Path | None, typer.Option(help="Folder of data sets; else LEANFED_DATA.")]
Seed = Annotated[int | None, typer.Option(min=0, help="Overrides the seed of the settings.")]


def main() -> None:
    """Run the command line; explain what can be explained."""
    try:
        app()
    except LeanfedError as error:
        notices.print(f"[red]error:[/red] {error}", highlight=False, soft_wrap=True, markup=True)
        sys.exit(error.exit_code)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"leanfed {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Where to put the runs and the picture.")] = Path("runs/demo"),
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each method.")] = 60,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    as_json: Json = False,
) -> None:
    """Compare FLPDSP, FedPer and FedAvg on digits that come with the installation.

    Example: leanfed demo --seed 1
    """
    from leanfed.experiments.build import run as run_settings
    from leanfed.experiments.demo import demo_settings, free_folder

    folder = free_folder(out)
    for settings in demo_settings(seed, rounds):
        name = str(settings.algorithm.model_dump()["name"])
        with round_progress(settings.name, rounds, folder / name, quiet=as_json) as listen:
            run_settings(settings, folder / name, listen=listen)
    show_comparison([folder], folder / "accuracy.png", [0.8, 0.9], as_json, brief=True)


@app.command()
def run(
    config: Annotated[Path, typer.Argument(help="Settings file (TOML).")],
    out: Annotated[Path | None, typer.Option(help="Run folder to make.")] = None,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change one setting, for example --set training.learning_rate=0.05"),
    ] = None,
    seed: Seed = None,
    data_dir: DataDir = None,
    dry_run: Annotated[bool, typer.Option(help="Say what would run, how long and how big; train nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Train one experiment into a run folder.

    Example: leanfed run experiment.toml --out runs/first
    """
    from leanfed.experiments.build import run as run_settings

    settings, text = _read_settings(config, change or [], seed)
    if dry_run:
        from leanfed.experiments.estimate import estimate

        show_estimate(estimate(settings, None if data_dir is None else str(data_dir)), as_json)
        return
    if out is None:
        raise InputError("A run needs a folder to write to. Add --out DIR, for example --out runs/first.")
    for note in settings.algorithm.notes():
        notices.print(f"[yellow]note:[/yellow] {note}")
    with round_progress(settings.name, settings.rounds, out, quiet=as_json) as listen:
        done = run_settings(settings, out, data_dir=data_dir, given=text, listen=listen)
    show_summary(done.summary, out, as_json)


@app.command()
def resume(
    folder: Annotated[Path, typer.Argument(help="A run folder.")],
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Go on with a run after any stop, bit for bit as if it had not stopped.

    Example: leanfed resume runs/first
    """
    from leanfed.experiments.build import resume as resume_run
    from leanfed.results import RunFolder

    settings = RunFolder(folder).read_settings()
    with round_progress(settings["name"], settings["rounds"], folder, quiet=as_json) as listen:
        done = resume_run(folder, data_dir=data_dir, listen=listen)
    show_summary(done.summary, folder, as_json)


@app.command()
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


@app.command()
def data(
    names: Annotated[list[str] | None, typer.Argument(help="Data sets; all when left out.")] = None,
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
        with byte_progress(name, quiet=as_json) as listen:
            fetch_dataset(name, data_dir, listen)
    rows = inventory(data_dir, names or (), verify=verify)
    if as_json:
        typer.echo(json.dumps(rows))
        return
    table = Table("data set", "split", "samples", "here", "where", "licence")
    for row in rows:
        colour = {"yes": "green", "no": "yellow"}.get(row["here"], "red" if "damaged" in row["here"] else "green")
        table.add_row(
            row["dataset"],
            row["split"],
            f"{row['samples']:,}",
            f"[{colour}]{row['here']}[/]",
            row["where"],
            row["licence"],
        )
    screen.print(table)
    if any("damaged" in row["here"] for row in rows):
        raise InputError(
            "A data set is damaged; the table says which. Fetch it again with `leanfed data --fetch NAME`."
        )


@app.command()
def schema() -> None:
    """Print the JSON schema of a settings file, for editors and tools.

    Example: leanfed schema > leanfed.schema.json
    """
    from leanfed.experiments.settings import json_schema

    typer.echo(json.dumps(json_schema(), indent=2))


def _read_settings(config: Path, changes: Sequence[str], seed: int | None) -> tuple[Settings, str]:
    """The settings with the command line's changes, and the file as it stands."""
    from leanfed.experiments.settings import Settings

    changes = [*changes, *([] if seed is None else [f"seed={seed}"])]
    return Settings.from_toml(config, changes), config.read_text(encoding="utf-8")


if __name__ == "__main__":
    main()
