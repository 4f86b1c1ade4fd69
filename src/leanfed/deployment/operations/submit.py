"""`deploy run`: submit the app to a running fleet, follow it to its end, or go on with a run that stopped."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr.cli.build import build_fab_from_disk

from leanfed.deployment.operations.control import Control, RunState
from leanfed.deployment.operations.flower_app import write_app
from leanfed.deployment.operations.folder import FleetFolder
from leanfed.deployment.operations.launch import connect
from leanfed.errors import InputError, LeanfedError
from leanfed.files import read_json
from leanfed.results import RunFolder
from leanfed.runs.settings import Settings

Value = bool | int | float | str


class RunFailedError(LeanfedError):
    """The run ended before its last round."""


@dataclass(frozen=True)
class Submitted:
    """A run that SuperLink has taken."""

    run_id: int
    folder: Path


def open_control(fleet: FleetFolder) -> Control:
    """The control API of the server that runs in this folder."""
    if not fleet.running.exists():
        raise InputError(f"No server runs in {fleet.path}. Start it with: leanfed deploy server {fleet.path}")
    running = read_json(fleet.running)
    return connect(fleet, insecure=bool(running["insecure"]), port=int(running["control_port"]))


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
    if clash := sorted(set(given) & set(changes)):
        raise InputError(f"{clash[0]} is set by `deploy run` itself. Leave it out of --set.")
    return given | dict(changes)


def submit(fleet: FleetFolder, settings: Settings, folder: Path, changes: Mapping[str, Value]) -> Submitted:
    """Start a new run; its folder must be new."""
    if folder.exists() and any(folder.iterdir()):
        raise InputError(f"{folder} holds something already. Go on with it by --resume, or choose another --out.")
    text = json.dumps(settings.resolved())
    return _start(fleet, run_values(fleet, text, folder.resolve(), resume=False, changes=changes), folder.resolve())


def resume(fleet: FleetFolder, folder: Path, changes: Mapping[str, Value]) -> Submitted:
    """Go on with the run in a folder, after whatever stopped it."""
    text = json.dumps(RunFolder(folder).read_settings())
    return _start(fleet, run_values(fleet, text, folder.resolve(), resume=True, changes=changes), folder.resolve())


def _start(fleet: FleetFolder, config: Mapping[str, Value], folder: Path) -> Submitted:
    with open_control(fleet) as control:
        fab = build_fab_from_disk(write_app(fleet.server / "leanfed-app"))
        run_id = control.start(fab, config)
    fleet.audit.write("run submitted", run_id=run_id, folder=str(folder), resume=config["resume"])
    return Submitted(run_id, folder)


def follow(fleet: FleetFolder, submitted: Submitted, show: Callable[[str], None]) -> None:
    """Show the run's log until it ends; Ctrl-C stops the run, whose checkpoint stays."""
    with open_control(fleet) as control:
        try:
            for text in control.logs(submitted.run_id):
                show(text)
        except KeyboardInterrupt:
            control.stop(submitted.run_id)
            fleet.audit.write("run stopped", run_id=submitted.run_id)
            raise RunFailedError(f"Stopped. {_way_on(fleet, submitted.folder)}") from None
        (state,) = control.runs(submitted.run_id)
    _check(fleet, submitted, state)


def _check(fleet: FleetFolder, submitted: Submitted, state: RunState) -> None:
    fleet.audit.write("run ended", run_id=state.run_id, outcome=state.outcome, details=state.details or None)
    if state.outcome != "completed":
        raise RunFailedError(
            f"The run ended as {state.outcome or state.status!r}. {state.details} {_way_on(fleet, submitted.folder)}"
        )


def _way_on(fleet: FleetFolder, folder: Path) -> str:
    return f"Go on with: leanfed deploy run {fleet.path} --resume {folder}"


def parse_changes(texts: list[str]) -> dict[str, Value]:
    """Run-config keys from `key=value` texts; values as in JSON, else as they stand."""
    changes: dict[str, Value] = {}
    for text in texts:
        key, equals, raw = text.partition("=")
        if not equals or not key:
            raise InputError(f"{text!r} is no key=value. Write for example --set deadline-s=60.")
        changes[key] = _value(raw)
    return changes


def _value(raw: str) -> Value:
    try:
        value: Any = json.loads(raw)
    except json.JSONDecodeError:
        return raw
    return value if isinstance(value, bool | int | float | str) else raw
