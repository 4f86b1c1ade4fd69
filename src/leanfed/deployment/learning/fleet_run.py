"""A run folder for a fleet: made, or opened again, then handed to the server."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from flwr.serverapp import Grid

from leanfed.deployment.learning.config import RunConfig, read_settings
from leanfed.deployment.learning.mail import Clock
from leanfed.deployment.learning.server import FleetServer
from leanfed.errors import SettingsError
from leanfed.files import owner_only, read_json, write_json
from leanfed.results import RunFolder, check_resumable, create_run_folder
from leanfed.rounds.probing import TheorySettings
from leanfed.runs.environment import environment
from leanfed.runs.settings import Settings

FLEET = "fleet.json"  # the run's name in node stores, and how the run was carried out


def play_run(grid: Grid, config: RunConfig, clock: Clock | None = None) -> None:
    """Play the run of a run-config, from the beginning or from its checkpoint."""
    torch.set_num_threads(1)  # results must not depend on the machine
    path = Path(config.run_folder)
    if not path.is_absolute():
        raise SettingsError(f"run-config: run-folder is {config.run_folder!r}, but must be an absolute path.")
    settings = read_settings(config.settings)
    folder = RunFolder(path) if config.resume else create_run_folder(path)
    with owner_only(), folder.hold():
        run = _reopen(folder, settings) if config.resume else _create(folder, settings, config)
        if folder.finished:
            folder.log("resume", finished=True)
            return
        server = FleetServer(grid, config, _as_carried_out(settings, folder), folder, run, clock=clock)
        server.play()


def _create(folder: RunFolder, settings: Settings, config: RunConfig) -> str:
    """Write what does not change; the run's name is drawn once."""
    run = os.urandom(16).hex()
    write_json(folder.environment, environment())
    write_json(folder.path / FLEET, {"run": run, "config": config.model_dump(exclude={"settings"})})
    write_json(folder.settings, settings.resolved())
    folder.log("start", run=run)
    for note in settings.notes():
        folder.log("note", text=note)
    return run


def _reopen(folder: RunFolder, settings: Settings) -> str:
    """The name of the run in a folder, if it is the same experiment."""
    check_resumable(folder)
    if Settings.from_values(folder.read_settings(), str(folder.settings)) != settings:
        raise SettingsError(f"{folder.path} holds a run with other settings. Resume it with its own settings.json.")
    folder.log("resume")
    return str(read_json(folder.path / FLEET)["run"])


def _as_carried_out(settings: Settings, folder: RunFolder) -> Settings:
    """Without what only a simulation can measure."""
    if not settings.theory.every:
        return settings
    folder.log("note", text="theory is measured in simulations only; this run leaves it out")
    return settings.model_copy(update={"theory": TheorySettings()})
