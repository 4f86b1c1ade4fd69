"""What several seeds say, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leanfed.runs.statistics import Spread, flip_test, mean_ranks, paired

VALUES = st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=8)


def test_an_interval_by_hand() -> None:
    spread = Spread.of([0.8, 0.9, 1.0])
    assert spread.mean == pytest.approx(0.9)
    assert spread.deviation == pytest.approx(0.1)
    assert spread.half == pytest.approx(4.303 * 0.1 / math.sqrt(3))
    assert math.isnan(Spread.of([1.0]).half)
    assert Spread.of([0.0, 1.0] * 50).half == pytest.approx(1.96 * np.std([0, 1] * 50, ddof=1) / 10)


def test_differences_are_of_the_seeds_that_both_have() -> None:
    found = paired({0: 0.9, 1: 0.8, 2: 0.7}, {1: 0.6, 2: 0.6, 3: 0.0})
    assert found is not None
    assert (found.difference.count, found.difference.mean) == (2, pytest.approx(0.15))
    assert found.p == 0.5  # both signs alike: 2 of 4
    assert paired({0: 1.0}, {1: 1.0}) is None


def test_six_seeds_are_the_fewest_that_can_be_significant() -> None:
    assert [flip_test(np.ones(n)) < 0.05 for n in (5, 6)] == [False, True]
    assert flip_test(np.array([1.0, -1.0])) == 1.0
    assert flip_test(np.ones(20)) < 0.01  # drawn


@given(VALUES)
def test_a_test_does_not_depend_on_the_sign_and_is_a_probability(values: list[float]) -> None:
    gaps = np.array(values)
    assert flip_test(gaps) == flip_test(-gaps)
    assert 0 < flip_test(gaps) <= 1


def test_ranks_are_over_whole_blocks_only() -> None:
    blocks = [{"a": 3.0, "b": 1.0, "c": 1.0}, {"a": 1.0, "b": 2.0}]
    assert mean_ranks(blocks, rising=True) == {"a": 1.0, "b": 2.5, "c": 2.5}
    assert mean_ranks(blocks, rising=False) == {"a": 3.0, "b": 1.5, "c": 1.5}
    assert mean_ranks([], rising=True) == {}
