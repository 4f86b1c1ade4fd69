"""Compiled loops and the same loops run by Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leanfed.allocation import curves
from leanfed.allocation.compiled import _Loop, interpreted
from leanfed.streams import stream

LOOPS = ("_bits_each", "_keep_rate_each", "_rate_each", "_share_each")


def arguments(name: str, seed: int) -> tuple[Any, ...]:
    """Values of every order of magnitude that a plan meets."""
    rng = stream(seed, name)
    share, band, snr = rng.uniform(0, 1, 50), 10 ** rng.uniform(4, 8, 50), 10 ** rng.uniform(-3, 6, 50)
    bits = np.full(50, 32.0)
    return {
        "_bits_each": (share, np.full(50, 50_692.0), bits, seed % 2),
        "_keep_rate_each": (40 * share, bits, seed % 2),
        "_rate_each": (share, band, snr),
        "_share_each": (10 ** rng.uniform(2, 9, 50), band, snr),
    }[name]


@pytest.mark.parametrize("name", LOOPS)
@given(seed=st.integers(0, 10_000))
def test_python_and_the_compiler_give_the_same_bits(name: str, seed: int) -> None:
    loop, given_arrays = getattr(curves, name).compiled, arguments(name, seed)
    with np.errstate(all="ignore"):
        assert interpreted(loop)(*given_arrays).tobytes() == loop(*given_arrays).tobytes()


def loop_of(function: Callable[[Any], Any]) -> tuple[_Loop, list[int]]:
    """A loop that counts how often its compiled form is called."""
    loop, calls = _Loop.__new__(_Loop), []

    class Compiled:
        overloads: tuple[()] = ()
        py_func = staticmethod(function)

        def __call__(self, first: Any) -> Any:
            calls.append(first.size)
            return first

    loop.compiled, loop._plain = Compiled(), None
    return loop, calls


def test_what_is_large_or_fails_in_python_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Loop, "left", 10)
    loop, calls = loop_of(lambda first: first + 1)
    assert loop(np.zeros(6)).tolist() == [1.0] * 6
    assert loop(np.zeros(6)).tolist() == [0.0] * 6  # 4 are left
    assert calls == [6]
    monkeypatch.setattr(_Loop, "left", 10)
    loop, calls = loop_of(lambda first: 1 / 0)
    assert loop(np.zeros(2)).tolist() == [0.0] * 2
    assert calls == [2]
