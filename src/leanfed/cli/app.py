"""The command line: one function per verb. Exit codes: 0 ok, 2 the user's input, 3 infeasible, 1 a fault of ours."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from leanfed import __version__
from leanfed.cli.deploy import deploy
from leanfed.cli.display import byte_progress, notices, show_comparison, show_estimate, show_table
from leanfed.cli.display_plan import show_row, show_rows, working
from leanfed.cli.display_run import round_progress, show_summary
from leanfed.cli.plan import plan
from leanfed.cli.report import report
from leanfed.cli.reproduce import reproduce
from leanfed.cli.serve import serve
from leanfed.errors import InputError, LeanfedError

if TYPE_CHECKING:
    from leanfed.runs.settings import Settings

app = typer.Typer(
    name="leanfed",
    help="Lightweight personalised federated learning for the mobile edge.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object for machines, and nothing else.")]
DataDir = Annotated[Path | None, typer.Option(help="Folder of data sets; else LEANFED_DATA.")]
Import = Annotated[
    list[Path] | None,
    typer.Option("--import", help="Run this Python file first; it registers your own models or data. May be repeated."),
]
Seed = Annotated[int | None, typer.Option(min=0, help="Overrides the seed of the settings.")]


def main() -> None:
    """Run the command line; explain what can be explained."""
    try:
        app()
    except LeanfedError as error:
        notices.print(f"[red]error:[/red] {escape(str(error))}", highlight=False, soft_wrap=True, markup=True)
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
    out: Annotated[Path, typer.Option(help="Where to put the runs, the picture and the page.")] = Path("runs/demo"),
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each method.")] = 60,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    as_json: Json = False,
) -> None:
    """Compare FLPDSP-OPT, FedPer and FedAvg on digits that come with the installation.

    Example: leanfed demo --seed 1
    """
    from leanfed.report.page import build_report
    from leanfed.runs.build import run as run_settings
    from leanfed.runs.demo import demo_settings, free_folder

    folder = free_folder(out)
    for settings in demo_settings(seed, rounds):
        name = str(settings.algorithm.model_dump()["name"])
        with round_progress(settings.name, rounds, folder / name, quiet=as_json) as listen:
            run_settings(settings, folder / name, listen=listen)
    build_report([folder], folder / "report.html")
    show_comparison([folder], folder / "accuracy.png", [0.8, 0.9], as_json, brief=True, page=folder / "report.html")


@app.command()
def run(
    config: Annotated[Path, typer.Argument(help="Settings file (TOML), or the settings.json of a run.")],
    out: Annotated[Path | None, typer.Option(help="Run folder to make.")] = None,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change one setting, for example --set training.learning_rate=0.05"),
    ] = None,
    seed: Seed = None,
    data_dir: DataDir = None,
    imports: Import = None,
    dry_run: Annotated[bool, typer.Option(help="Say what would run, how long and how big; train nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Train one experiment into a run folder.

    Example: leanfed run experiment.toml --out runs/first
    """
    from leanfed.runs.build import run as run_settings

    _import_all(imports)
    settings, text = _read_settings(config, change or [], seed)
    if dry_run:
        from leanfed.runs.estimate import estimate

        show_estimate(estimate(settings, None if data_dir is None else str(data_dir)), as_json)
        return
    if out is None:
        raise InputError("A run needs a folder to write to. Add --out DIR, for example --out runs/first.")
    for note in settings.notes():
        notices.print(f"[yellow]note:[/yellow] {escape(note)}")
    with round_progress(settings.name, settings.rounds, out, quiet=as_json) as listen:
        done = run_settings(settings, out, data_dir=data_dir, given=text, listen=listen)
    show_summary(done.summary, out, as_json)


@app.command()
def resume(
    folder: Annotated[Path, typer.Argument(help="A run folder.")],
    data_dir: DataDir = None,
    imports: Import = None,
    as_json: Json = False,
) -> None:
    """Go on with a run after any stop, bit for bit as if it had not stopped.

    Example: leanfed resume runs/first
    """
    from leanfed.results import RunFolder
    from leanfed.runs.build import resume as resume_run

    _import_all(imports)
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


