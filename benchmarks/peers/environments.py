"""A virtual environment for every contender that is installed, kept while its requirements stay the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from benchmarks.peers.field import Contender

INSTALLED = "installed.txt"  # the requirements that an environment was made from


class NotRun(Exception):
    """Why a contender has no number."""


def cache_folder() -> Path:
    """Where environments go unless told otherwise."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "leanfed-peers"


def interpreter(contender: Contender, envs: Path) -> Path:
    """The Python of a contender, whose environment is made first if need be."""
    if not contender.installed:
        return Path(sys.executable)
    folder = envs / contender.name
    python, done = folder / "bin" / "python", folder / INSTALLED
    wanted = contender.requirements.read_text(encoding="utf-8")
    if not done.is_file() or done.read_text(encoding="utf-8") != wanted:
        done.unlink(missing_ok=True)
        print(f"installing {contender.name} into {folder}", file=sys.stderr, flush=True)
        _call(sys.executable, "-m", "venv", "--clear", str(folder))
        _call(str(python), "-m", "pip", "install", "--quiet", "-r", str(contender.requirements))
        done.write_text(wanted, encoding="utf-8")
    return python


def _call(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
        raise NotRun(f"cannot be installed: {' '.join(lines[-1:]) or f'exit code {done.returncode}'}")
