"""Lightweight personalised federated learning for the mobile edge."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import Any

__version__ = version("leanfed")

# Public names, resolved on first use so that `import leanfed` stays light (no torch).
_PUBLIC = {
    "Problem": "leanfed.allocation.problem",
    "Run": "leanfed.runs.build",
    "Settings": "leanfed.runs.settings",
    "add_arrays": "leanfed.tasks.user_arrays",
    "add_images": "leanfed.tasks.user_data",
    "add_loss": "leanfed.tasks.losses",
    "add_model": "leanfed.tasks.user_data",
    "add_parquet": "leanfed.tasks.user_data",
    "plan": "leanfed.allocation.plan",
    "resume": "leanfed.runs.build",
    "run": "leanfed.runs.build",
}

__all__ = ["__version__", *sorted(_PUBLIC)]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'leanfed' has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)
