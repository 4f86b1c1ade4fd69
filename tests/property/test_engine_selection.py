"""The engine's selection is compression.selection's, whatever the shapes, ties and rates."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from leanfed.compression import exact
from leanfed.compression.kernel_picks import KernelPicks
from leanfed.compression.picks import NumpyPicks
from leanfed.compression.selection import largest

BOUND = 2.0**100
SOME = st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0**-140, 0.5])  # ties, both zeros, a subnormal
FLOATS = st.floats(-BOUND, BOUND, width=32) | SOME


@st.composite
def matrices(draw):
    """Rows of float32 and how many entries of each are kept, from none to more than there are."""
    rows, size = draw(st.integers(1, 4)), draw(st.integers(1, 60))
    values = draw(arrays(np.float32, (rows, size), elements=FLOATS))
    counts = draw(st.lists(st.integers(0, size + 2), min_size=rows, max_size=rows))
    return torch.from_numpy(values), np.array(counts)


@pytest.fixture(params=[KernelPicks, NumpyPicks], ids=["kernels", "numpy"], scope="module")
def picks(request):
    return request.param(64) if request.param is KernelPicks else request.param()


@settings(deadline=None)  # the first call may compile
@given(case=matrices())
def test_masks_mark_the_largest(picks, case):
    values, counts = case
    chosen = picks.largest(values, counts, values.shape[1])
    for place, (row, scores, count) in enumerate(zip(chosen.mask().numpy(), values.abs().numpy(), counts, strict=True)):
        assert np.array_equal(np.flatnonzero(row), largest(scores, count))
        assert np.array_equal(chosen.positions(place).numpy(), largest(scores, count))
        assert set(row.tolist()) <= {0.0, 1.0}


@settings(deadline=None)
@given(case=matrices(), extra=st.integers(0, 3))
def test_only_the_largest_are_added_and_the_rest_remembered(picks, case, extra):
    values, counts = case
    size = values.shape[1]
    wide = torch.cat([values, torch.full((len(values), extra), 2 * BOUND)], 1)  # the private part is not looked at
    gamma, total = np.linspace(0.5, 1, len(values)), exact.zeros(size)
    chosen = picks.largest(wide, counts, size)
    chosen.add_to(total, gamma)
    rest = chosen.rest()
    expected = np.zeros(size)
    for row, left, count, weight in zip(values.numpy(), rest.numpy(), counts, gamma, strict=True):
        kept = largest(np.abs(row), count)
        expected[kept] += weight * row[kept].astype(np.float64)
        assert not left[kept].any()
        others = np.setdiff1d(np.arange(size), kept)
        assert np.array_equal(left[others], row[others])
    scale = np.abs(values.numpy()).astype(np.float64).sum(0)  # beyond 2^11 the grid is coarser, as the number is
    assert np.all(np.abs(total.numpy() - expected) <= 1e-15 * scale + 4 * 2.0**-40)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), size=st.integers(100, 3000), levels=st.integers(1, 50), rate=st.floats(0, 1))
def test_long_rows_with_few_levels_keep_an_exact_count(seed, size, levels, rate):
    rng = np.random.default_rng(seed)
    values = torch.from_numpy(rng.integers(-levels, levels + 1, (2, size)).astype(np.float32))
    counts = np.array([int(rate * size), size - int(rate * size)])
    ours, theirs = (picks.largest(values, counts, size).mask() for picks in (KernelPicks(size), NumpyPicks()))
    assert torch.equal(ours, theirs)
    assert ours.sum(1).tolist() == counts.tolist()
