"""What the largest entries hold, against a sort."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from leanfed.compression.kept_shares import RATES, SAMPLE, kept_shares
from leanfed.streams import stream


def by_sorting(row: torch.Tensor) -> np.ndarray:
    energy = np.sort(np.square(row.numpy(), dtype=np.float64))[::-1].cumsum()
    return np.interp(np.multiply(RATES, len(row)), np.arange(len(row) + 1), np.r_[0.0, energy]) / energy[-1]


@given(seed=st.integers(0, 999), size=st.integers(1, 2 * SAMPLE - 1), power=st.integers(1, 5))
def test_shares_are_those_of_a_sort_or_a_little_less(seed: int, size: int, power: int) -> None:
    row = torch.from_numpy(stream(seed, "row").normal(size=size).astype(np.float32)) ** power
    found, exact = kept_shares(row.unsqueeze(0), size)[0], by_sorting(row)
    assert (found <= exact + 1e-9).all()
    assert (found >= exact - 0.12).all()


def test_long_rows_are_sampled() -> None:
    rows = torch.from_numpy(stream(1, "row").normal(size=(4, 20 * SAMPLE + 7)).astype(np.float32)) ** 3
    exact = np.mean([by_sorting(row) for row in rows], axis=0)
    np.testing.assert_allclose(kept_shares(rows, rows.shape[1]).mean(0), exact, atol=0.03)


def test_only_the_shared_entries_count_and_zeros_lose_nothing() -> None:
    row = torch.zeros(1, 100)
    assert kept_shares(row, 100).tolist() == [[1.0] * len(RATES)]
    row[0, 3], row[0, 99] = 2.0, 1e6
    assert kept_shares(row, 50)[0, -1] == pytest.approx(1.0)
