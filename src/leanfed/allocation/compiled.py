"""One way to compile the hot loops: cached on disk, keyed by the text of every file that holds compiled code.

A small node reads the settings of this room and never plans: it does without numba (release/node.txt).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType
from typing import Any, NoReturn, TypeVar, cast

import numpy as np

from leanfed.errors import InputError

numba: Any = import_module("numba") if find_spec("numba") else None
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
    if numba is None:
        return _refusing(function)
    with _cache_folder(_FOLDER):
        return cast(Function, numba.njit(cache=True, nogil=True, error_model="numpy")(function))


def _refusing(function: Function) -> Function:
    """In place of a compiled function where there is no compiler."""

    @wraps(function)
    def refuse(*given: object) -> NoReturn:
        raise InputError("Plans are computed by compiled code, but numba is not installed. Run: pip install numba")

    return cast(Function, refuse)


class _Loop:
    """A compiled loop over arrays, which Python itself runs as long as that is quicker than to load the compiler.

    One plan of the fast form for a hundred devices needs fewer evaluations than `EARLY`. Both give the same bits.
    """

    left = EARLY = 80_000  # evaluations of a process without the compiler

    def __init__(self, function: Any) -> None:
        self.compiled = compiled(function)
        self._plain: Any = None

    def __call__(self, first: Any, *rest: Any) -> Any:
        if self.compiled.overloads or first.size > _Loop.left:
            return self.compiled(first, *rest)
        _Loop.left -= first.size
        self._plain = self._plain or interpreted(self.compiled)
        try:
            with np.errstate(all="ignore"):
                return self._plain(first, *rest)
        except (ArithmeticError, ValueError):  # where compiled code has inf or NaN
            return self.compiled(first, *rest)


def over_arrays(function: Function) -> Function:
    """Compile a loop over arrays, when there is enough for it to do."""
    return _refusing(function) if numba is None else cast(Function, _Loop(function))


def interpreted(dispatcher: Any) -> Any:
    """A compiled function as Python runs it, with the compiled functions that it calls."""
    plain = dispatcher.py_func
    called = {name: plain.__globals__[name] for name in plain.__code__.co_names if name in plain.__globals__}
    inner = {name: interpreted(value) for name, value in called.items() if hasattr(value, "py_func")}
    return FunctionType(plain.__code__, {**plain.__globals__, **inner}, plain.__name__)