app.command()(reproduce)
app.command()(report)
app.command()(serve)
app.command()(plan)


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
    show_table(table)
    if any("damaged" in row["here"] for row in rows):
        raise InputError(
            "A data set is damaged; the table says which. Fetch it again with `leanfed data --fetch NAME`."
        )


@app.command()
def schema() -> None:
    """Print the JSON schema of a settings file, for editors and tools.

    Example: leanfed schema > leanfed.schema.json
    """
    from leanfed.runs.settings import json_schema

    typer.echo(json.dumps(json_schema(), indent=2))


bench = typer.Typer(
    help="Measure how fast leanfed is on this machine.\n\nExample: leanfed bench plan --json", no_args_is_help=True
)
app.add_typer(bench, name="bench")
app.add_typer(deploy, name="deploy")


@bench.command("engine")
def bench_engine(
    clients: Annotated[int | None, typer.Option(min=1, help="Clients in the round; 100, 4 of a large model.")] = None,
    model: Annotated[str, typer.Option(help="A model by name, for example resnet18.")] = "lenet5",
    threads: Annotated[int | None, typer.Option(min=1, help="Worker threads; as many as torch uses.")] = None,
    as_json: Json = False,
) -> None:
    """Time a whole round against plain centralised training on the same samples.

    Example: leanfed bench engine --clients 100 --threads 1
    """
    from leanfed.simulation.bench import engine_bench

    with working("running rounds", quiet=as_json):
        row = engine_bench(clients, model, threads)
    show_row(row, "a round against centralised training", as_json)


@bench.command("codec")
def bench_codec(as_json: Json = False) -> None:
    """Compare coded sizes with the entropy bound, and time encoding and decoding.

    Example: leanfed bench codec --json
    """
    from leanfed.compression.bench import CASES, codec_rows

    with working("coding", quiet=as_json) as tell:

        def announced() -> Iterator[tuple[int, float]]:
            for size, keep_rate in CASES:
                tell(f"{size:,} values, k = {keep_rate:g}")
                yield size, keep_rate

        rows = codec_rows(announced())
    show_rows(rows, "coded updates", as_json)


@bench.command("plan")
def bench_plan(
    clients: Annotated[list[int] | None, typer.Option(min=1, help="Fleet sizes; 100 to 100,000.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Fleets of 100 clients; fewer of larger ones.")] = 20,
    dca: Annotated[bool, typer.Option(help="Time Algorithm 2 too, at 100 clients.")] = True,
    payload: Annotated[str, typer.Option(help="exact or paper.")] = "exact",
    as_json: Json = False,
) -> None:
    """Time the solvers on the paper's fleet with the sizes of LeNet-5 and ResNet-18.

    Example: leanfed bench plan --clients 100 --clients 10000
    """
    from leanfed.allocation.bench import plan_rows

    with working("planning", quiet=as_json) as tell:
        sizes = {"clients": clients} if clients else {}
        rows = plan_rows(seeds=seeds, dca=dca, payload=payload, progress=tell, **sizes)
    show_rows(rows, "seconds per plan", as_json)


def _import_all(files: Sequence[Path] | None) -> None:
    """Run the user's own files, if any are named."""
    if files:
        from leanfed.tasks.user_data import import_file

        for file in files:
            import_file(file)


def _read_settings(config: Path, changes: Sequence[str], seed: int | None) -> tuple[Settings, str | None]:
    """The settings with the command line's changes, and the file as it stands where it is TOML."""
    from leanfed.runs.settings import Settings

    changes = [*changes, *([] if seed is None else [f"seed={seed}"])]
    settings = Settings.from_toml(config, changes)
    return settings, None if config.suffix == ".json" else config.read_text(encoding="utf-8")


if __name__ == "__main__":
    main()
