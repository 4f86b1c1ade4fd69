"""Running the command line as a user does."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from leanfed.cli import main

SETTINGS = """
name = "small"
seed = 5
rounds = 6

[task.partition]
kind = "class"
classes_per_client = 2
clients = 6

[algorithm]
name = "flpdsp"
k = 0.1
r = 0.5

[algorithm.sparsify]
error_feedback = true

[participation]
fraction = 0.7

[training]
momentum = 0.5

[evaluation]
every = 2
per_client = true
"""


@dataclass(frozen=True)
class Ended:
    """How a call of the command line ended."""

    returncode: int
    stdout: str
    stderr: str


Leanfed = Callable[..., Ended]


@pytest.fixture
def settings_file(tmp_path: Path) -> Path:
    """A short run that uses memories, partial participation and per-client evaluation."""
    file = tmp_path / "small.toml"
    file.write_text(SETTINGS)
    return file


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures are made but not drawn, for tests that look at their names and at the tables beside them."""
    monkeypatch.setattr(
        "matplotlib.figure.Figure.savefig", lambda figure, path, **_: Path(path).write_bytes(b"undrawn")
    )


@pytest.fixture
def leanfed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Leanfed:
    """Call the command line in an empty folder, in this process: starting Python anew costs seconds."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def call(*arguments: str | Path) -> Ended:
        monkeypatch.setattr(sys, "argv", ["leanfed", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
        return Ended(code, *capsys.readouterr())

    return call
