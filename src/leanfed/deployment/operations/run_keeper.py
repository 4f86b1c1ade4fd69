"""Which run a fleet is on, and its continuation by the server itself after whatever ended it early."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leanfed import __version__
from leanfed.deployment.operations.backoff import Backoff
from leanfed.deployment.operations.control import Control, ServerUnreachableError
from leanfed.deployment.operations.flower_app import archive
from leanfed.deployment.operations.folder import FleetFolder
from leanfed.deployment.operations.release import Release
from leanfed.errors import InputError, LeanfedError
from leanfed.files import read_json, write_json
from leanfed.results import RunFolder

LOOK_S = 5.0
ONCE = ("roll-back", "release")  # keys that are not repeated when the server goes on with a run
LIVE = ("pending", "starting", "running")
Value = bool | int | float | str


@dataclass(frozen=True)
class CurrentRun:
    """The run that was submitted last, and whether it is to be brought to its end."""

    run_id: int
    folder: str
    changes: Mapping[str, Value]  # of the run-config
    wanted: bool = True  # False: it has ended, or the owner stopped it

    @classmethod
    def load(cls, fleet: FleetFolder) -> CurrentRun | None:
        """The run in server/run.json."""
        path = fleet.server / "run.json"
        return cls(**read_json(path)) if path.is_file() else None

    def save(self, fleet: FleetFolder) -> None:
        """Write server/run.json."""
        write_json(fleet.server / "run.json", {**self.__dict__, "changes": dict(self.changes)})


def run_values(
    fleet: FleetFolder, settings: str, folder: Path, *, resume: bool, changes: Mapping[str, Value]
) -> dict[str, Value]:
    """The run-config of a run in this fleet."""
    given: dict[str, Value] = {
        "settings": settings,
        "run-folder": str(folder),
        "resume": resume,
        "audit": str(fleet.audit.path),
    }
    if clash := sorted({*given, "bindings"} & set(changes)):
        raise InputError(f"{clash[0]} is set by `deploy run` itself. Leave it out of --set.")
    if not running_server(fleet)["insecure"]:
        given["bindings"] = str(fleet.bindings)
    return given | dict(changes)


def running_server(fleet: FleetFolder) -> dict[str, Any]:
    """What the server that runs in this folder tells of itself; refused where none does."""
    if not fleet.running.exists():
        raise InputError(f"No server runs in {fleet.path}. Start it with: leanfed deploy server {fleet.path}")
    found: dict[str, Any] = read_json(fleet.running)
    return found


def start_run(control: Control, fleet: FleetFolder, config: Mapping[str, Value], changes: Mapping[str, Value]) -> int:
    """Submit a run and note it as the fleet's current one; returns its number."""
    run_id = control.start(_signed_app(fleet), config)
    lasting = {key: value for key, value in changes.items() if key not in ONCE}
    CurrentRun(run_id, str(config["run-folder"]), lasting).save(fleet)
    fleet.audit.write("run submitted", run_id=run_id, folder=config["run-folder"], resume=config["resume"])
    return run_id


def resumed_values(fleet: FleetFolder, folder: Path, changes: Mapping[str, Value]) -> dict[str, Value]:
    """The run-config that goes on with the run in a folder."""
    text = json.dumps(RunFolder(folder).read_settings())
    return run_values(fleet, text, folder.resolve(), resume=True, changes=changes)


class RunKeeper:
    """Called once a second by the server: goes on with the current run where it ended before its last round."""

    def __init__(self, fleet: FleetFolder, control: Control, say: Callable[[str], None]) -> None:
        self.fleet = fleet
        self.control = control
        self.say = say
        self.backoff = Backoff(first_s=2.0, most_s=300.0, calm_s=600.0)
        self._next = 0.0
        before = CurrentRun.load(fleet)
        self._before = None if before is None else before.run_id  # its process went with the last server

    def look(self) -> None:
        """Look at the current run, every few seconds."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + LOOK_S
        current = CurrentRun.load(self.fleet)
        if current is None or not current.wanted:
            return
        try:
            self._look(current)
        except ServerUnreachableError:
            return
        except LeanfedError as error:
            CurrentRun(**{**current.__dict__, "wanted": False}).save(self.fleet)
            self._tell("run given up", current, why=str(error))

    def _look(self, current: CurrentRun) -> None:
        folder = RunFolder(Path(current.folder))
        if folder.finished:
            CurrentRun(**{**current.__dict__, "wanted": False}).save(self.fleet)
            return
        found = self.control.runs(current.run_id)
        state = found[0] if found else None
        live = state is not None and state.status in LIVE
        orphan = live and current.run_id == self._before
        if live and not orphan:
            return
        if state is not None and state.outcome == "stopped":
            CurrentRun(**{**current.__dict__, "wanted": False}).save(self.fleet)
            return
        if not folder.settings.is_file():
            raise LeanfedError(f"it ended before it had begun. {state.details if state else ''}")
        if orphan:
            self.control.stop(current.run_id)
        self._resume(current, state.details if state is not None else "")

    def _resume(self, current: CurrentRun, details: str) -> None:
        values = resumed_values(self.fleet, Path(current.folder), current.changes)
        run_id = start_run(self.control, self.fleet, values, current.changes)
        pause = self.backoff.next()
        self._next = time.monotonic() + max(pause, LOOK_S)
        self._tell("run resumed", current, new=run_id, why=details or "the server was started again")

    def _tell(self, event: str, current: CurrentRun, **facts: Any) -> None:
        self.fleet.audit.write(event, run_id=current.run_id, folder=current.folder, **facts)
        self.say(f"{event}: {current.folder} ({facts['why']})")


def _signed_app(fleet: FleetFolder) -> bytes:
    """The app that nodes take; refused where this installation has another than the one that was signed."""
    app, release = archive(), Release.load(fleet.server)
    if release is None or hashlib.sha256(app).hexdigest() != release.app:
        signed = "none" if release is None else f"that of version {release.version}"
        raise InputError(
            f"Nodes run only the app that the fleet's owner has signed ({signed}), and this is version {__version__}. "
            f"Sign this one with: leanfed deploy keys {fleet.path} --roll-out"
        )
    return app
