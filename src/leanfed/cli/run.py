"""The verbs `leanfed run` and `leanfed resume`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from leanfed.cli.display import notices, show_comparison, show_estimate
from leanfed.cli.display_run import round_progress, rounds_of_all, show_summary
from leanfed.cli.options import DataDir, Import, Json, On, Ranks, import_all, is_rank
from leanfed.errors import InputError

if TYPE_CHECKING:
    from leanfed.runs.settings import Settings


Config = Annotated[
    Path,
    typer.Argument(
        help="Settings file (TOML), the settings.json of a run, or packaged settings by name (mnist_alpha01)."
    ),
]
Seeds = Annotated[
    str | None,
    typer.Option(help="Several seeds, such as 0,1,2 or 0-9: one run each, in OUT/seed-N; then their table."),
]


def run(
    config: Config,
    out: Annotated[Path | None, typer.Option(help="Run folder to make.")] = None,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change one setting, for example --set training.learning_rate=0.05"),
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Overrides the seed of the settings.")] = None,
    seeds: Seeds = None,
    data_dir: DataDir = None,
    imports: Import = None,
    dry_run: Annotated[bool, typer.Option(help="Say what would run, how long and how big; train nothing.")] = False,
    ranks: Ranks = None,
    on: On = None,
    as_json: Json = False,
) -> None:
    """Train one experiment into a run folder.

    Example: leanfed run experiment.toml --out runs/first
    """
    import_all(imports)
    settings, text = _read_settings(config, change or [], seed)
    several = _several(seed, seeds)
    if dry_run:
        from leanfed.runs.estimate import estimate

        if several is not None:
            _note(f"one of {len(several)} seeds is told; each takes as much.")
        show_estimate(estimate(settings, None if data_dir is None else str(data_dir)), as_json)
        return
    if out is None:
        raise InputError("A run needs a folder to write to. Add --out DIR, for example --out runs/first.")
    alone = ranks is None and not is_rank()
    if on is not None:
        if not alone:
            raise InputError("--on has each run carried out by one process. Leave it out, or the ranks.")
        _run_elsewhere(on, settings, out, several, data_dir, imports or [], as_json)
    elif several is not None:
        _run_seeds(settings, out, several, data_dir, text, as_json, alone=alone)
    elif is_rank():
        _run_as_rank(settings, out, data_dir, text, as_json)
    elif ranks is not None:
        changes = _each("--set", [*(change or []), *([] if seed is None else [f"seed={seed}"])])
        _launch(ranks, ["run", str(config), "--out", str(out), *changes], data_dir, imports, as_json)
    else:
        _run_alone(settings, out, data_dir, text, as_json)


def _several(seed: int | None, seeds: str | None) -> list[int] | None:
    """The seeds of --seeds."""
    from leanfed.runs.study import seeds_of

    if seed is not None and seeds is not None:
        raise InputError("--seed and --seeds are both given. Leave one of them out.")
    return None if seeds is None else seeds_of(seeds)


def _run_alone(settings: Settings, out: Path, data_dir: Path | None, text: str | None, as_json: bool) -> None:
    """The run in this process."""
    from leanfed.runs.carry_out import run as run_settings

    _say_notes(settings)
    with round_progress(settings.name, settings.rounds, out, quiet=as_json) as listen:
        done = run_settings(settings, out, data_dir=data_dir, given=text, listen=listen, notify=_note)
    if settings.task.chooses_cut:
        _note(f"task.split = {settings.task.split!r} was {done.settings.task.split!r}; {out / 'cuts.json'} says why.")
    show_summary(done.summary, out, as_json)


def _say_notes(settings: Settings) -> None:
    for note in settings.notes():
        _note(note)


def _launch(
    ranks: int, words: Sequence[str], data_dir: Path | None, imports: Sequence[Path] | None, as_json: bool
) -> None:
    """Start this command as several processes, and end as they end."""
    from leanfed.runs.launch import launch

    where = [] if data_dir is None else ["--data-dir", str(data_dir)]
    more = [*_each("--import", map(str, imports or [])), *(["--json"] if as_json else [])]
    if code := launch(ranks, [*words, *where, *more]):
        raise typer.Exit(code)


def _each(option: str, values: Iterable[str]) -> list[str]:
    return [word for value in values for word in (option, value)]


def _run_as_rank(settings: Settings | None, out: Path, data_dir: Path | None, text: str | None, as_json: bool) -> None:
    """This process's part of a run on several ranks; the first shows it."""
    from leanfed.results import RunFolder
    from leanfed.rounds.ranks import RankSettings
    from leanfed.runs.launch import end_with_launcher
    from leanfed.runs.ranked import run_on
    from leanfed.runs.settings import Settings
    from leanfed.simulation.process_group import joined

    end_with_launcher()
    known = settings or Settings.from_values(RunFolder(out).read_settings(), str(out))
    how: RankSettings = known.run.ranks
    with joined(how) as group:
        if group.first and settings is not None:
            _say_notes(settings)
        with round_progress(known.name, known.rounds, out, quiet=as_json or not group.first) as listen:
            done = run_on(group, settings, out, data_dir=data_dir, given=text, listen=listen, notify=_note)
    if done is not None:
        show_summary(done.summary, out, as_json)


