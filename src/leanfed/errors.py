"""leanfed's exceptions; each has the exit code that the command line returns for it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class LeanfedError(Exception):
    """An error whose message explains what is wrong, the value, what is allowed, and what to do."""

    exit_code = 1
    silent = False  # whether somebody else says it, such as another process of the same run


class InputError(LeanfedError):
    """The user's input cannot be used as it is."""

    exit_code = 2


class MissingExtraError(InputError):
    """An optional dependency (an extra of the package) is needed and not installed."""


class SettingsError(InputError):
    """A settings file, key or value is wrong."""


class DataError(InputError):
    """A data set is missing, damaged or too small for the settings."""


class StorageError(InputError):
    """A file or folder cannot be read or written."""


class BusyError(InputError):
    """Another process holds the run folder."""


class InfeasibleError(LeanfedError):
    """No plan satisfies the limits."""

    exit_code = 3


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint naming the known word closest to `word`, or all known words when none is close."""
    options = sorted(known)
    close = difflib.get_close_matches(word, options, n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(options)}."


def first_line(error: BaseException) -> str:
    """What an error of a library says, in one line; its name where it says nothing.

    >>> first_line(ValueError()), first_line(OSError("no route\\nto host"))
    ('ValueError', 'no route')
    """
    return (str(error).strip() or type(error).__name__).splitlines()[0]
