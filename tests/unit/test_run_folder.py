"""What a run folder keeps when its writer is cut short."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import polars as pl
import pytest

import leanfed
from leanfed.errors import StorageError
from leanfed.files import read_json, remove, write_frame, write_json
from leanfed.locks import folder_lock
from leanfed.results import RunFolder, new_run_folder
from leanfed.runs.settings import Settings
from tests.stops import Stop, stop_after


@pytest.fixture(scope="module")
def settings() -> Settings:
    partition = {"kind": "class", "classes_per_client": 2, "clients": 5}
    return Settings.from_values({"rounds": 3, "task": {"partition": partition}, "algorithm": {"name": "fedper"}})


def test_an_event_after_a_torn_line_stands_on_its_own(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.log("start")
    with folder.events.open("a") as file:
        file.write('{"time": 1, "ev')
    folder.log("resume")
    folder.log("finish")
    assert [event["event"] for event in folder.read_events()] == ["start", "resume", "finish"]
    assert folder.events.read_text().count("\n") == 4


def test_a_run_that_died_before_its_first_or_last_word_says_them_when_it_is_taken_up(
    settings: Settings, tmp_path: Path
) -> None:
    folder = RunFolder(tmp_path / "run")
    with pytest.raises(Stop):
        leanfed.run(settings, folder.path, listen=stop_after(1))
    folder.events.write_text("")
    leanfed.resume(folder.path)
    words = [event["event"] for event in folder.read_events()]
    assert (words[0], words[-1]) == ("start", "finish")
    lines = folder.events.read_text().splitlines()
    folder.events.write_text("\n".join(lines[:-1]) + "\n")
    for _ in range(2):
        leanfed.resume(folder.path)
        assert [event["event"] for event in folder.read_events()] == words


def test_what_an_interrupted_save_left_is_swept_when_the_run_is_taken_up(settings: Settings, tmp_path: Path) -> None:
    leanfed.run(settings, tmp_path / "whole")
    names = {path.name for path in (tmp_path / "whole" / "checkpoint").iterdir()}
    with pytest.raises(Stop):
        leanfed.run(settings, tmp_path / "run", listen=stop_after(3))  # its last save is on disk
    (tmp_path / "run" / "checkpoint" / "state-000001.safetensors").write_bytes(b"of a save that did not sweep")
    leanfed.resume(tmp_path / "run")
    assert {path.name for path in (tmp_path / "run" / "checkpoint").iterdir()} == names


def test_files_that_cannot_be_removed_are_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    remove(tmp_path / "absent")
    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(StorageError, match=r"Cannot remove .*: Input/output error. Check"), new_run_folder(tmp_path):
        pass


def test_a_lock_that_cannot_be_signed_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "ftruncate", refuse)
    with pytest.raises(StorageError, match=r"Cannot write .*\.lock: No space left"), folder_lock(tmp_path):
        pass


def test_what_the_table_library_reports_is_explained(tmp_path: Path) -> None:
    def fail(partial: Path) -> None:
        raise pl.exceptions.ComputeError("parquet: underlying IO error: No space left on device")

    with pytest.raises(StorageError, match=r"Cannot write .*fleet.parquet: .*No space left"):
        write_frame(tmp_path / "fleet.parquet", fail)


@pytest.mark.parametrize("versions", [0.5, "0.2.0", ["0.2.0"]])
def test_versions_that_are_no_table_are_explained(versions: object, settings: Settings, tmp_path: Path) -> None:
    with pytest.raises(Stop):
        leanfed.run(settings, tmp_path / "run", listen=stop_after(1))
    environment = tmp_path / "run" / "environment.json"
    write_json(environment, {**read_json(environment), "versions": versions})
    with pytest.raises(StorageError, match=r"environment\.json is damaged: versions is .* Restore it from a copy"):
        leanfed.resume(tmp_path / "run")
    environment.unlink()
    assert leanfed.resume(tmp_path / "run").accuracy > 0
