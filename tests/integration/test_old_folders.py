"""Run folders of version 0.1.0, kept as that version wrote them, open from now on: read, compare, report, resume."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from safetensors.numpy import load_file, save_file
from typer.testing import CliRunner

import leanfed
from leanfed.cli.app import app
from leanfed.errors import StorageError
from leanfed.manifest import sealed
from leanfed.report.data import report_data
from leanfed.results import TABLES, RunFolder
from leanfed.runs import carry_out
from leanfed.runs.settings import Settings

KEPT = Path(__file__).resolve().parents[1] / "fixtures" / "run-0.1.0"


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """Both folders, as copies that may change."""
    return Path(shutil.copytree(KEPT, tmp_path / "kept"))


def cli(*arguments: str | Path) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def edit(path: Path, change: Any) -> None:
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))


def without(folder: Path, column: str) -> None:
    """A folder as a version that did not know a column would have written it."""
    for table in folder.glob("*.parquet"):
        pl.read_parquet(table).drop(column, strict=False).write_parquet(table)
    sums = {}
    for rows in (folder / "checkpoint").glob("rows-*"):
        save_file({key: array for key, array in load_file(rows).items() if not key.endswith(f".{column}")}, rows)
        sums[rows.name] = hashlib.sha256(rows.read_bytes()).hexdigest()
    for manifest in (folder / "checkpoint").glob("manifest*.json"):
        values = json.loads(manifest.read_text())
        values["sha256"] |= {name: digest for name, digest in sums.items() if name in values["sha256"]}
        manifest.write_text(json.dumps(sealed({key: value for key, value in values.items() if key != "digest"})))


def test_the_kept_folders_are_small() -> None:
    assert sum(path.stat().st_size for path in KEPT.rglob("*") if path.is_file()) < 1_000_000


@pytest.mark.parametrize(("name", "rounds"), [("finished", 3), ("unfinished", 2)])
def test_every_table_is_read(name: str, rounds: int) -> None:
    folder = RunFolder(KEPT / name)
    assert {table: folder.read_table(table)["round"].n_unique() for table in TABLES} == dict.fromkeys(TABLES, rounds)


def test_they_are_compared_and_reported(kept: Path, tmp_path: Path) -> None:
    told = cli("compare", kept, "--target", "0.4", "--picture", tmp_path / "a.png")
    assert told.exit_code == 0, told.output
    first = ("1.609", "0.4119", "0.7335", "0.0004614", "0.003702")
    cells = [word for cost in first for word in (cost, f"({cost})")]  # kept from the first crossing on
    assert ["finished", *cells] in map(str.split, told.output.splitlines())
    data = report_data([kept])
    assert data["flaws"] == []
    assert [run["rounds"] for run in data["runs"]] == [3, 2]
    assert all("missing" not in run[part] for run in data["runs"] for part in ("time", "heat", "cell", "bits"))


def as_if_begun_today(folder: Path) -> None:
    """A folder that lacks what an older version did not write, of a version whose rounds are computed as today's."""
    edit(folder / "environment.json", lambda values: values["versions"].update(leanfed=leanfed.__version__))


def test_a_finished_run_is_read_back_and_an_unfinished_one_of_another_arithmetic_is_refused(kept: Path) -> None:
    assert carry_out.resume(kept / "finished").accuracy == 0.6
    told = cli("resume", kept / "unfinished")
    assert isinstance(told.exception, StorageError)
    assert told.exception.exit_code == 2
    assert "begun by leanfed 0.1.0, whose rounds" in str(told.exception)


def test_a_run_that_lacks_keys_of_today_is_resumed_to_the_end_it_would_have_had(kept: Path) -> None:
    as_if_begun_today(kept / "unfinished")
    ended = carry_out.resume(kept / "unfinished")
    values = json.loads((KEPT / "unfinished" / "settings.json").read_text())
    unbroken = leanfed.run(Settings.from_values(values))
    for name in ("accuracy", "train_loss", "latency_s", "upload_bits"):
        assert ended.rounds[name].to_list() == pytest.approx(unbroken.rounds[name].to_list(), rel=1e-5)


def test_what_an_older_version_did_not_write_is_empty(kept: Path, tmp_path: Path) -> None:
    without(kept / "finished", "flops")
    without(kept / "unfinished", "flops")
    as_if_begun_today(kept / "unfinished")
    ended = carry_out.resume(kept / "unfinished")
    assert [value is None for value in ended.rounds["flops"]] == [True, True, False, False]
    assert ended.clients["flops"].null_count() == 8
    assert ended.summary["flops"] is None
    assert ended.summary["energy_j"] == pytest.approx(1.71346, rel=1e-4)
    told = cli("compare", kept, "--target", "0.4", "--picture", tmp_path / "a.png")
    rows = {words[0]: words for words in map(str.split, told.output.splitlines()) if words}
    assert rows["finished"][-1] == rows["unfinished"][-1] == "-"
    data = report_data([kept], targets=[0.4])
    assert [row["mean"]["tflops"] for row in data["targets"][0]["rows"]] == [None, None]
    assert all(run["final"]["flops"] is None for run in data["runs"])


def newer_package(folder: Path) -> None:
    edit(folder / "environment.json", lambda values: values["versions"].update(leanfed="99.1.0"))


def newer_folder(folder: Path) -> None:
    edit(folder / "environment.json", lambda values: values.update(format=99))


def newer_checkpoint(folder: Path) -> None:
    edit(folder / "checkpoint" / "manifest.json", lambda values: values.update(format=99))


@pytest.mark.parametrize("change", [newer_package, newer_folder, newer_checkpoint])
def test_a_run_of_a_newer_version_is_read_but_not_resumed(kept: Path, tmp_path: Path, change: Any) -> None:
    change(kept / "unfinished")
    edit(kept / "unfinished" / "settings.json", lambda values: values.update(of_the_future=1))
    told = cli("resume", kept / "unfinished")
    assert isinstance(told.exception, StorageError)
    assert told.exception.exit_code == 2
    assert "Resume it with that version or a later one" in str(told.exception)
    assert cli("compare", kept, "--picture", tmp_path / "a.png").exit_code == 0
    assert report_data([kept])["flaws"] == []
