"""What a run folder says of the versions, the machine and the command that made it."""

from __future__ import annotations

import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from leanfed.results import FORMAT

SECRET = ("--token",)  # options whose value stays out of the folder
TRACKED = ("leanfed", "torch", "numpy", "polars", "safetensors")


def environment() -> dict[str, Any]:
    """Versions and machine, for later readers of the results."""
    return {
        "format": FORMAT,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": dict(_versions()),
        "commit": _commit(),
        "command": _command(sys.argv),
    }


@cache
def _versions() -> dict[str, str]:
    """Of the packages that results may depend on; reading them takes a tenth of a short run."""
    return {name: version(name) for name in TRACKED}


def _command(arguments: Sequence[str]) -> str:
    """The command line as it can be given again, without the values of secrets: the folder may be shown to anyone."""
    program = Path(arguments[0])
    own = program.parts[-3:-1] == ("leanfed", "cli")  # python -m leanfed.cli
    words = ["leanfed" if own else program.name, *arguments[1:]]
    for place, word in enumerate(words):
        option, equals, _ = word.partition("=")
        if option in SECRET and equals:
            words[place] = f"{option}=..."
        elif option in SECRET and place + 1 < len(words):
            words[place + 1] = "..."
    return shlex.join(words)


def _commit() -> str | None:
    """The commit of the source tree, when leanfed runs from one."""
    here = Path(__file__).resolve().parent
    try:
        found = subprocess.run(
            ["git", "-C", str(here), "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip()
