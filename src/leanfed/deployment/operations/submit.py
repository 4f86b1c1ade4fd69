"""`deploy run`: submit the app to a running fleet, follow it to its end, or go on with a run that stopped."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from leanfed.deployment.operations.control import Control, RunState
from leanfed.deployment.operations.folder import FleetFolder
from leanfed.deployment.operations.launch import open_control
from leanfed.deployment.operations.run_keeper import (
    LIVE,
    CurrentRun,
    Value,
    resumed_values,
    run_values,
    start_run,
)
from leanfed.errors import InputError, LeanfedError
from leanfed.files import read_json
from leanfed.runs.cuts import settled
from leanfed.runs.settings import Settings

TAKE_OVER_S = 30.0  # in which the server goes on with a run that failed


class RunFailedError(LeanfedError):
    """The run ended before its last round."""


@dataclass(frozen=True)
class Submitted:
    """A run that SuperLink has taken."""

    run_id: int
    folder: Path


def submit(fleet: FleetFolder, settings: Settings, folder: Path, changes: Mapping[str, Value]) -> Submitted:
    """Start a new run; its folder must be new. A cut that is left to the program is chosen here, for all nodes."""
    if folder.exists() and any(folder.iterdir()):
        raise InputError(f"{folder} holds something already. Go on with it by --resume, or choose another --out.")
    text = json.dumps(settled(settings)[0].resolved())
    values = run_values(fleet, text, folder.resolve(), resume=False, changes=changes)
    with open_control(fleet) as control:
        return Submitted(start_run(control, fleet, values, changes), folder.resolve())


def resume(fleet: FleetFolder, folder: Path, changes: Mapping[str, Value]) -> Submitted:
    """Go on with the run in a folder, after whatever stopped it; where the server has done so, that is it."""
    folder, current = folder.resolve(), CurrentRun.load(fleet)
    with open_control(fleet) as control:
        if current is not None and current.wanted and current.folder == str(folder):
            found = control.runs(current.run_id)
            if found and found[0].status in LIVE:
                control.stop(current.run_id)  # it may be the one whose process is gone; its checkpoint stays
        values = resumed_values(fleet, folder, changes)
        return Submitted(start_run(control, fleet, values, changes), folder)


def follow(fleet: FleetFolder, submitted: Submitted, show: Callable[[str], None]) -> None:
    """Show the run's log until it ends; Ctrl-C stops the run, whose checkpoint stays."""
    with open_control(fleet) as control:
        while True:
            try:
                for text in control.logs(submitted.run_id):
                    show(text)
                (state,) = control.runs(submitted.run_id)
                later = _taken_over(fleet, submitted) if state.outcome == "failed" else None
            except KeyboardInterrupt:
                _stop(fleet, control, submitted)
                raise RunFailedError(f"Stopped. {_way_on(fleet, submitted.folder)}") from None
            fleet.audit.write("run ended", run_id=state.run_id, outcome=state.outcome, details=state.details or None)
            if later is None:
                return _check(fleet, submitted, state)
            show(f"The run ended ({state.details or state.outcome}); the server goes on with it.\n")
            submitted = later


def _taken_over(fleet: FleetFolder, submitted: Submitted) -> Submitted | None:
    """The run by which the server goes on with this one, if it does so soon."""
    if not read_json(fleet.running).get("keep_runs"):
        return None
    end = time.monotonic() + TAKE_OVER_S
    while time.monotonic() < end:
        current = CurrentRun.load(fleet)
        if current is None or not current.wanted or current.folder != str(submitted.folder):
            return None
        if current.run_id != submitted.run_id:
            return Submitted(current.run_id, submitted.folder)
        time.sleep(0.5)
    return None


def _stop(fleet: FleetFolder, control: Control, submitted: Submitted) -> None:
    current = CurrentRun.load(fleet)
    if current is not None and current.folder == str(submitted.folder):
        replace(current, wanted=False).save(fleet)
    control.stop(submitted.run_id)
    fleet.audit.write("run stopped", run_id=submitted.run_id)


def _check(fleet: FleetFolder, submitted: Submitted, state: RunState) -> None:
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
