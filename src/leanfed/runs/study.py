"""A study: a grid over settings, methods and seeds; its runs are found by content, resumed, and done in parallel."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from leanfed.errors import LeanfedError, SettingsError
from leanfed.files import parse_toml, read_text
from leanfed.records import Section
from leanfed.results import RunFolder
from leanfed.runs.outcome import Run
from leanfed.runs.packaged import settings_file
from leanfed.runs.places import Terms, place_of
from leanfed.runs.read import read
from leanfed.runs.settings import Settings

NOT_CONTENT = ("checkpoint_every", "threads", "keep_weights", "track", "ranks")  # of [run]: they change no result
MOST_SEEDS = 100_000  # of one command


class Study(Section):
    """What is compared: every method at every point of the grid, on every seed."""

    name: str = Field(default="study", min_length=1)
    """What tables and figures call it."""
    settings: str | None = None
    """A settings file (from the study's own folder), or packaged settings by name, that [base] changes."""
    seeds: tuple[int, ...] = Field(default=(0, 1, 2), min_length=1)
    """The same for every method, so that differences are paired."""
    reference: str | None = None
    """The method that the others are set against; the first when left out."""
    base: dict[str, Any] = Field(default_factory=dict)
    """Settings of every run."""
    grid: dict[str, tuple[Any, ...]] = Field(default_factory=dict)
    """`"section.key" = [values]`: all combinations."""
    methods: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Settings by method, under the name that tables show; left out: one, that of [base]."""


@dataclass(frozen=True)
class Job:
    """One run of a study."""

    method: str
    point: tuple[tuple[str, str], ...]  # of the grid: keys and their values as tables show them
    seed: int
    settings: Settings


def read_study(file: Path) -> tuple[Study, list[Job]]:
    """A study file, and all runs that it asks for; what is wrong with it is said with its place."""
    try:
        study = Study.model_validate(parse_toml(read_text(file)))
    except ValidationError as error:
        first = error.errors()[0]
        raise SettingsError(
            f"{file}: {'.'.join(map(str, first['loc']))}: {first['msg']}. A study has name, settings, seeds, "
            "reference, [base], [grid] and [methods.NAME]."
        ) from None
    except ValueError as error:
        raise SettingsError(f"{file} is not valid TOML: {error}. Correct that line.") from error
    names = list(study.methods) or [study.name]
    if study.reference is not None and study.reference not in names:
        raise SettingsError(f"{file}: reference = {study.reference!r} is none of the methods {', '.join(names)}.")
    if empty := [key for key, values in study.grid.items() if not values]:
        raise SettingsError(f"{file}: grid.{empty[0]!r} has no values. Give at least one.")
    return study, list(_jobs(study, file))


def _jobs(study: Study, file: Path) -> Iterator[Job]:
    start: dict[str, Any] = {}
    if study.settings is not None:
        beside = file.parent / study.settings
        start = parse_toml(read_text(beside if beside.is_file() else settings_file(study.settings)))
    methods = study.methods or {study.name: {}}
    for values in product(*study.grid.values()):
        point = tuple((key, _shown(value)) for key, value in zip(study.grid, values, strict=True))
        for method, own in methods.items():
            for seed in study.seeds:
                wanted = copy.deepcopy(start)
                for layer in (study.base, own):
                    _merge(wanted, layer)
                for key, value in zip(study.grid, values, strict=True):
                    _put(wanted, key, value, file)
                wanted |= {"seed": seed, "name": method}
                yield Job(method, point, seed, Settings.from_values(wanted, f"{file}, method {method!r}"))


def _shown(value: Any) -> str:
    """A value of the grid in a table.

    >>> _shown({"kind": "class", "clients": 10}), _shown(0.1)
    ('kind class, clients 10', '0.1')
    """
    return ", ".join(f"{key} {inner}" for key, inner in value.items()) if isinstance(value, Mapping) else str(value)


def _put(values: dict[str, Any], key: str, value: Any, file: Path) -> None:
    """Set `section.key` of nested settings."""
    *tables, last = key.split(".")
    for table in tables:
        values = values.setdefault(table, {})
        if not isinstance(values, dict):
            raise SettingsError(f"{file}: grid.{key!r}: {table!r} is not a table of settings. Name another key.")
    values[last] = copy.deepcopy(value)


def _merge(values: dict[str, Any], more: Mapping[str, Any]) -> None:
    """Put one tree of settings over another."""
    for key, value in more.items():
        if isinstance(value, Mapping) and isinstance(values.get(key), dict):
            _merge(values[key], value)
        else:
            values[key] = copy.deepcopy(value)


def home_of(settings: Settings, folder: Path) -> Path:
    """The folder of a run: named by its method and seed, found by its content.

    A run that an older version made is found although it lacks settings that are new: they have their defaults in it.
    """
    content = _content(settings)
    words = "".join(letter if letter.isalnum() else " " for letter in settings.name.lower()).split()
    name = f"{'-'.join(words)}-{settings.seed}-"
    home = folder / (name + hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:10])
    if home.is_dir():
        return home
    return next((other for other in sorted(folder.glob(f"{name}??????????")) if _kept_content(other) == content), home)


def _content(settings: Settings) -> dict[str, Any]:
    """What decides how a run ends."""
    values = settings.resolved()
    content = {key: value for key, value in values.items() if key != "name"}
    return content | {"run": {key: value for key, value in values["run"].items() if key not in NOT_CONTENT}}


def _kept_content(home: Path) -> dict[str, Any] | None:
    """The content of a run folder, completed by today's defaults; None where it cannot be read."""
    try:
        kept = RunFolder(home)
        return _content(Settings.from_values(kept.read_settings(), str(kept.settings)))
    except LeanfedError:
        return None


@dataclass(frozen=True)
class Carried:
    """The runs of a study that are there, and why others are not."""

    runs: Sequence[tuple[Job, Run]]
    failures: Sequence[str]


def carry_out_study(
    jobs: Sequence[Job],
    folder: Path,
    *,
    terms: Terms,
    on: str | None = None,
    tell: Callable[[], None] = lambda: None,
) -> Carried:
    """Carry out what is not there yet, and read everything back; a job that another study left is not done again."""
    homes = {home_of(job.settings, folder): job for job in jobs}
    work = [(_quiet(job.settings, terms.processes), home) for home, job in homes.items() if not _finished(home)]
    failures = place_of(on, terms).carry_out(work, tell, lambda path: None) if work else []
    there = [(job, home_of(job.settings, folder)) for job in jobs]
    return Carried([(job, read(home)) for job, home in there if _finished(home)], failures)


def missing(jobs: Sequence[Job], folder: Path) -> list[Job]:
    """The jobs without a finished run."""
    return [job for job in jobs if not _finished(home_of(job.settings, folder))]


def _finished(home: Path) -> bool:
    return (home / "summary.json").is_file()


def _quiet(settings: Settings, processes: int | None) -> Settings:
    """One thread a run where several go on at once; weights are not kept."""
    changes = {"keep_weights": False, **({"threads": 1} if processes != 1 else {})}
    return settings.model_copy(update={"run": settings.run.model_copy(update=changes)})


def seeds_of(text: str) -> list[int]:
    """Seeds from the command line: `0,1,2` or `0-9`.

    >>> seeds_of("0,3-5")
    [0, 3, 4, 5]
    """
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise SettingsError(f"--seeds {text!r} is no list of seeds. Give numbers, such as 0,1,2 or 0-9.")
        wanted = range(int(first), int(last if dash else first) + 1)
        if not wanted:
            raise SettingsError(f"--seeds {text!r}: {part.strip()} is empty. Give the smaller number first.")
        if len(wanted) > MOST_SEEDS:
            raise SettingsError(f"--seeds {text!r} is {len(wanted)} seeds. At most {MOST_SEEDS} go into one command.")
        found += wanted
    return list(dict.fromkeys(found))
