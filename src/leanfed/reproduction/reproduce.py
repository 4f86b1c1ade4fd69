"""Reproduce entries of the catalogue: carry out missing runs, judge the claims, write the results."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import leanfed.reproduction.paper  # noqa: F401  (fills the catalogue)
from leanfed.errors import LeanfedError
from leanfed.files import read_json
from leanfed.reproduction.catalogue import ENTRIES, Entry, Job, Outcome, Scale
from leanfed.reproduction.evidence import judge_again, write_evidence
from leanfed.reproduction.judging import OUTCOMES
from leanfed.reproduction.kept import PLACE, keep, unpack
from leanfed.reproduction.library import RunLibrary, content_key, job_digest, learning_key
from leanfed.reproduction.results_page import read_results, write_page
from leanfed.results import RunFolder
from leanfed.runs.estimate import estimate
from leanfed.runs.places import Terms, cores, place_of
from leanfed.runs.settings import Settings


@dataclass(frozen=True)
class Request:
    """What to reproduce, and how."""

    names: Sequence[str]
    runs: Path = Path("runs/reproduce")
    out: Path = Path("results")
    seeds: int | None = None
    quick: bool = False
    train: bool = True  # False: use only finished runs and those that can be recharged from them
    processes: int | None = None
    data_dir: Path | None = None
    on: str | None = None  # where runs are carried out; None: on this machine

    @property
    def folder(self) -> Path:
        """The results folder; quick results are kept apart from full ones."""
        return self.out / "quick" if self.quick else self.out

    @property
    def page(self) -> Path:
        """The generated page: next to a folder called results, inside any other."""
        beside = not self.quick and self.out.name == "results"
        return (self.out.parent if beside else self.folder) / "RESULTS.md"

    def entries(self) -> dict[str, tuple[Entry, Scale]]:
        """The requested entries; all if none is named."""
        chosen = {name: ENTRIES[name] for name in self.names or ENTRIES}
        return {name: (entry, entry.scale(self.seeds, self.quick)) for name, entry in chosen.items()}


@dataclass(frozen=True)
class Watch:
    """Callbacks that follow a reproduction."""

    begin: Callable[[int, int, float], None] = lambda runs, rounds, seconds: None
    tell: Callable[[], None] = lambda: None


SILENT = Watch()


def reproduce(request: Request, watch: Watch = SILENT) -> list[dict[str, Any]]:
    """Carry out missing runs, judge and write; returns the content of each results.json."""
    entries = request.entries()
    if not request.quick:
        unpack(request.out / PLACE, request.runs / "kept")
    library = RunLibrary(request.runs)
    jobs = {name: list(e.jobs(scale)) for name, (e, scale) in entries.items()}
    failures = _run_missing([job for some in jobs.values() for job in some], library, request, watch)
    written = []
    for name, (entry, scale) in entries.items():
        written.append(_judge(name, entry, scale, jobs[name], library, request, failures))
    write_page(request.folder, request.page)
    return written


def judge_again_all(request: Request) -> list[dict[str, Any]]:
    """Judge the numbers in existing results files by the current claims, without any runs."""
    there = [(name, e) for name, (e, _) in request.entries().items() if read_results(request.folder / name)]
    written = [judge_again(request.folder / name, entry) for name, entry in there]
    write_page(request.folder, request.page)
    return written


def missing(jobs: Sequence[Job], library: RunLibrary) -> list[Settings]:
    """Runs that no finished run provides, by turn; of those with one content key, that which contains the others."""
    wanted: dict[str, Settings] = {}
    turns: dict[str, int] = {}
    for job in jobs:
        if library.find(job.settings, clients=job.clients) is None:
            key = content_key(job.settings)
            wanted[key] = max(wanted.get(key, job.settings), job.settings, key=_demand)
            turns[key] = min(turns.get(key, job.turn), job.turn)
    longest_first = sorted(wanted, key=lambda key: _demand(wanted[key]), reverse=True)
    return [wanted[key] for key in sorted(longest_first, key=turns.__getitem__)]


def _demand(settings: Settings) -> tuple[float, int, int]:
    """The length of a run, for comparison with others of the same content."""
    return (settings.run.stop_at_accuracy or 2.0, settings.rounds, -settings.evaluation.every)


def _run_missing(jobs: Sequence[Job], library: RunLibrary, request: Request, watch: Watch) -> list[str]:
    """Carry out runs until every job has one; returns the failures."""
    failures: list[str] = []
    tried: set[str] = set()
    terms = Terms(request.processes or (cores() if request.on is None else None), request.data_dir)
    while True:
        wanted = [one for one in missing(jobs, library) if not library.charge(one, request.data_dir)]
        left = _one_of_each_learning(one for one in wanted if job_digest(one) not in tried)
        if not left or not request.train:
            break
        tried |= {job_digest(settings) for settings in left}
        watch.begin(
            len(left),
            sum(settings.rounds for settings in left),
            _seconds(left, request) / (terms.processes or len(left)),
        )
        work = [(settings, library.home_of(settings)) for settings in left]
        failures += place_of(request.on, terms).carry_out(work, watch.tell, partial(_receive, library, request))
    return failures


def _receive(library: RunLibrary, request: Request, path: Path) -> None:
    """A run has ended: it can be used, and is kept, whatever becomes of those after it."""
    folder = RunFolder(path)
    library.add(folder)
    if folder.finished and not request.quick:
        keep(folder, request.out / PLACE)


def _one_of_each_learning(wanted: Iterable[Settings]) -> list[Settings]:
    """The first of the runs that differ only in their costs; the others are recharged from it."""
    chosen: dict[str, Settings] = {}
    for settings in wanted:
        chosen.setdefault(learning_key(settings) or content_key(settings), settings)
    return list(chosen.values())


def _seconds(left: Sequence[Settings], request: Request) -> float:
    """Estimated seconds of the missing runs one after another; one of each kind is timed for a round."""
    rates: dict[tuple[str, str, int], float] = {}
    total = 0.0
    for settings in left:
        kind = (settings.task.dataset, settings.task.model, settings.evaluation.every)
        if kind not in rates:
            try:
                tried = estimate(settings, None if request.data_dir is None else str(request.data_dir))
            except LeanfedError:  # reported when the run itself fails
                continue
            rates[kind] = tried["estimated_seconds"] / settings.rounds
        total += rates[kind] * settings.rounds
    return total


def _judge(
    name: str,
    entry: Entry,
    scale: Scale,
    jobs: Sequence[Job],
    library: RunLibrary,
    request: Request,
    failures: Sequence[str],
) -> dict[str, Any]:
    """Measure, judge and write one entry."""
    began = time.perf_counter()
    found = [(job, library.find(job.settings, clients=job.clients)) for job in jobs]
    outcomes = [Outcome(job, run) for job, run in found if run is not None]
    measured = entry.measure(outcomes, scale)
    if not scale.quick:
        for outcome in outcomes:
            keep(outcome.run.folder, request.out / PLACE)
    runs = {outcome.run.folder.path: outcome.run.core_seconds for outcome in outcomes}
    spent = sum(runs.values()) + (time.perf_counter() - began)
    about = {
        "version": "quick" if scale.quick else "full",
        "seeds": list(scale.seeds),
        "runs": len(jobs),
        "runs_missing": len(found) - len(outcomes),
        "failures": [text for text in failures if any(text.startswith(f"{job.settings.name}:") for job in jobs)],
        "core_minutes": round(spent / 60, 2),
        "made_by": _made_by(outcomes),
    }
    return write_evidence(request.folder / name, name, entry, measured, about=about)


def _made_by(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Versions and commits that the runs were made with, and a digest of all their settings."""
    folders = {outcome.run.folder.path: outcome.run.folder for outcome in outcomes}
    made = [read_json(folder.environment) for folder in folders.values() if folder.environment.is_file()]
    digests = sorted(job_digest(outcome.job.settings) for outcome in outcomes)
    return {
        "leanfed": sorted({one["versions"]["leanfed"] for one in made}),
        "commits": sorted({one["commit"] for one in made if one["commit"]}),
        "settings_sha256": hashlib.sha256("".join(digests).encode()).hexdigest(),
    }


def listed(out: Path) -> list[dict[str, Any]]:
    """Every entry with the runs it needs and its known results."""
    rows = []
    for name in ENTRIES:
        entry = ENTRIES[name]
        known = read_results(out / name)
        verdicts = [claim["verdict"] for claim in known["claims"]] if known else []
        counts: dict[str, int] = {word: verdicts.count(word) for word in OUTCOMES}
        rows.append(
            {
                "name": name,
                "title": entry.title,
                "place": entry.place,
                "runs": len(entry.jobs(entry.scale(None, False))),
                **counts,
                "claims": len(entry.claims),
                "core_minutes": known["core_minutes"] if known else None,
            }
        )
    return rows