def _run_seeds(
    settings: Settings,
    out: Path,
    seeds: Sequence[int],
    data_dir: Path | None,
    text: str | None,
    as_json: bool,
    *,
    alone: bool,
) -> None:
    """One run for each seed, then their comparison; one that is finished is kept, one that was stopped goes on."""
    from leanfed.results import RunFolder
    from leanfed.runs.carry_out import resume as resume_run
    from leanfed.runs.carry_out import run as run_settings

    if not alone:
        raise InputError("--seeds runs one seed after another in one process. Leave it out, or the ranks.")
    _say_notes(settings)
    for wanted, folder in _of_seeds(settings, out, seeds):
        with round_progress(f"{settings.name}, seed {wanted.seed}", settings.rounds, folder, quiet=as_json) as listen:
            if not RunFolder(folder).settings.is_file():
                run_settings(wanted, folder, data_dir=data_dir, given=text, listen=listen, notify=_note)
                continue
            resume_run(folder, data_dir=data_dir, listen=listen, notify=_note)
    show_comparison([out], out / "comparison.png", None, as_json)


def _of_seeds(settings: Settings, out: Path, seeds: Sequence[int]) -> list[tuple[Settings, Path]]:
    """The runs of some seeds and their folders; a folder that holds another run is refused."""
    runs = [(settings.model_copy(update={"seed": seed}), out / f"seed-{seed}") for seed in seeds]
    for wanted, folder in runs:
        _check_the_same(wanted, folder)
    return runs


def _check_the_same(wanted: Settings, folder: Path) -> None:
    """Refuse a folder that holds a run of other settings."""
    from leanfed.results import RunFolder
    from leanfed.runs.cuts import as_kept

    if RunFolder(folder).settings.is_file():
        kept = RunFolder(folder).read_settings()
        if {**kept, "run": None} != {**as_kept(wanted, RunFolder(folder)).resolved(), "run": None}:
            raise InputError(f"{folder} holds a run of other settings. Choose another --out, or remove it.")


def _run_elsewhere(
    on: str,
    settings: Settings,
    out: Path,
    seeds: Sequence[int] | None,
    data_dir: Path | None,
    imports: Sequence[Path],
    as_json: bool,
) -> None:
    """The run, or one for each seed, at another place; then what it has come to."""
    from leanfed.errors import LeanfedError
    from leanfed.files import read_json
    from leanfed.results import RunFolder
    from leanfed.runs.places import Terms, place_of

    _say_notes(settings)
    work = [(settings, out)] if seeds is None else _of_seeds(settings, out, seeds)
    if seeds is None:
        _check_the_same(settings, out)
    place = place_of(on, Terms(None, data_dir, imports))
    with rounds_of_all(len(work), len(work) * settings.rounds, quiet=as_json) as tell:
        failures = place.carry_out(work, tell, lambda folder: None)
    if failures:
        raise LeanfedError(f"{len(failures)} of {len(work)} runs could not be carried out, the first: {failures[0]}")
    if seeds is None:
        show_summary(read_json(RunFolder(out).summary), out, as_json)
    else:
        show_comparison([out], out / "comparison.png", None, as_json)


def resume(
    folder: Annotated[Path, typer.Argument(help="A run folder.")],
    data_dir: DataDir = None,
    imports: Import = None,
    ranks: Ranks = None,
    as_json: Json = False,
) -> None:
    """Go on with a run after any stop, bit for bit as if it had not stopped.

    Example: leanfed resume runs/first
    """
    from leanfed.results import RunFolder, check_resumable
    from leanfed.runs.carry_out import resume as resume_run
    from leanfed.runs.settings import Settings

    import_all(imports)
    kept = RunFolder(folder)
    check_resumable(kept)  # first: a newer version's settings may hold what this one does not know
    settings = Settings.from_values(kept.read_settings(), str(kept.settings))
    if is_rank():
        _run_as_rank(None, folder, data_dir, None, as_json)
        return
    if ranks is not None:
        _launch(ranks, ["resume", str(folder)], data_dir, imports, as_json)
        return
    with round_progress(settings.name, settings.rounds, folder, quiet=as_json) as listen:
        done = resume_run(folder, data_dir=data_dir, listen=listen, notify=_note)
    show_summary(done.summary, folder, as_json)


def _note(text: str) -> None:
    notices.print(f"[yellow]note:[/yellow] {escape(text)}")


def _read_settings(config: Path, changes: Sequence[str], seed: int | None) -> tuple[Settings, str | None]:
    """The settings with the command line's changes, and the file as it stands where it is TOML."""
    from leanfed.files import read_text
    from leanfed.runs.packaged import settings_file
    from leanfed.runs.settings import Settings

    config = settings_file(config)
    changes = [*changes, *([] if seed is None else [f"seed={seed}"])]
    settings = Settings.from_toml(config, changes)
    return settings, None if config.suffix == ".json" else read_text(config)
