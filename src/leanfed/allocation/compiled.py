"""One way to compile the hot loops: cached on disk, keyed by the text of every file that holds compiled code."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., object])

_HERE = Path(__file__).parent
_SOURCES = ("compiled.py", "curves.py", "branches.py", "client.py", "price.py", "../wireless/rate.py")


def _fingerprint() -> str:
    """A short digest of all compiled sources.

    Numba looks only at the file of the function it loads, so a change in a file that it calls would go unseen.
    """
    digest = hashlib.sha256()
    for name in _SOURCES:
        digest.update((_HERE / name).read_bytes())
    return digest.hexdigest()[:16]


@contextmanager
def _cache_folder(folder: str) -> Iterator[None]:
    """Point Numba's cache at `folder` while a function is being declared."""
    settings: Any = numba.config
    before = settings.CACHE_DIR
    settings.CACHE_DIR = folder
    try:
        yield
    finally:
        settings.CACHE_DIR = before


_FOLDER = str(_HERE / "__pycache__" / f"numba-{_fingerprint()}")


def compiled(function: Function) -> Function:
    """Compile at the first call, or load what an earlier process compiled; 1/0 is inf as in NumPy, no lock is held."""
    with _cache_folder(_FOLDER):
        return cast(Function, numba.njit(cache=True, nogil=True, error_model="numpy")(function))
