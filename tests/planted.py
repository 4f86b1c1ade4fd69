"""Modules planted in a folder that write down that they were run."""

from __future__ import annotations

from pathlib import Path

NAMES = ("random", "click", "multiprocessing", "pickle", "socket", "tempfile", "typer", "numpy")
HOSTILE = "open({mark!r}, 'a').write(__name__ + '\\n')\nraise SystemExit(7)\n"
MARK = "executed.txt"


def plant(folder: Path) -> Path:
    """Put the files into a folder; returns it."""
    for name in NAMES:
        (folder / f"{name}.py").write_text(HOSTILE.format(mark=str(folder / MARK)))
    return folder


def executed(folder: Path) -> list[str]:
    """Which of them were run, in order."""
    mark = folder / MARK
    return mark.read_text().split() if mark.is_file() else []
