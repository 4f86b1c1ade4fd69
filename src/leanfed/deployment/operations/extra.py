"""Flower is an extra: say how to get it where it is missing."""

from __future__ import annotations

from importlib.util import find_spec

from leanfed.errors import MissingExtraError


def require_flower() -> None:
    """Refuse to go on without flwr, naming the command that installs it."""
    if find_spec("flwr") is None:
        raise MissingExtraError("Real fleets run on Flower, which is not installed. Run: pip install 'leanfed[flower]'")
