"""Lightweight personalised federated learning for the mobile edge."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import Any

__version__ = version("leanfed")

# Public names, resolved on first use so that `import leanfed` stays light (no torch).
_PUBLIC = {
    "Problem": "leanfed.allocation.problem",
    "Run": "leanfed.experiments.build",
    "Settings": "leanfed.experiments.settings",
    "add_images": "leanfed.tasks.own",
    "add_model": "leanfed.tasks.own",
    "add_parquet": "leanfed.tasks.own",
    "plan": "leanfed.allocation.plan",
    "resume": "leanfed.experiments.build",
    "run": "leanfed.experiments.build",
}

__all__ = ["__version__", *sorted(_PUBLIC)]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'leanfed' has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)
