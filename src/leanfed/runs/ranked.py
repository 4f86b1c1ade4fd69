"""One run on several ranks: they check that they are alike, then share one folder, which the first of them writes."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import torch

from leanfed.algorithms.local import DivergedError
from leanfed.errors import DataError, InputError, SettingsError, StorageError
from leanfed.results import RunFolder, check_free, check_resumable, leaves, new_run_folder
from leanfed.rounds.loop import RoundRecord
from leanfed.rounds.ranks import Ranks
from leanfed.runs.carry_out import begin, finished, go_on, heard, resume
from leanfed.runs.cuts import as_kept
from leanfed.runs.environment import TRACKED
from leanfed.runs.outcome import Run
from leanfed.runs.play import Notify, play_in_folder
from leanfed.runs.prepare import Experiment, engine_of, fingerprint, prepare
from leanfed.runs.settings import Settings
from leanfed.runs.trackers import check_trackers
from leanfed.runs.watching import Listener

PATIENCE_S: Final = 10.0  # until a file that another machine has written is seen


def run_on(
    ranks: Ranks,
    settings: Settings | None,
    out: Path,
    *,
    data_dir: Path | None = None,
    given: str | None = None,
    listen: Listener | None = None,
    notify: Notify = lambda text: None,
) -> Run | None:
    """This rank's part of a run: the run on the first rank, None on the others.

    A folder that holds the same run already is gone on with, for so a rank that was started anew and a job that was
    queued again go on where they stopped. `settings` are those of the folder where none are given.
    """
    peers = _alike(ranks, settings)
    kept = ranks.agree(lambda: _kept(out, settings) if ranks.first else None)[0]
    if kept is not None and kept["finished"]:
        return resume(out, progress=False) if ranks.first else None
    chosen = settings if kept is None else Settings.from_values(kept["settings"], str(out))
    if chosen is None:
        raise StorageError(f"{out} holds no run to go on with. Name a folder made by `leanfed run`.")
    experiment = _prepared(ranks, chosen, out, data_dir)
    with ExitStack() as held:
        taken = _taken(out, experiment, given, kept is not None)
        ranks.agree(lambda: _enter(held, taken) if ranks.first else None)
        holder = ranks.gather(_lock_of(out) if ranks.first else None)[0]
        ranks.agree(lambda: _look(out, holder))
        folder = RunFolder(out, quiet=not ranks.first)
        _tell(folder, peers, notify if ranks.first else _ignore_text)
        hear: Listener = _ignore
        if ranks.first:
            hear = held.enter_context(
                heard(
                    experiment.given,
                    listen,
                    False if listen is None else None,
                    notify,
                    folder,
                    resumed=kept is not None,
                )
            )
        with _said_once(ranks):
            played = play_in_folder(experiment, folder, hear, notify if ranks.first else _ignore_text, ranks)
        return finished(experiment, folder, *played) if ranks.first else None


def _alike(ranks: Ranks, settings: Settings | None) -> list[dict[str, Any]]:
    """What every rank is; ranks with other versions or settings than the first's are refused."""
    peers = ranks.gather(_identity(settings))
    first = peers[0]
    for rank, peer in enumerate(peers):
        for name, ours in first["versions"].items():
            if peer["versions"].get(name) != ours:
                raise _on_all(
                    ranks,
                    f"Rank {rank} on {peer['host']} has {name} {peer['versions'].get(name)}, but rank 0 on "
                    f"{first['host']} has {ours}. Install the same versions on all machines.",
                )
        for key in sorted(first["settings"].keys() | peer["settings"].keys()):
            here, there = first["settings"].get(key), peer["settings"].get(key)
            if here != there:
                raise _on_all(
                    ranks,
                    f"Rank {rank} on {peer['host']} has {key} = {there!r}, but rank 0 on {first['host']} has {here!r}. "
                    "Start all ranks with the same settings.",
                )
    return peers


def _identity(settings: Settings | None) -> dict[str, Any]:
    """What ranks must have alike, and what a reader may want to know of them."""
    values = {} if settings is None else {key: str(value) for key, value in leaves(settings.resolved())}
    values.pop("run.threads", None)  # of each machine
    return {
        "host": socket.gethostname(),
        "processor": torch.backends.cpu.get_cpu_capability(),
        "versions": {name: version(name) for name in TRACKED},
        "settings": values,
    }


