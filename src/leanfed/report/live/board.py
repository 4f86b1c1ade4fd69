"""The runs that the server shows: found by name, listed as rows, and read again only when they change."""

from __future__ import annotations

import time
from pathlib import Path
from threading import Lock
from typing import Any

from leanfed.errors import StorageError
from leanfed.report.data import report_data
from leanfed.report.live.processes import Processes, stoppable
from leanfed.report.live.progress import NOTHING_YET, data_version, find_run_folders, standing
from leanfed.results import RunFolder

MOST_KEPT = 8  # runs whose data is cached
TRIES = 5  # attempts to read a folder that changes meanwhile
FRESH_S = 1.0  # how long the list of folders and their status is cached


class Board:
    """All runs below one folder."""

    def __init__(self, root: Path, processes: Processes) -> None:
        if not root.is_dir():
            raise StorageError(f"{root} is not a folder. Name a run folder, or a folder of run folders.")
        self.root, self.processes = root, processes
        self._lock = Lock()
        self._folders: tuple[float, dict[str, RunFolder]] = (-1.0, {})
        self._data: dict[str, tuple[str, dict[str, Any]]] = {}  # name -> (version, data) of the runs viewed last
        self._making = Lock()
        self._rows: dict[str, tuple[float, dict[str, Any]]] = {}

    def folders(self) -> dict[str, RunFolder]:
        """The run folders by name."""
        with self._lock:
            if time.monotonic() - self._folders[0] > FRESH_S:
                self._folders = (time.monotonic(), find_run_folders(self.root))
            return self._folders[1]

    def find(self, name: str) -> RunFolder | None:
        """A run by its name; None for any other text."""
        return self.folders().get(name)

    def rows(self) -> list[dict[str, Any]]:
        """The status of every run."""
        return [self.row(name, folder) for name, folder in self.folders().items()]

    def row(self, name: str, folder: RunFolder, *, fresh: bool = False) -> dict[str, Any]:
        """The status of one run, and the actions available for it."""
        when, row = self._rows.get(name, (-1.0, {}))
        if fresh or not row or time.monotonic() - when > FRESH_S:
            row = self._read(name, folder)
            self._rows[name] = (time.monotonic(), row)
        return row

    def _read(self, name: str, folder: RunFolder) -> dict[str, Any]:
        row = standing(name, folder).to_json()
        ours = self.processes.starting(folder.path)
        if ours and row["state"] == "stopped":
            row["state"] = "starting"
        row["trouble"] = row["trouble"] or self.processes.failure(folder.path)
        row["can_stop"] = ours or (row["state"] == "running" and stoppable(folder.path))
        row["can_resume"] = row["state"] == "stopped"
        return row

    def data(self, name: str, folder: RunFolder) -> dict[str, Any] | None:
        """The data of a run's page; rebuilt only when its tables have changed, None before there are any."""
        with self._making:
            version, made = self._data.pop(name, ("", {}))
            if version != data_version(folder):
                version, made = _made(folder)
            self._data[name] = (version, made)
            while len(self._data) > MOST_KEPT:
                self._data.pop(next(iter(self._data)))
        return made or None


def _made(folder: RunFolder) -> tuple[str, dict[str, Any]]:
    """A run's version and data; read again if the run changed its files meanwhile and something was missing."""
    for _ in range(TRIES):
        version = data_version(folder)
        if version == NOTHING_YET:
            return version, {}
        made = report_data([folder.path])
        if not made["flaws"] or version == data_version(folder):
            break
    return version, made
