"""The command line: one function per verb. Exit codes: 0 ok, 2 the user's input, 3 infeasible, 1 a fault of ours."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from leanfed import __version__
from leanfed.errors import InputError, LeanfedError

if TYPE_CHECKING:
    from leanfed.experiments.compare import ComparedRun
    from leanfed.experiments.settings import Settings
    from leanfed.simulation.rounds import RoundRecord

app = typer.Typer(
    name="leanfed",
    help="Lightweight personalised federated learning for the mobile edge.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
screen = Console()
notices = Console(stderr=True)

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
        with _progress(settings.name, rounds, folder / name, quiet=as_json) as listen:
            run_settings(settings, folder / name, listen=listen)
    _show_comparison([folder], folder / "accuracy.png", [0.8, 0.9], as_json, brief=True)


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

        _show_estimate(estimate(settings, None if data_dir is None else str(data_dir)), as_json)
        return
    if out is None:
        raise InputError("A run needs a folder to write to. Add --out DIR, for example --out runs/first.")
    for note in settings.algorithm.notes():
        notices.print(f"[yellow]note:[/yellow] {note}")
    with _progress(settings.name, settings.rounds, out, quiet=as_json) as listen:
        done = run_settings(settings, out, data_dir=data_dir, given=text, listen=listen)
    _show_summary(done.summary, out, as_json)


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
    with _progress(settings["name"], settings["rounds"], folder, quiet=as_json) as listen:
        done = resume_run(folder, data_dir=data_dir, listen=listen)
    _show_summary(done.summary, folder, as_json)


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
    _show_comparison(folders, picture, target or [0.8, 0.9], as_json)


@app.command()
def data(
    fetch: Annotated[list[str] | None, typer.Option(help="Fetch this data set from the hub; may be repeated.")] = None,
    verify: Annotated[bool, typer.Option(help="Decode what is here and check every sample.")] = False,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """List the data sets: what is here, what can be fetched, and from where.

    Example: leanfed data --verify
    """
    from leanfed.tasks.inventory import fetch_dataset, inventory

    for name in fetch or []:
        with _bytes_progress(name, quiet=as_json) as listen:
            fetch_dataset(name, data_dir, listen)
    rows = inventory(data_dir, verify=verify)
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


@contextmanager
def _progress(name: str, rounds: int, folder: Path, *, quiet: bool) -> Iterator[Callable[[RoundRecord], None]]:
    """A bar with the round, the last accuracy and the time left; Ctrl-C ends with a word on how to go on."""
    columns = [
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("accuracy {task.fields[accuracy]}"),
        TimeRemainingColumn(),
    ]
    with Progress(*columns, console=notices, disable=quiet, refresh_per_second=4) as bar:
        item = bar.add_task(name, total=rounds, accuracy="-")

        def listen(record: RoundRecord) -> None:
            bar.update(item, completed=record.progress.round)
            if record.row["accuracy"] is not None:
                guess = record.row["majority_guess"]
                bar.update(item, accuracy=f"{record.row['accuracy']:.3f} (majority guess {guess:.3f})")

        try:
            yield listen
        except KeyboardInterrupt:
            bar.stop()
            notices.print(f"stopped; go on with: leanfed resume {folder}", highlight=False, soft_wrap=True)
            raise typer.Exit(130) from None


@contextmanager
def _bytes_progress(name: str, *, quiet: bool) -> Iterator[Callable[[int, int | None], None]]:
    """A bar over the bytes of a download."""
    with Progress(console=notices, disable=quiet) as bar:
        item = bar.add_task(f"fetching {name}", total=None)
        yield lambda done, total: bar.update(item, completed=done, total=total)


def _show_summary(summary: dict[str, Any], folder: Path, as_json: bool) -> None:
    """The end of a run."""
    if as_json:
        typer.echo(json.dumps({**summary, "folder": str(folder)}))
        return
    screen.print(
        f"{summary['name']}: accuracy {summary['accuracy']:.4f} after {summary['rounds']} rounds "
        f"(worst decile {summary['worst_decile']:.4f}, majority guess {summary['majority_guess']:.4f})",
        highlight=False,
    )
    screen.print(f"wrote {folder}", highlight=False, soft_wrap=True)


def _show_estimate(estimate: dict[str, Any], as_json: bool) -> None:
    """The answer of a dry run."""
    if as_json:
        typer.echo(json.dumps(estimate))
        return
    table = Table(show_header=False)
    for key, value in estimate.items():
        if key.endswith("_bytes"):
            value = f"{value / 2**20:.1f} MiB"
        table.add_row(key.replace("_bytes", "").replace("_", " "), str(value))
    screen.print(table)


def _show_comparison(
    folders: Sequence[Path], picture: Path, targets: Sequence[float], as_json: bool, *, brief: bool = False
) -> None:
    """The tables and the picture of several runs; the brief picture has accuracy over rounds and seconds only."""
    from leanfed.experiments.compare import DRAWN, draw_comparison, read_run
    from leanfed.results import find_runs

    runs = [read_run(folder) for folder in find_runs(list(folders))]
    draw_comparison(runs, picture, ("rounds", "latency_s") if brief else DRAWN, loss=not brief)
    if as_json:
        typer.echo(json.dumps({"runs": [run.row(targets) for run in runs], "picture": str(picture)}))
        return
    best_first = sorted(runs, key=lambda run: -run.accuracy[-1])
    screen.print(_accuracy_table(best_first))
    for target in targets:
        screen.print(_target_table(best_first, target))
    screen.print(f"picture: {picture}", highlight=False, soft_wrap=True)
    if len(folders) == 1:
        screen.print(f"runs:    {folders[0]}", highlight=False, soft_wrap=True)


def _accuracy_table(runs: Sequence[ComparedRun]) -> Table:
    """Where each run ended."""
    table = Table("run", "rounds", "accuracy", "worst decile", "majority guess")
    for run in runs:
        numbers = (run.accuracy[-1], run.worst_decile[-1], run.majority_guess)
        table.add_row(run.name, f"{run.spent['rounds'][-1]:.0f}", *(f"{number:.4f}" for number in numbers))
    return table


def _target_table(runs: Sequence[ComparedRun], target: float) -> Table:
    """What it cost each run to reach a target accuracy."""
    table = Table("run", "rounds", "seconds", "joules", "gigabits", "TFLOPs", title=f"to {target:.0%} accuracy")
    for run in runs:
        cost = run.cost_of(target)
        table.add_row(
            run.name, *(["not reached", *"-" * 4] if cost is None else [f"{value:.4g}" for value in cost.values()])
        )
    return table


if __name__ == "__main__":
    main()
