"""A run charged again equals the run that training under the new settings makes."""

from __future__ import annotations

from pathlib import Path

import pytest

import leanfed as package
from leanfed.errors import InputError
from leanfed.files import write_json
from leanfed.reproduction.library import RunLibrary
from leanfed.results import RunFolder
from leanfed.runs.recost import recost
from leanfed.runs.settings import Settings

NARROW = ["radio.fleet.bandwidth_hz=1e6", "allocation.bandwidth=min-max", "radio.payload=paper", "name=again"]


@pytest.mark.parametrize("method", ["flpdsp", "fedper", "fedmask", "lg-fedavg"])
def test_charged_again_equals_trained_again(method: str, settings_file: Path, tmp_path: Path) -> None:
    plain = {"algorithm": {"name": method}, "training": {}} if method == "fedmask" else {"algorithm": {"name": method}}
    first = Settings.from_values({**Settings.from_toml(settings_file).resolved(), **plain})
    changed = Settings.from_values({**Settings.from_toml(settings_file, NARROW).resolved(), **plain})
    package.run(first, tmp_path / "first")
    trained = package.run(changed, tmp_path / "trained")
    charged = recost(tmp_path / "first", changed, tmp_path / "charged")
    assert charged.rounds.equals(trained.rounds)
    assert charged.clients.equals(trained.clients)
    assert charged.summary == trained.summary


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("training.learning_rate=0.02", r"another training"),
        ("allocation.rule=joint", r"must be trained anew"),
        ("radio.value_bits=16", r"another radio\.value_bits"),
        ("run.precision=bfloat16", r"another run\.precision"),
    ],
)
def test_another_learning_is_refused(change: str, message: str, settings_file: Path, tmp_path: Path) -> None:
    settings = Settings.from_toml(settings_file, ["rounds=1"])
    package.run(settings, tmp_path / "first")
    with pytest.raises(InputError, match=message):
        recost(tmp_path / "first", Settings.from_toml(settings_file, ["rounds=1", change]), tmp_path / "x")


def test_an_unfinished_run_is_refused(settings_file: Path, tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    with pytest.raises(InputError, match="has not ended"):
        recost(tmp_path / "none", Settings.from_toml(settings_file), tmp_path / "x")


def test_a_folder_from_before_a_setting_existed_is_completed(settings_file: Path, tmp_path: Path) -> None:
    settings = Settings.from_toml(settings_file, ["rounds=1"])
    package.run(settings, tmp_path / "first")
    folder = RunFolder(tmp_path / "first")
    values = folder.read_settings()
    del values["training"]["learning_rate_decay"], values["allocation"]["settle"]
    write_json(folder.settings, values)
    assert recost(tmp_path / "first", settings, tmp_path / "again").rounds.height == 1


def test_the_library_serves_a_run_from_one_on_another_radio(settings_file: Path, tmp_path: Path) -> None:
    package.run(Settings.from_toml(settings_file), tmp_path / "first")
    library = RunLibrary(tmp_path)
    wanted = Settings.from_toml(settings_file, [*NARROW, "rounds=4"])
    assert library.find(wanted) is None
    assert library.charge(wanted, None)
    found = library.find(wanted)
    assert found is not None
    trained = package.run(wanted)
    assert found.rounds.equals(trained.rounds)
    assert not library.charge(Settings.from_toml(settings_file, ["training.learning_rate=0.02"]), None)
    assert not library.charge(Settings.from_toml(settings_file, ["allocation.rule=joint"]), None)


def test_where_a_charged_run_ends_is_judged_by_its_own_costs(settings_file: Path, tmp_path: Path) -> None:
    first = package.run(Settings.from_toml(settings_file), tmp_path / "first")
    library = RunLibrary(tmp_path)
    slow = ["radio.fleet.bandwidth_hz=1e4", "name=slow"]
    narrow = Settings.from_toml(settings_file, slow)
    assert library.charge(narrow, None)
    charged = library.find(narrow)
    assert charged is not None
    spent = charged.rounds["latency_s"].cum_sum().to_list()
    assert spent[1] > first.rounds["latency_s"].sum()  # what two rounds take here, no round there had reached
    limited = Settings.from_toml(settings_file, [*slow, f"run.stop_at_seconds={spent[1]}"])
    other = RunLibrary(tmp_path / "first")
    assert other.charge(limited, None)
    found = other.find(limited)
    assert found is not None
    assert found.rounds.height == 2
    package.run(Settings.from_toml(settings_file, ["run.stop_at_seconds=1e-9"]), tmp_path / "early" / "one")
    early = RunLibrary(tmp_path / "early")
    assert not early.charge(Settings.from_toml(settings_file, [*slow, "run.stop_at_seconds=1e-9"]), None)
