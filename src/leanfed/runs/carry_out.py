"""A run from its settings to its last file, and the same after a stop."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from leanfed.errors import SettingsError
from leanfed.files import read_json, write_json, write_text
from leanfed.results import RunFolder, check_free, check_resumable, new_run_folder
from leanfed.rounds.checkpoint import Checkpoints
from leanfed.rounds.loop import Progress, RoundRecord
from leanfed.runs.describe import describe_world, write_devices
from leanfed.runs.environment import environment
from leanfed.runs.finish import finish_folder
from leanfed.runs.outcome import Run
from leanfed.runs.play import Notify, play_in_folder, play_in_memory
from leanfed.runs.prepare import Experiment, prepare
from leanfed.runs.read import read
from leanfed.runs.settings import Settings
from leanfed.runs.trackers import check_trackers, tracking
from leanfed.runs.watching import Listener, round_bar, somebody_looks


def run(
    settings: Settings,
    out: str | Path | None = None,
    *,
    data_dir: str | Path | None = None,
    given: str | None = None,
    listen: Listener | None = None,
    notify: Notify = warnings.warn,
    progress: bool | None = None,
) -> Run:
    """Train from the first round; with `out` everything is kept in a run folder that can be resumed.

    `listen` is called after every round. `notify` hears what a user should know, for example that a tracker was lost.
    `progress` shows a bar: by default where somebody looks (a terminal, a notebook) and nothing listens; False: never.

    >>> import leanfed
    >>> leanfed.run(leanfed.Settings(rounds=2)).rounds.height  # doctest: +SKIP
    2
    """
    if not isinstance(settings, Settings):
        raise SettingsError(
            f"leanfed.run takes leanfed.Settings, not a {type(settings).__name__}. Write Settings.from_values(...) for "
            "tables of settings, or Settings.from_toml(...) for a file."
        )
    if out is None:
        experiment = prepare(settings, data_dir)
        with heard(experiment.given, listen, progress, notify) as hear:
            return play_in_memory(experiment, hear)
    check_free(Path(out))
    check_trackers(settings.run.track)
    experiment = prepare(settings, data_dir, scratch=Path(out))
    with new_run_folder(Path(out)) as folder, heard(experiment.given, listen, progress, notify, folder) as hear:
        begin(folder, experiment, given)
        return finished(experiment, folder, *play_in_folder(experiment, folder, hear))


@contextmanager
def heard(
    settings: Settings,
    listen: Listener | None,
    progress: bool | None,
    notify: Notify,
    folder: RunFolder | None = None,
    *,
    resumed: bool = False,
) -> Iterator[Listener]:
    """What is called after every round: the trackers of the settings, and a bar, the listener, or both.

    A tracker that is lost is noted in the folder, and `notify` hears of it.
    """

    def tell(text: str) -> None:
        if folder is not None:
            folder.log("note", text=text)
        notify(text)

    show = listen is None and somebody_looks() if progress is None else progress
    bars = round_bar(settings.name, settings.rounds) if show else nullcontext(_ignore)
    place = None if folder is None else folder.path
    with tracking(settings, place, resumed, tell) as track, bars as bar:

        def hear(record: RoundRecord) -> None:
            track(record)
            bar(record)
            if listen is not None:
                listen(record)

        yield hear


def _ignore(record: RoundRecord) -> None:
    pass


def describe(folder: RunFolder, experiment: Experiment) -> None:
    """Write what a folder says of its run before the first round.

    The settings come first: from then on a run that is killed can be resumed, and what is missing is written then. But
    how their cut was chosen is known to nobody once they name it.
    """
    settings = experiment.settings
    if experiment.cut is not None:
        write_json(folder.cuts, experiment.cut.to_json())
    if not folder.settings.is_file():
        write_json(folder.settings, settings.resolved())
    if not folder.environment.is_file():
        write_json(folder.environment, environment())
    if not folder.world.is_file():
        write_json(folder.world, describe_world(settings, experiment.world))
    if not folder.fleet.is_file():
        write_devices(folder.fleet, experiment.planner.accountant.fleet, settings.rounds)


def begin(folder: RunFolder, experiment: Experiment, given: str | None = None) -> None:
    """What is written before the first round; `given` is the settings file as it stands."""
    if given is not None:
        write_text(folder.given, given)
    describe(folder, experiment)
    _log_start(folder, experiment)


def go_on(folder: RunFolder, experiment: Experiment) -> None:
    """What is written before a run goes on: what a stop may have left out, and that it does."""
    describe(folder, experiment)
    if not any(folder.read_events()):  # killed before its first word
        _log_start(folder, experiment)
    folder.log("resume")


def _log_start(folder: RunFolder, experiment: Experiment) -> None:
    folder.log("start")
    if experiment.cut is not None:
        folder.log("cut", chosen=experiment.cut.chosen, why=experiment.cut.why)
    settings, rounds = experiment.given, experiment.settings.rounds
    for note in settings.notes():
        folder.log("note", text=note)
    if rounds != settings.rounds:
        folder.log("note", text=f"the privacy budget ends after {rounds} of the {settings.rounds} rounds.")


def resume(
    out: str | Path,
    *,
    data_dir: str | Path | None = None,
    listen: Listener | None = None,
    notify: Notify = lambda text: None,
    progress: bool | None = None,
) -> Run:
    """Go on after a stop, bit for bit as if it had not happened; a finished run is read back, as by `leanfed.read`.

    `notify` hears what a user should know, for example that an earlier checkpoint stood in for a damaged one.
    """
    folder = RunFolder(Path(out))
    check_resumable(folder)
    settings = Settings.from_values(folder.read_settings(), str(folder.settings))
    with folder.hold():
        if folder.finished:
            if all(event.get("event") != "finish" for event in folder.read_events()):  # killed before its last word
                folder.log("finish", accuracy=read_json(folder.summary).get("accuracy"))
            return read(folder.path)
        experiment = prepare(settings, data_dir, scratch=folder.path)
        go_on(folder, experiment)
        with heard(settings, listen, progress, notify, folder, resumed=True) as hear:
            return finished(experiment, folder, *play_in_folder(experiment, folder, hear, notify))


def finished(experiment: Experiment, folder: RunFolder, checkpoints: Checkpoints, progress: Progress) -> Run:
    """The final files of a run whose last round is saved."""
    checkpoints.complete(progress.clients)
    return finish_folder(experiment.settings, experiment.world, folder, checkpoints.tables(), progress)