def _on_all(ranks: Ranks, words: str) -> InputError:
    """An error that every rank finds, said by the first alone."""
    error = SettingsError(words)
    error.silent = not ranks.first
    return error


def _kept(out: Path, settings: Settings | None) -> dict[str, Any] | None:
    """The settings of the run that a folder holds already; None where it holds none. Another run is refused."""
    folder = RunFolder(out)
    if settings is not None and not folder.settings.is_file():
        check_free(out)
        return None
    check_resumable(folder)
    values = Settings.from_values(folder.read_settings(), str(folder.settings)).resolved()
    settings = None if settings is None else as_kept(settings, folder)
    if settings is not None and {**values, "run": None} != {**settings.resolved(), "run": None}:
        raise InputError(f"{out} holds a run of other settings. Choose another folder, or remove this one.")
    return {"settings": values, "finished": folder.finished}


def _prepared(ranks: Ranks, settings: Settings, out: Path, data_dir: Path | None) -> Experiment:
    """The experiment, once every rank has it and all have the same data; what cannot be spread is refused here."""
    built: list[Experiment] = []

    def build() -> tuple[str, str | None]:
        check_trackers(settings.run.track)
        built.append(prepare(settings, data_dir, scratch=out))
        engine_of(settings, built[0].world, ranks)
        return fingerprint(built[0].world.task), built[0].settings.task.split

    prints = ranks.agree(build)
    for rank, found in enumerate(prints):
        if found[0] == prints[0][0] and found[1] != prints[0][1]:
            words = f"Rank {rank} would cut the model after {found[1]!r}, rank 0 after {prints[0][1]!r}: they round "
            raise _on_all(ranks, f"{words}differently. Name the layer in task.split.")
        if found[0] != prints[0][0]:
            error = DataError(
                f"Rank {rank} has other data than rank 0, or another split of it. Give all ranks the same data "
                "(--data-dir or LEANFED_DATA)."
            )
            error.silent = not ranks.first
            raise error
    return built[0]


@contextmanager
def _taken(out: Path, experiment: Experiment, given: str | None, resumed: bool) -> Iterator[None]:
    """The run's folder, held and described by the first rank."""
    folder = RunFolder(out)
    if resumed:
        with folder.hold():
            go_on(folder, experiment)
            yield
    else:
        with new_run_folder(out):
            begin(folder, experiment, given)
            yield


@contextmanager
def _said_once(ranks: Ranks) -> Iterator[None]:
    """Every rank finds a run that diverges by itself; the first says so."""
    try:
        yield
    except DivergedError as error:
        error.silent = not ranks.first
        raise


def _enter(held: ExitStack, taken: Any) -> None:
    held.enter_context(taken)


def _lock_of(out: Path) -> str:
    """Who holds a folder, as its lock says; the first byte is locked on Windows."""
    with (out / ".lock").open("rb") as file:
        file.seek(1)
        return file.read().decode()


def _look(out: Path, expected: str) -> None:
    """Refuse a folder that is not the one that the first rank holds."""
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            if _lock_of(out) == expected:
                return
        except OSError:
            pass
        if time.monotonic() > end:
            raise StorageError(
                f"{out} on {socket.gethostname()} is not the folder that rank 0 holds. Use a folder on a file system "
                "that all machines share, with its absolute path."
            )
        time.sleep(0.2)


def _tell(folder: RunFolder, peers: list[Mapping[str, Any]] | list[dict[str, Any]], notify: Notify) -> None:
    """Log where the ranks are; unlike processors may round differently."""
    hosts, kinds = [peer["host"] for peer in peers], [peer["processor"] for peer in peers]
    folder.log("ranks", count=len(peers), hosts=hosts, processors=kinds)
    if len(set(kinds)) > 1:
        notify(f"the ranks' processors are of different kinds ({', '.join(sorted(set(kinds)))}): results may differ.")


def _ignore(record: RoundRecord) -> None:
    pass


def _ignore_text(text: str) -> None:
    pass
