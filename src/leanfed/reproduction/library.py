"""Finished runs, found by their settings: runs whose settings cannot give different results have the same key.

The key of a run is its resolved settings without those that change nothing (name, threads, checkpoints) and those
that only say when it ends or is evaluated (rounds, evaluation, the accuracy at which it stops). Rounds do not depend on
later ones, so a longer run contains every shorter one of the same key; if plans depend on the length of the run, the
number of rounds is part of the key.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from leanfed.errors import InputError, LeanfedError
from leanfed.files import read_json
from leanfed.results import RunFolder
from leanfed.runs.recost import learning_part, recost
from leanfed.runs.settings import Settings

ENDS = ("name", "rounds", "evaluation")
# Keys of [allocation] that matter to a method with its own rates, by who is waited for.
OWN = {
    "all": ("rule", "wait", "bandwidth"),
    "fastest": ("rule", "wait", "bandwidth", "fastest"),
    "turns": ("rule", "wait", "bandwidth", "fastest", "within_rounds"),
    "pace": ("rule", "wait", "deadline_s", "energy_budget_j", "within_rounds", "settle"),
}

TUNED = ("head_steps_max", "first_within")  # that only the tuned form reads


def content_key(settings: Settings) -> str:
    """A digest of everything that can change the rounds of a run."""
    return _digest(_content(settings.resolved()))


def job_digest(settings: Settings) -> str:
    """A digest of the run itself: its content, where it ends and when it is evaluated."""
    ends = {name: settings.resolved()[name] for name in ENDS[1:]}
    limits = {"limits": settings.run.limits()} if settings.run.limits() else {}
    return _digest({**_content(settings.resolved()), **ends, **limits, "stop": settings.run.stop_at_accuracy})


def learning_key(settings: Settings) -> str | None:
    """A digest of everything that can change what is learned; None if rates depend on the radio."""
    free = settings.allocation.rule == "own" and settings.allocation.wait == "all"
    return _digest(learning_part(_content(settings.resolved()))) if free else None


def _content(values: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in values.items() if name not in ENDS}
    allocation = _relevant(values["allocation"])
    horizon = values["rounds"] if _looks_ahead(allocation) else None
    run = {"engine": values["run"]["engine"]}
    if (precision := values["run"].get("precision", "float32")) != "float32":  # keys from before there was another
        run["precision"] = precision
    return {**kept, "allocation": allocation, "run": run, "horizon": horizon}


def _relevant(allocation: Mapping[str, Any]) -> dict[str, Any]:
    """The part of [allocation] that its rule and form read."""
    if allocation["rule"] == "joint":
        tuned = allocation.get("form") == "tuned"
        return {k: v for k, v in allocation.items() if tuned or k not in TUNED}
    read = OWN[allocation.get("wait", "all")]
    return {k: v for k, v in allocation.items() if k in read}


def _looks_ahead(allocation: Mapping[str, Any]) -> bool:
    """Whether plans depend on the number of rounds, so that a longer run has other rounds."""
    return bool(allocation.get("settle")) or allocation.get("energy_total_j") is not None


def _digest(values: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def kept_settings(folder: RunFolder) -> Settings | None:
    """The settings of a run folder, completed by the current defaults; None if they are no longer valid.

    The fast form and FedMask gain settings over time, and a run made before a setting existed did not follow its
    default, so their settings are not completed.
    """
    try:
        values = folder.read_settings()
        if two_currencies(values):
            return None
        felt = _relevant(values["allocation"])
        found = Settings.from_values({**values, "allocation": felt}, str(folder.settings))
    except (LeanfedError, KeyError):
        return None
    today = found.resolved()
    fast = felt["rule"] == "joint" and felt["form"] == "fast"
    if fast and _relevant(today["allocation"]).keys() != felt.keys():
        return None
    if (fast or values["algorithm"]["name"] == "fedmask") and today["algorithm"].keys() != values["algorithm"].keys():
        return None
    return found


def two_currencies(values: Mapping[str, Any]) -> bool:
    """Whether further head steps were charged by operations and pruning by weights, as version 0.1.0 did by default."""
    steps = values["algorithm"].get("head_steps", 1)
    planned = values["allocation"]["rule"] == "joint" and values["allocation"].get("form") == "fast"  # chooses them
    return bool(values["radio"].get("head_step") == "operations" and (steps != 1 or planned))


@dataclass(frozen=True)
class FinishedRun:
    """A finished run, cut to what it would have been under the requested settings."""

    settings: Settings
    folder: RunFolder
    rounds: pl.DataFrame

    @property
    def core_seconds(self) -> float:
        """Core seconds that the used rounds took when they were computed."""
        spent = {
            event["round"]: event["seconds"]["total"]
            for event in self.folder.read_events()
            if event["event"] == "round" and event["round"] < self.rounds.height
        }
        return float(sum(spent.values()))


@dataclass
class RunLibrary:
    """All finished runs below a folder, at any depth."""

    folder: Path
    _known: dict[str, list[RunFolder]] = field(default_factory=dict)
    _learned: dict[str, list[RunFolder]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for path in sorted(self.folder.rglob("settings.json")) if self.folder.is_dir() else ():
            self.add(RunFolder(path.parent))

    def add(self, folder: RunFolder) -> None:
        """Add a run, if it is finished."""
        settings = kept_settings(folder) if folder.finished else None
        if settings is not None:
            self._known.setdefault(content_key(settings), []).append(folder)
            if (learned := learning_key(settings)) is not None:
                self._learned.setdefault(learned, []).append(folder)

    def find(self, wanted: Settings, *, clients: bool = False) -> FinishedRun | None:
        """A finished run that contains the wanted one, cut to its rounds and evaluations.

        With `clients` it has the rows of single clients, too.
        """
        for folder in self._known.get(content_key(wanted), ()):
            rounds = _as_wanted(folder, wanted) if has_clients(folder) or not clients else None
            if rounds is not None:
                return FinishedRun(wanted, folder, rounds)
        return None

    def charge(self, wanted: Settings, data_dir: Path | None) -> bool:
        """Make a run from one that learned the same on another radio, with new costs; returns whether there was one.

        Where a run ends by what it spends is judged by the new costs: of the other run all rounds are needed. One
        without rows of its clients serves if they did what was planned.
        """
        unlimited = {"stop_at_seconds": None, "stop_at_joules": None, "stop_at_bits": None}
        to_the_end = wanted.model_copy(update={"run": wanted.run.model_copy(update=unlimited)})
        for folder in sorted(self._learned.get(learning_key(wanted) or "", ()), key=has_clients, reverse=True):
            if _as_wanted(folder, to_the_end) is not None:
                kept = kept_settings(folder)
                ends = {name: getattr(kept, name) for name in (*ENDS[1:], "run")}
                home = self.home_of(wanted)
                shutil.rmtree(home, ignore_errors=True)  # left by an interrupted attempt
                try:
                    recost(folder.path, wanted.model_copy(update=ends), home, data_dir=data_dir)
                except InputError:
                    if has_clients(folder):
                        raise
                    continue
                self.add(RunFolder(home))
                return True
        return False

    def home_of(self, settings: Settings) -> Path:
        """The folder for a run of these settings."""
        return self.folder / run_name(settings)


def run_name(settings: Settings) -> str:
    """What a run's folder or file is called: the words of its name, and a digest of what it is."""
    words = "".join(letter if letter.isalnum() else " " for letter in settings.name.lower()).split()
    return f"{'-'.join(words)}-{job_digest(settings)[:10]}"


