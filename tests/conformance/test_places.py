"""Runs end with the same bits wherever they are carried out, and although their processes are killed."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from leanfed.errors import BusyError, InputError, SettingsError
from leanfed.files import sha256_of
from leanfed.locks import lock_owner
from leanfed.runs import places
from leanfed.runs.carry_out import run
from leanfed.runs.places import DONE, FAILED, LOST, Elsewhere, Place, Terms, Ticket, fulfil, order, place_of
from leanfed.runs.settings import Settings
from leanfed.runs.slurm_place import LOGS, SlurmPlace
from leanfed.tasks.models import MODELS
from leanfed.tasks.user_data import import_file

ROUNDS = 60  # long enough to be caught at it
OWN = """
import leanfed
from torch import nn

leanfed.add_model(
    "placed", lambda classes: nn.Sequential(nn.Flatten(), nn.Linear(784, 8), nn.Linear(8, classes)), split="1"
)
"""


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's file, which every process has to run."""
    file = tmp_path_factory.mktemp("own") / "own.py"
    file.write_text(OWN)
    if "placed" not in MODELS:
        import_file(file)
    return file


def settings_of(name: str) -> Settings:
    values = {
        "name": name,
        "rounds": ROUNDS,
        "task": {"model": "placed", "partition": {"kind": "class", "classes_per_client": 2, "clients": 5}},
        "training": {"batch_size": 4},
        "run": {"threads": 1, "engine": "streamed"},
    }
    return Settings.from_values(values)


def submitted(terms: Terms) -> Place:
    """Jobs of submitit on this machine: everything but SLURM itself."""
    return SlurmPlace(urlsplit("slurm"), terms, cluster="local")


HERE: dict[str, Callable[[Terms], Place]] = {"processes": lambda terms: place_of(None, terms), "submitit": submitted}


