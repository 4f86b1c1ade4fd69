"""The status of the runs below a folder, read from the end of their event logs."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from leanfed.errors import LeanfedError
from leanfed.files import read_json
from leanfed.locks import lock_owner
from leanfed.report.groups import dataset_name, method_name
from leanfed.results import RunFolder

DEPTH = 4  # levels of subfolders that are searched for runs
TAIL_BYTES = 65_536  # read from the end of the event log: a few hundred rounds
NOTHING_YET = "0-0"  # the version of a run without tables
RECENT = 20  # rounds over which the speed is averaged


def find_run_folders(root: Path) -> dict[str, RunFolder]:
    """The runs at or below a folder by name, their path relative to it; links that lead out of it are not followed.

    A name in a request is looked up in this result and never joined to a path.
    """
    if RunFolder(root).settings.is_file():
        return {root.resolve().name: RunFolder(root)}
    found = {}
    for current, folders, files in os.walk(root, followlinks=False):
        here = Path(current)
        below = here.relative_to(root)
        if "settings.json" in files and RunFolder(here).settings.is_file():  # a pipe would be waited for
            found[below.as_posix()] = RunFolder(here)
        if "settings.json" in files or len(below.parts) >= DEPTH:
            folders.clear()
        folders[:] = sorted(name for name in folders if not name.startswith("."))
    return dict(sorted(found.items()))


@dataclass(frozen=True)
class Standing:
    """The status of a run; `trouble` says what could not be read."""

    name: str
    title: str
    method: str
    data: str
    state: str  # running, stopped, finished or unreadable
    round: int
    rounds: int
    accuracy: float | None
    seconds_per_round: float | None
    version: str  # changes when the run's tables do
    trouble: str | None = None
    seed: int | None = None

    def to_json(self) -> dict[str, Any]:
        """The status as plain JSON values."""
        left = None
        if self.state == "running" and self.seconds_per_round is not None:
            left = self.seconds_per_round * (self.rounds - self.round)
        return {**vars(self), "seconds_left": left}


def standing(name: str, folder: RunFolder) -> Standing:
    """Read the status of a run; for a damaged folder it says so."""
    version = data_version(folder)
    try:
        settings = folder.read_settings()
        title, rounds = str(settings["name"]), int(settings["rounds"])
        data, plans = dataset_name(settings["task"]["dataset"]) or "", settings.get("allocation", {})
        method = method_name(str(settings["algorithm"]["name"]), plans.get("rule"), plans.get("form"))
        seed = int(settings.get("seed", 0))
        done, accuracy, speed = _from_events(folder)
        if folder.finished:
            summary = read_json(folder.summary)
            done, accuracy = int(summary["rounds"]), _number(summary.get("accuracy"))
    except LeanfedError as error:
        return _unreadable(name, version, str(error))
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        return _unreadable(
            name, version, f"{folder.settings.name} or {folder.summary.name}: {error!r} is not as expected"
        )
    state = "running" if lock_owner(folder.path) else "finished" if folder.finished else "stopped"
    return Standing(name, title, method, data, state, done, rounds, accuracy, speed, version, seed=seed)


def data_version(folder: RunFolder) -> str:
    """A string that changes whenever the tables of a run do."""
    return "-".join(_changed(path) for path in (folder.checkpoint / "manifest.json", folder.summary))


def _changed(path: Path) -> str:
    try:
        return f"{path.stat().st_mtime_ns:x}"
    except OSError:
        return "0"


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _unreadable(name: str, version: str, trouble: str) -> Standing:
    return Standing(name, name, "", "", "unreadable", 0, 0, None, None, version, trouble)


def _from_events(folder: RunFolder) -> tuple[int, float | None, float | None]:
    """(rounds done, last accuracy, seconds per round), from the end of the log."""
    rounds = [event for event in _last_events(folder.events) if event.get("event") == "round"]
    if not rounds:
        return 0, None, None
    accuracies = [event["accuracy"] for event in rounds if event.get("accuracy") is not None]
    totals = [event["seconds"]["total"] for event in rounds[-RECENT:]]
    return int(rounds[-1]["round"]) + 1, accuracies[-1] if accuracies else None, median(totals)


def _last_events(path: Path) -> Iterator[dict[str, Any]]:
    """The events in the last TAIL_BYTES of a log; incomplete lines at either end are skipped."""
    if not path.is_file():  # a pipe would be waited for
        return
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            lines = file.read().split(b"\n")
    except OSError:
        return
    for line in lines:
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(event, dict):
            yield event
