"""Where runs are carried out: on this machine, on a Ray cluster, by SLURM. A run's folder is all that they share.

A place calls `carry_out(settings, folder)` at least once for every run. A call that dies is made again, and goes on
from the folder's last checkpoint, so the bits do not depend on where or how often a run was taken up.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import SplitResult, urlsplit

from typing_extensions import override

from leanfed import __version__
from leanfed.errors import BusyError, LeanfedError
from leanfed.files import explained, make_folder, write_text
from leanfed.manifest import newest_manifest
from leanfed.registry import Registry
from leanfed.results import RunFolder
from leanfed.runs.carry_out import resume, run
from leanfed.runs.settings import Settings
from leanfed.tasks.user_data import import_file

Work = tuple[Settings, Path]
Tell = Callable[[], None]  # called after every round
Done = Callable[[Path], None]  # called with the folder of a run that has ended
TRIES = 3  # of a run whose process dies
LOOK_S = 1.0  # from one look at runs elsewhere to the next
BUSY_S, BUSY_TIMES = 5.0, 24  # a folder that a cut-off process still holds is tried again
DONE, FAILED, LOST = "done", "failed", "lost"  # how a call ends


def carry_out(settings: Settings, folder: Path, data_dir: Path | None, tell: Tell) -> None:
    """One run into its folder; one that was stopped goes on."""
    if RunFolder(folder).settings.is_file():
        resume(folder, data_dir=data_dir, listen=lambda record: tell())
        return
    if folder.is_dir():  # stopped before it had settings: nothing in it is of use
        shutil.rmtree(folder)
    run(settings, folder, data_dir=data_dir, listen=lambda record: tell())


@dataclass(frozen=True)
class Terms:
    """What all runs of a place have in common."""

    processes: int | None = None  # runs at a time; None: as many as there is room for
    data_dir: Path | None = None
    imports: Sequence[Path] = ()  # the user's own files, which register what settings name; run here already


class Place(ABC):
    """Somewhere that runs are carried out.

    >>> class Here(Place):
    ...     def carry_out(self, work, tell, done):
    ...         for settings, folder in work:
    ...             carry_out(settings, folder, None, tell)
    ...             done(folder)
    ...         return []
    """

    @abstractmethod
    def carry_out(self, work: Sequence[Work], tell: Tell, done: Done) -> list[str]:
        """Carry out all runs; returns what went wrong with those that could not be."""


PLACES: Registry[Callable[[SplitResult, Terms], Place]] = Registry("place")
"""How a place is reached from its address, by what the address begins with: local, ray, slurm."""


def place_of(on: str | None, terms: Terms) -> Place:
    """The place that an address names: `ray://host:10001`, `slurm://partition?minutes=600`; None is this machine."""
    address = urlsplit(on or "local")
    return PLACES[address.scheme or address.path](address, terms)


@PLACES.register("local")
def _local(address: SplitResult, terms: Terms) -> Place:
    from leanfed.runs.workers import Local

    return Local(terms)


@PLACES.register("ray")
def _ray(address: SplitResult, terms: Terms) -> Place:
    from leanfed.runs.ray_place import RayPlace

    return RayPlace(address, terms)


@PLACES.register("slurm")
def _slurm(address: SplitResult, terms: Terms) -> Place:
    from leanfed.runs.slurm_place import SlurmPlace

    return SlurmPlace(address, terms)


class Ticket(Protocol):
    """A call that was made elsewhere."""

    def ended(self) -> tuple[str, str] | None:
        """(DONE, ""), (FAILED, why) or (LOST, how it died); None while it goes on."""

    def cancel(self) -> None:
        """End it."""


@dataclass
class _Case:
    """A run that is carried out elsewhere."""

    settings: Settings
    folder: Path
    tries: int = 0
    told: int = 0  # rounds that were told of
    ticket: Ticket | None = None

    def follow(self, tell: Tell) -> None:
        """Tell of rounds that its folder has and that were not told of."""
        with suppress(LeanfedError):  # nothing there yet, or being replaced
            manifest = newest_manifest(RunFolder(self.folder).checkpoint)
            self.tell_to(0 if manifest is None else int(manifest["round"]), tell)

    def tell_to(self, rounds: int, tell: Tell) -> None:
        """Tell of rounds up to a number of them."""
        for _ in range(rounds - self.told):
            tell()
        self.told = max(self.told, rounds)


class Elsewhere(Place):
    """Runs that other processes carry out, on machines that see the same folders; theirs say how far they are."""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms

    @abstractmethod
    def start(self, orders: Sequence[str], threads: int, home: Path) -> Sequence[Ticket]:
        """Have `fulfil` called with each order, on so many threads; `home` is a folder that all machines see."""

    def close(self) -> None:
        """Leave the place."""

    @override
    def carry_out(self, work: Sequence[Work], tell: Tell, done: Done) -> list[str]:
        failures: list[str] = []
        waiting, going = deque(_Case(*one) for one in work), list[_Case]()
        try:
            with _marked({folder.parent for _, folder in work}) as mark:
                while waiting or going:
                    going += self._started(waiting, len(going), mark)
                    for case in list(going):
                        case.follow(tell)
                        if (end := case.ticket.ended() if case.ticket else None) is not None:
                            going.remove(case)
                            self._settle(case, end, waiting, failures, tell, done)
                    time.sleep(LOOK_S if going else 0)
        finally:
            for case in going:
                if case.ticket is not None:
                    case.ticket.cancel()
            self.close()
        return failures

    def _started(self, waiting: deque[_Case], going: int, mark: str) -> list[_Case]:
        """Start as many cases as there is room for."""
        room = len(waiting) if self.terms.processes is None else self.terms.processes - going
        cases = [waiting.popleft() for _ in range(min(room, len(waiting)))]
        if cases:
            threads = max(case.settings.run.threads for case in cases)
            orders = [order(case.settings, case.folder, self.terms, mark) for case in cases]
            tickets = self.start(orders, threads, cases[0].folder.parent.absolute())
            for case, ticket in zip(cases, tickets, strict=True):
                case.ticket, case.tries = ticket, case.tries + 1
        return cases

    def _settle(
        self, case: _Case, end: tuple[str, str], waiting: deque[_Case], failures: list[str], tell: Tell, done: Done
    ) -> None:
        """Take note of how a call ended; one that died is made again."""
        kind, text = end
        if kind == DONE:
            case.tell_to(case.settings.rounds, tell)
            done(case.folder)
        elif kind == LOST and case.tries < TRIES:
            waiting.append(case)
        else:
            lost = f"its process has ended {TRIES} times, at last: {text} The same command goes on where it stopped."
            failures.append(f"{case.settings.name}: {lost if kind == LOST else text}")


@contextmanager
def _marked(folders: set[Path]) -> Iterator[str]:
    """A file in each folder by which another machine knows that it sees the same one; its name."""
    name = f".seen-{secrets.token_hex(8)}"
    for folder in folders:
        write_text(make_folder(folder) / name, socket.gethostname())
    try:
        yield name
    finally:
        for folder in folders:
            with explained(folder / name, "remove"):
                (folder / name).unlink(missing_ok=True)


def order(settings: Settings, folder: Path, terms: Terms, mark: str) -> str:
    """What a process elsewhere needs to know, as JSON."""
    return json.dumps(
        {
            "version": __version__,
            "settings": settings.resolved(),
            "folder": str(folder.absolute()),
            "mark": mark,
            "from": str(Path.cwd()),  # settings may name files relative to it
            "data_dir": None if terms.data_dir is None else str(terms.data_dir.absolute()),
            "imports": [str(file.absolute()) for file in terms.imports],
        }
    )


_imported: set[str] = set()  # the user's files that this process has run: it may fulfil several orders


def fulfil(text: str) -> tuple[str, str]:
    """Carry out an order in this process; returns how that ended, and why."""
    asked = json.loads(text)
    folder, host = Path(asked["folder"]), socket.gethostname()
    if asked["version"] != __version__:
        return FAILED, f"{host} has leanfed {__version__}, not {asked['version']}. Install the same version there."
    if not (folder.parent / asked["mark"]).is_file():
        return FAILED, f"{host} does not see {folder.parent}. Put the runs on a file system that all machines share."
    if not Path(asked["from"]).is_dir():
        return FAILED, f"{host} does not see {asked['from']}. Start from a folder that all machines share."
    try:
        with chdir(asked["from"]):
            for file in asked["imports"]:
                if file not in _imported:
                    import_file(file)
                    _imported.add(file)
            _patiently(Settings.from_values(asked["settings"]), folder, asked["data_dir"])
    except LeanfedError as error:
        return FAILED, str(error)
    return DONE, ""


def _patiently(settings: Settings, folder: Path, data_dir: str | None) -> None:
    """Carry out a run whose folder may still be held by a process that is about to end."""
    where = None if data_dir is None else Path(data_dir)
    for left in reversed(range(BUSY_TIMES)):
        try:
            carry_out(settings, folder, where, lambda: None)
        except BusyError:
            if not left:
                raise
            time.sleep(BUSY_S)
        else:
            return


def cores() -> int:
    """Cores that this process may use, if the system says so (Linux); else all."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
