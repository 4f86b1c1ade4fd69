"""Lightweight personalised federated learning for the mobile edge."""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING

# A client's bits must not depend on who is computed beside it. With AVX-512 Intel's library takes other paths for other
# numbers of rows, unless it is asked not to, before it is first called; elsewhere this changes nothing.
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")

# Public names, resolved on first use so that `import leanfed` stays light (no torch).
_PUBLIC = {
    "Problem": "leanfed.allocation.problem",
    "Run": "leanfed.runs.outcome",
    "Settings": "leanfed.runs.settings",
    "add_arrays": "leanfed.tasks.user_arrays",
    "add_images": "leanfed.tasks.user_data",
    "add_loss": "leanfed.tasks.losses",
    "add_method": "leanfed.algorithms.own",
    "add_model": "leanfed.tasks.user_data",
    "add_parquet": "leanfed.tasks.user_data",
    "plan": "leanfed.allocation.plan",
    "read": "leanfed.runs.read",
    "resume": "leanfed.runs.carry_out",
    "run": "leanfed.runs.carry_out",
    "runs": "leanfed.runs.read",
}

__all__ = ["__version__", *sorted(_PUBLIC)]

if TYPE_CHECKING:  # what editors and type checkers see; a test compares it with the names above
    __version__: str
    from leanfed.algorithms.own import add_method as add_method
    from leanfed.allocation.plan import plan as plan
    from leanfed.allocation.problem import Problem as Problem
    from leanfed.runs.carry_out import resume as resume
    from leanfed.runs.carry_out import run as run
    from leanfed.runs.outcome import Run as Run
    from leanfed.runs.read import read as read
    from leanfed.runs.read import runs as runs
    from leanfed.runs.settings import Settings as Settings
    from leanfed.tasks.losses import add_loss as add_loss
    from leanfed.tasks.user_arrays import add_arrays as add_arrays
    from leanfed.tasks.user_data import add_images as add_images
    from leanfed.tasks.user_data import add_model as add_model
    from leanfed.tasks.user_data import add_parquet as add_parquet
else:

    def __getattr__(name: str) -> object:
        if name == "__version__":
            return import_module("importlib.metadata").version("leanfed")
        if name not in _PUBLIC:
            raise AttributeError(f"module 'leanfed' has no attribute {name!r}")
        if name == "runs":  # the room of that name, which answers to calls
            return import_module("leanfed.runs")
        return getattr(import_module(_PUBLIC[name]), name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *_PUBLIC})