@pytest.mark.waits
@pytest.mark.parametrize(
    ("name", "names"),
    [("processes", "ab"), *(pytest.param("submitit", names, marks=pytest.mark.slow) for names in ("a", "ab"))],
)
def test_a_run_whose_process_is_killed_goes_on_to_the_same_bits(
    name: str, names: str, own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(places, "LOOK_S", 0.05)
    folders = {each: tmp_path / "runs" / each for each in names}
    killed: list[int] = []
    done: list[Path] = []
    rounds: list[int] = []

    def tell() -> None:
        rounds.append(1)
        for owner in filter(None, map(lock_owner, folders.values())):
            if not killed:
                killed.append(owner.process)
                os.kill(owner.process, signal.SIGKILL)

    work = [(settings_of(each), folder) for each, folder in folders.items()]
    assert HERE[name](Terms(2, imports=[own])).carry_out(work, tell, done.append) == []
    assert len(killed) == 1
    assert os.getpid() not in killed
    assert sorted(done) == sorted(folders.values())
    assert len(rounds) >= len(names) * ROUNDS
    left = {path.name for path in (tmp_path / "runs").iterdir()} - {LOGS}
    assert left == set(names)  # no mark,
    assert {path.name for path in tmp_path.iterdir()} == {"runs"}  # and nothing where nobody asked for it
    run(settings_of("a"), tmp_path / "undisturbed")
    ends = [folder / "weights.safetensors" for folder in (*folders.values(), tmp_path / "undisturbed")]
    assert len({sha256_of(file) for file in ends}) == 1


class Answered:
    """A call that has ended."""

    def __init__(self, end: tuple[str, str] | None) -> None:
        self.end, self.cancelled = end, False

    def ended(self) -> tuple[str, str] | None:
        return self.end

    def cancel(self) -> None:
        self.cancelled = True


class Scripted(Elsewhere):
    """A place whose calls end as they are told to, one after another."""

    def __init__(self, terms: Terms, ends: Sequence[tuple[str, str] | None]) -> None:
        super().__init__(terms)
        self.ends, self.started, self.closed = list(ends), list[Answered](), False
        self.at_once: list[int] = []

    def start(self, orders: Sequence[str], threads: int, home: Path) -> Sequence[Ticket]:
        self.at_once.append(len(orders))
        tickets = [Answered(self.ends.pop(0)) for _ in orders]
        self.started += tickets
        return tickets

    def close(self) -> None:
        self.closed = True


def scripted(
    tmp_path: Path, ends: Sequence[tuple[str, str] | None], *, runs: int = 1, processes: int | None = None
) -> tuple[Scripted, list[str], list[Path], int]:
    """(place, what went wrong, folders that are done, rounds told of) of some runs."""
    place, done, rounds = Scripted(Terms(processes), ends), list[Path](), list[int]()
    work = [(settings_of(f"r{number}"), tmp_path / f"r{number}") for number in range(runs)]
    return place, place.carry_out(work, lambda: rounds.append(1), done.append), done, len(rounds)


pytestmark = pytest.mark.usefixtures("own")


def test_what_dies_is_started_again_but_not_for_ever(tmp_path: Path) -> None:
    _, failures, done, rounds = scripted(tmp_path, [(LOST, "killed."), (LOST, "killed."), (DONE, "")])
    assert (failures, len(done), rounds) == ([], 1, ROUNDS)
    _, failures, done, _ = scripted(tmp_path, [(LOST, "killed.")] * 3)
    assert done == []
    assert failures == [
        "r0: its process has ended 3 times, at last: killed. The same command goes on where it stopped."
    ]


def test_what_cannot_be_done_is_not_repeated(tmp_path: Path) -> None:
    place, failures, *_ = scripted(tmp_path, [(FAILED, "no such data."), (DONE, "")], runs=2)
    assert failures == ["r0: no such data."]
    assert len(place.started) == 2
    assert place.closed


def test_no_more_runs_than_asked_for_go_on_at_once(tmp_path: Path) -> None:
    place, *_ = scripted(tmp_path, [(DONE, "")] * 5, runs=5, processes=2)
    assert place.at_once == [2, 2, 1]
    place, *_ = scripted(tmp_path, [(DONE, "")] * 5, runs=5)
    assert place.at_once == [5]


def test_calls_are_cancelled_when_the_command_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(places.time, "sleep", stop)
    place = Scripted(Terms(), [None])
    with pytest.raises(KeyboardInterrupt):
        place.carry_out([(settings_of("a"), tmp_path / "a")], lambda: None, lambda path: None)
    assert place.started[0].cancelled
    assert place.closed
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": "9.9.9"}, "not 9.9.9. Install the same version there"),
        ({"mark": ".seen-nowhere"}, "does not see .* Put the runs on a file system that all machines share"),
        ({"from": "/nowhere/at/all"}, "does not see /nowhere/at/all. Start from a folder that all machines share"),
        ({"imports": ["/nowhere/own.py"]}, "/nowhere/own.py is not a file"),
        ({"settings": {"rounds": -1}}, "rounds"),
    ],
)
def test_an_order_that_cannot_be_fulfilled_is_answered_in_words(
    change: dict[str, object], words: str, tmp_path: Path
) -> None:
    (tmp_path / ".seen").touch()
    asked = {**json.loads(order(settings_of("a"), tmp_path / "a", Terms(), ".seen")), **change}
    kind, text = fulfil(json.dumps(asked))
    assert kind == FAILED
    assert re.search(words, text)
    assert not (tmp_path / "a").exists()


def test_a_folder_that_is_still_held_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def carry_out(*_: object) -> None:
        tried.append(1)
        if len(tried) < 3:
            raise BusyError("in use")

    monkeypatch.setattr(places, "BUSY_S", 0.0)
    monkeypatch.setattr(places, "carry_out", carry_out)
    (tmp_path / ".seen").touch()
    asked = order(settings_of("a"), tmp_path / "a", Terms(), ".seen")
    assert fulfil(asked) == (DONE, "")
    monkeypatch.setattr(places, "BUSY_TIMES", 1)
    tried.clear()
    assert fulfil(asked) == (FAILED, "in use")


@pytest.mark.parametrize(
    ("on", "error", "words"),
    [
        ("rya", SettingsError, "Unknown place 'rya'.*ray"),
        ("slurm://gpu", InputError, "no `sbatch` here"),
        ("ray://127.0.0.1:1", InputError, "No Ray cluster answers at ray://127.0.0.1:1"),
    ],
)
def test_a_place_that_cannot_be_reached_is_explained(
    on: str, error: type[Exception], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(error, match=words):
        place_of(on, Terms())


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("slurm://gpu?hours=3", "'hours' is unknown"),
        ("slurm://gpu?minutes=long", "minutes = 'long' is no whole number"),
    ],
)
def test_an_address_of_slurm_is_read_strictly(address: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=words):
        SlurmPlace(urlsplit(address), Terms(), cluster="local")
