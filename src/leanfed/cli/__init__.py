"""The command line: one file a verb, what it shows beside it."""

from leanfed.cli.app import app, main

__all__ = ["app", "main"]
