"""Python processes that never look for modules in the current folder.

`python -m` and `python -c` put the current folder before the standard library, so a random.py or click.py that happens
to lie there, or that somebody put there, would be run. Every process that leanfed starts is safe from that (`-P`), and
so are those that it starts in turn (`PYTHONSAFEPATH`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

SAFE_PATH = {"PYTHONSAFEPATH": "1"}  # what -P does, for a whole tree of processes


def command(module: str, *words: str) -> list[str]:
    """The command line that runs a module of ours as a program."""
    return [sys.executable, "-P", "-m", module, *words]


def environment(base: Mapping[str, str] | None = None) -> dict[str, str]:
    """`base`, else this process's environment, for children whose own children are safe too."""
    return {**(os.environ if base is None else base), **SAFE_PATH}


@contextmanager
def safe_children() -> Iterator[None]:
    """Within the block, processes that a library starts (multiprocessing) are safe too."""
    before = {name: os.environ.get(name) for name in SAFE_PATH}
    os.environ.update(SAFE_PATH)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def leave_current_folder() -> None:
    """Undo what `python -m` did for this process, unless leanfed itself was found in the current folder."""
    here, ours = str(Path.cwd()), str(Path(__file__).resolve().parents[1])
    if not sys.flags.safe_path and sys.path and sys.path[0] in ("", here) and ours != here:
        del sys.path[0]
