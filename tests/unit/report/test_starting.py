"""What the form may ask for, and what is left behind when it is refused."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import pytest

from leanfed.errors import InputError
from leanfed.report.live import starting
from leanfed.report.live.starting import RefusedError, Wanted, checked_settings


@pytest.mark.parametrize("key", ["run.track.csv", "run.track.mlflow", "radio.fleet_file", "task.table.file"])
def test_a_page_names_no_files(key: str, tmp_path: Path) -> None:
    wanted = Wanted(name="a", values={key: str(tmp_path / "theirs")})
    with pytest.raises(InputError, match=rf"{key} names files.*settings file"):
        checked_settings(tmp_path, wanted, None)


def test_nothing_is_left_of_refused_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(RefusedError, match="rounds"):
        checked_settings(tmp_path, Wanted(name="a", values={"rounds": -1}), None)
    assert list(tmp_path.iterdir()) == []


def test_a_check_that_takes_too_long_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def late(*_: object, **__: object) -> None:
        raise subprocess.TimeoutExpired("leanfed", 1)

    monkeypatch.setattr(starting.subprocess, "run", late)
    with pytest.raises(RefusedError, match="longer than 300 s"):
        checked_settings(tmp_path, Wanted(name="a", values={}), None)
