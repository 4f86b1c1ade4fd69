"""Whole numbers modulo 2^bits: the grid by hand, half a step of error, and packing that loses nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leanfed.compression import ring
from leanfed.compression.frame import FrameError
from leanfed.compression.ring import Grid, centred, packed, packed_bytes, unpacked, wrapped
from leanfed.compression.values import NotFiniteError


def test_a_grid_by_hand() -> None:
    """Eight bits up to 4: steps of 1/32, whole numbers from -127 to 127."""
    grid = Grid.of(8, 3.0)
    assert (grid.reach, grid.step) == (4.0, 1 / 32)
    whole, cut = grid.rounded(np.array([0.0, 1.0, -0.5, 0.02, 3.97, 4.0, -100.0]))
    assert whole.tolist() == [0, 32, -16, 1, 127, 127, -127]
    assert cut == 2
    assert grid.values(whole[:3]).tolist() == [0.0, 1.0, -0.5]


@given(st.lists(st.floats(-15.9, 15.9), max_size=30), st.sampled_from([16, 32]))
def test_values_within_reach_are_off_by_half_a_step_at_most(values: list[float], bits: int) -> None:
    grid = Grid.of(bits, 16.0)
    whole, cut = grid.rounded(np.array(values))
    assert cut == 0
    assert np.all(np.abs(grid.values(whole) - values) <= grid.step / 2)


def test_what_is_no_number_is_refused() -> None:
    with pytest.raises(NotFiniteError, match="not finite"):
        Grid.of(16, 1.0).rounded(np.array([1.0, np.nan]))


def test_three_numbers_of_three_bits_by_hand() -> None:
    """1, 6 and 3, lowest bit first: 100 011 11|0, that is 0xf1 and 0x00."""
    assert packed(np.array([1, 6, 3], dtype=np.uint64), 3) == bytes([0b11110001, 0])
    assert packed_bytes(3, 3) == 2


@given(st.integers(1, 63), st.lists(st.integers(0, 2**63), max_size=70), st.sampled_from([8, 64, 1 << 16]))
def test_packing_loses_nothing(bits: int, numbers: list[int], chunk: int) -> None:
    whole = wrapped(np.array(numbers, dtype=np.uint64), bits)
    before, ring.CHUNK = ring.CHUNK, chunk  # type: ignore[misc]
    try:
        content = packed(whole, bits)
        assert len(content) == packed_bytes(len(whole), bits)
        assert unpacked(content, len(whole), bits).tolist() == whole.tolist()
    finally:
        ring.CHUNK = before  # type: ignore[misc]


def test_another_length_is_refused() -> None:
    with pytest.raises(FrameError, match="3 bytes where 3 numbers of 3 bits"):
        unpacked(b"abc", 3, 3)


@given(st.lists(st.integers(-(2**20), 2**20 - 1), min_size=1, max_size=20))
def test_a_sum_modulo_the_ring_is_the_sum_where_it_fits(numbers: list[int]) -> None:
    bits = 21 + (len(numbers) - 1).bit_length()
    total = np.zeros(1, dtype=np.uint64)
    for one in numbers:
        total += wrapped(np.array([one]), bits)
    assert centred(total, bits).tolist() == [sum(numbers)]
