"""Places that are odd but possible: names that a library reads as patterns, or no library can read; pipes for files."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import leanfed
from leanfed.errors import StorageError
from leanfed.results import read_rows
from leanfed.runs.settings import Settings
from tests.chaos.commands import Answer, command
from tests.chaos.folders import served
from tests.chaos.variants import settings_of

LIMIT_S = 20.0  # ten times as long where it waits and computes nothing


@pytest.fixture(scope="module")
def settings_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("settings") / "settings.json"
    file.write_text(json.dumps({**settings_of("error-feedback"), "rounds": 1}))
    return file


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, settings_file: Path) -> Path:
    folder = tmp_path_factory.mktemp("odd") / "run"
    leanfed.run(Settings.from_values(json.loads(settings_file.read_text())), folder)
    return folder


def refused(answer: Answer) -> bool:
    return answer.trouble is None and answer.code == 2


def test_a_name_that_looks_like_a_pattern_is_a_name(tmp_path: Path, whole: Path) -> None:
    folder = tmp_path / "rate[0.1] *?"
    shutil.copytree(whole, folder)
    assert leanfed.read(folder).rounds.height == 1
    for words in (["resume", folder], ["plan", "--fleet", folder / "fleet.parquet"]):
        assert command(*words, limit_s=LIMIT_S).code == 0


def test_a_name_that_is_not_utf_8_is_refused_before_anything_is_done(tmp_path: Path, settings_file: Path) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    answer = command("run", settings_file, "--out", folder, limit_s=LIMIT_S)
    assert refused(answer)
    assert "UTF-8" in answer.said
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_the_system_refuses_is_refused_in_words(tmp_path: Path, settings_file: Path) -> None:
    long = "x" * 300
    for words in (["run", settings_file, "--out", tmp_path / long], ["run", f"{long}.toml"], ["resume", long]):
        answer = command(*words, limit_s=LIMIT_S)
        assert refused(answer)
        assert "too long" in answer.said


def test_a_pipe_among_runs_is_not_waited_for(tmp_path: Path, whole: Path) -> None:
    shutil.copytree(whole, tmp_path / "runs" / "one")
    (tmp_path / "runs" / "piped").mkdir()
    os.mkfifo(tmp_path / "runs" / "piped" / "settings.json")
    answer = command("report", tmp_path / "runs", "--out", tmp_path / "page.html", "--json", limit_s=LIMIT_S)
    assert answer.code == 0
    assert served(tmp_path / "runs", "one").trouble is None


@pytest.mark.parametrize("name", [".lock", "events.jsonl"])
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_a_pipe_or_a_folder_in_the_place_of_a_lock_or_a_log(
    name: str, make: Callable[[Path], None], tmp_path: Path, whole: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    (folder / name).unlink()
    make(folder / name)
    assert served(tmp_path, "run").trouble is None
    for words in (["resume", folder], ["run", folder / "settings.json", "--out", folder]):
        assert command(*words, "--json", limit_s=LIMIT_S).trouble is None


def test_an_event_that_is_nested_without_end_is_skipped(tmp_path: Path, whole: Path) -> None:
    shutil.copytree(whole, tmp_path / "run")
    (tmp_path / "run" / "events.jsonl").write_text("[" * 100_000 + "\n")
    assert served(tmp_path, "run").trouble is None


def test_a_pipe_or_a_folder_is_no_fleet_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.parquet")
    (tmp_path / "folder.parquet").mkdir()
    for name in ("pipe.parquet", "folder.parquet"):
        answer = command("plan", "--fleet", tmp_path / name, limit_s=LIMIT_S)
        assert refused(answer)
        assert "not a file" in answer.said


@pytest.mark.parametrize(
    "arrays",
    [{"rounds.0": np.zeros(3)}, {"rounds.000.round": np.zeros((2, 2, 2))}],
    ids=("name", "shape"),
)
def test_rows_that_are_no_rows_are_damaged(arrays: dict[str, np.ndarray], tmp_path: Path) -> None:
    file = tmp_path / "rows.safetensors"
    save_file({"rounds.001.x": np.zeros(3), **arrays}, file)
    with pytest.raises(StorageError, match="damaged"):
        read_rows([file], "rounds")
