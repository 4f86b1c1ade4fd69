"""A finished run in one small file, which any machine makes a run of again."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path

import polars as pl
import pytest

import leanfed as package
from leanfed.errors import StorageError
from leanfed.files import read_json
from leanfed.reproduction.catalogue import Entry, Job, Measured, Outcome, Scale
from leanfed.reproduction.kept import FILES, UNMEASURED, keep, unpack
from leanfed.reproduction.library import RunLibrary, has_clients
from leanfed.reproduction.reproduce import Request, reproduce
from leanfed.results import RunFolder
from tests.unit.reproduction.test_library import tiny


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    folder = tmp_path_factory.mktemp("store") / "first"
    package.run(tiny(), folder)
    return RunFolder(folder)


@pytest.fixture
def place(run: RunFolder, tmp_path: Path) -> Path:
    """Where its kept form lies."""
    keep(run, tmp_path / "kept")
    return tmp_path / "kept"


def test_a_kept_run_is_found_and_measures_the_same(run: RunFolder, place: Path, tmp_path: Path) -> None:
    unpack(place, tmp_path / "elsewhere")
    whole, found = RunLibrary(run.path.parent).find(tiny()), RunLibrary(tmp_path / "elsewhere").find(tiny())
    assert whole is not None
    assert found is not None
    assert found.rounds.equals(whole.rounds.drop(UNMEASURED, strict=False))
    assert found.core_seconds == whole.core_seconds > 0
    made, told = read_json(run.environment), read_json(found.folder.environment)
    assert told["commit"] == made["commit"]
    assert not {"command", "platform"} & told.keys()  # paths and machines are nobody's business
    shorter = tiny(rounds=4, evaluation={"every": 4})
    assert RunLibrary(tmp_path / "elsewhere").find(shorter) is not None


def test_it_has_no_rows_of_single_clients(place: Path, tmp_path: Path) -> None:
    unpack(place, tmp_path / "elsewhere")
    assert RunLibrary(tmp_path / "elsewhere").find(tiny(), clients=True) is None


def test_it_is_charged_again_as_if_it_had_been_trained(place: Path, tmp_path: Path) -> None:
    unpack(place, tmp_path / "elsewhere")
    library, other = RunLibrary(tmp_path / "elsewhere"), tiny(radio={"cycles_per_sample": 9e6})
    assert library.charge(other, None)
    charged, trained = library.find(other), package.run(other)
    assert charged is not None
    assert not has_clients(charged.folder)
    told = [name for name in trained.rounds.columns if name in charged.rounds.columns]
    assert {"latency_s", "energy_j", "upload_bits", "flops", "accuracy"} <= set(told)
    assert charged.rounds.select(told).equals(trained.rounds.select(told))


def test_it_is_not_where_its_clients_did_something_else(place: Path, tmp_path: Path) -> None:
    unpack(place, tmp_path / "elsewhere")
    (folder,) = (RunFolder(path) for path in (tmp_path / "elsewhere").iterdir())
    rounds = folder.read_table("rounds")
    rounds.with_columns(pl.col("upload_bits") + 1.0).write_parquet(folder.table("rounds"))
    assert not RunLibrary(tmp_path / "elsewhere").charge(tiny(radio={"cycles_per_sample": 9e6}), None)


def test_a_run_that_was_kept_before_a_setting_existed_is_not_kept_twice(place: Path, tmp_path: Path) -> None:
    (file,) = place.glob("*.zip")
    file.rename(place / "as-it-was-named-then.zip")  # a new setting changes the digest in the name
    unpack(place, tmp_path / "elsewhere")
    found = RunLibrary(tmp_path / "elsewhere").find(tiny())
    assert found is not None
    keep(found.folder, place)
    assert [path.name for path in place.glob("*.zip")] == ["as-it-was-named-then.zip"]


def test_equal_runs_are_equal_bytes_and_small(run: RunFolder, place: Path, tmp_path: Path) -> None:
    keep(run, tmp_path / "again")
    first, second = (next(folder.glob("*.zip")) for folder in (place, tmp_path / "again"))
    assert first.name == second.name
    assert first.read_bytes() == second.read_bytes()
    assert first.stat().st_size < 12_000
    unpack(place, tmp_path / "elsewhere")
    keep(RunFolder(next((tmp_path / "elsewhere").iterdir())), tmp_path / "third")
    assert next((tmp_path / "third").glob("*.zip")).name == first.name


def test_a_place_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    unpack(tmp_path / "none", tmp_path / "into")
    assert not (tmp_path / "into").exists()


@pytest.mark.parametrize("damage", ["cut", "no zip", "a file is missing", "flipped"])
def test_a_damaged_file_is_named(place: Path, tmp_path: Path, damage: str) -> None:
    path = next(place.glob("*.zip"))
    content = path.read_bytes()
    if damage == "a file is missing":
        with zipfile.ZipFile(path) as whole:
            kept = {name: whole.read(name) for name in FILES[:-1]}
        with zipfile.ZipFile(path, "w") as file:
            for name, inside in kept.items():
                file.writestr(name, inside)
    else:
        flipped = content[:200] + bytes([content[200] ^ 255]) + content[201:]
        path.write_bytes({"cut": content[:-40], "no zip": b"PK", "flipped": flipped}[damage])
    with pytest.raises(StorageError, match=f"{path.name} is no kept run"):
        unpack(place, tmp_path / "elsewhere")
    assert not list((tmp_path / "elsewhere").glob("*/summary.json"))


def test_nothing_but_the_known_files_comes_out(place: Path, tmp_path: Path) -> None:
    path = next(place.glob("*.zip"))
    with zipfile.ZipFile(path, "a") as file:
        file.writestr("../outside", "x")
        file.writestr("further", "x")
    unpack(place, tmp_path / "elsewhere")
    assert sorted(child.name for child in (tmp_path / "elsewhere" / path.stem).iterdir()) == sorted(FILES)
    assert not (tmp_path / "elsewhere" / "outside").exists()


def test_runs_are_kept_as_they_end_whatever_becomes_of_the_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(outcomes: Sequence[Outcome], scale: Scale) -> Measured:
        raise RuntimeError("the machine went away")

    jobs = [Job({"method": "FedPer"}, tiny(seed=seed)) for seed in (0, 1)]
    entry = Entry("two runs", "nowhere", jobs=lambda scale: jobs, measure=measure)
    monkeypatch.setattr(Request, "entries", lambda self: {"two": (entry, Scale((0,)))})
    with pytest.raises(RuntimeError, match="went away"):
        reproduce(Request(["two"], tmp_path / "runs", tmp_path / "results", processes=1))
    assert len(list((tmp_path / "results/runs").glob("*.zip"))) == 2