def has_clients(folder: RunFolder) -> bool:
    """Whether a finished run has the rows of single clients; kept ones (`kept.py`) do not."""
    return folder.table("clients").is_file()


def _as_wanted(folder: RunFolder, wanted: Settings) -> pl.DataFrame | None:
    """The rounds of a run at the wanted evaluations up to the wanted end, or None if it does not cover them."""
    kept = read_json(folder.settings)["evaluation"]
    every, rounds = wanted.evaluation.every, folder.read_table("rounds")
    tested = {"clients": None, "renew_statistics": 0, "tune_steps": None, "tune_rate": None}
    if any(kept.get(name, old) != getattr(wanted.evaluation, name) for name, old in tested.items()):
        return None  # other models were tested, or those of others
    if every % kept["every"] or wanted.evaluation.per_client > kept["per_client"]:
        return None
    seen = ((pl.col("round") + 1) % every == 0) | (pl.col("round") + 1 == wanted.rounds)
    measured = [name for name in ("accuracy", "loss", "worst_decile", "f1") if name in rounds.columns]
    tests = [pl.when(seen).then(pl.col(name)).alias(name) for name in measured]
    rounds = rounds.filter(pl.col("round") < wanted.rounds).with_columns(tests)
    ends = [pl.col(column).cum_sum() >= limit for column, limit in wanted.run.limits().items()]
    if wanted.run.stop_at_accuracy is not None:
        ends.append(pl.col("accuracy") >= wanted.run.stop_at_accuracy)
    ended = rounds.filter(pl.any_horizontal(ends))["round"] if ends else pl.Series([])
    if len(ended):
        return rounds.filter(pl.col("round") <= ended[0])
    whole = rounds.height == wanted.rounds and rounds["accuracy"][-1] is not None
    return rounds if whole else None
