"""Invariants over many shapes, ties and rates."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from leanfed.algorithms.contract import Cohort, Training
from leanfed.algorithms.uploads import Upload, sparsified
from leanfed.compression.picks import NumpyPicks
from leanfed.compression.selection import drawn, largest
from leanfed.compression.sparsify import Sparsification
from leanfed.records import kept_count
from leanfed.streams import stream
from leanfed.tasks.partition import PartitionSettings, make_partition, matching_counts

# Few different values make many ties.
VECTORS = arrays(np.float32, st.integers(1, 60), elements=st.sampled_from([0.0, 0.5, -0.5, 1.0, -2.0, 3.5]))
RATES = st.floats(0, 1)


@given(VECTORS, st.integers(0, 70))
def test_largest_is_a_stable_sort_cut_off(values: np.ndarray, count: int) -> None:
    magnitudes = np.abs(values)
    expected = np.sort(np.argsort(-magnitudes, kind="stable")[:count])
    assert largest(magnitudes, count).tolist() == expected.tolist()


@given(st.integers(1, 100), st.integers(0, 120), st.integers(0, 5))
def test_a_draw_has_the_exact_count_and_no_repeats(size: int, count: int, seed: int) -> None:
    positions = drawn(size, count, stream(seed, "d"))
    assert len(positions) == min(size, count)
    assert (np.diff(positions) > 0).all()


def sent(gradient: np.ndarray, rate: float, **settings: object) -> tuple[Upload, dict[str, torch.Tensor]]:
    """What one client sends of a gradient, and what it remembers."""
    rows, size, one = torch.from_numpy(gradient.copy()).unsqueeze(0), len(gradient), np.ones(1)
    memory = {"residual": torch.zeros(1, size)}
    cohort = Cohort((0,), 0, 0, Training(), rate * one, one, torch.empty(1, 0), memory, [], 1)
    uploads, kept = sparsified(rows, size, cohort, NumpyPicks(), Sparsification.model_validate(settings))
    (upload,) = uploads
    return upload, kept


@given(VECTORS, RATES, st.sampled_from(["topk", "random"]))
def test_sparsification_splits_a_gradient_exactly(gradient: np.ndarray, rate: float, select: str) -> None:
    upload, kept = sent(gradient, rate, select=select, error_feedback=True)
    assert upload.entries == kept_count(rate, len(gradient))
    rest = kept["residual"][0]
    assert not rest[slice(None) if upload.positions is None else upload.positions].any()
    assert np.array_equal(rest + upload.dense(), gradient)


@given(VECTORS, RATES)
def test_top_k_keeps_at_least_k_of_the_squared_norm(gradient: np.ndarray, rate: float) -> None:
    # Lemma 1 has equality for random masks; the largest entries can only keep more.
    values = sent(gradient, rate)[0].values.numpy()
    share = kept_count(rate, len(gradient)) / len(gradient)
    assert np.sum(values.astype(float) ** 2) >= share * np.sum(gradient.astype(float) ** 2) - 1e-6


PARTITIONS = st.one_of(
    st.builds(
        lambda c, m: {"kind": "class", "clients": c, "classes_per_client": m}, st.integers(4, 12), st.integers(1, 4)
    ),
    st.builds(
        lambda c, a, capped: {"kind": "dirichlet", "clients": c, "alpha": a, "capped": capped},
        st.integers(1, 12),
        st.floats(0.01, 50),
        st.booleans(),
    ),
    st.builds(lambda c: {"kind": "iid", "clients": c}, st.integers(1, 12)),
)


@settings(deadline=None)
@given(PARTITIONS, st.integers(0, 1000), st.integers(1, 5))
def test_a_partition_loses_nothing_gives_nothing_twice_and_leaves_nobody_out(
    chosen: dict[str, object], seed: int, minimum: int
) -> None:
    train = stream(seed, "labels").permutation(np.repeat(np.arange(4), [70, 60, 50, 40]))
    test = np.repeat(np.arange(4), [18, 15, 12, 10])
    made = make_partition(train, test, 4, PartitionSettings.model_validate({**chosen, "min_samples": minimum}), seed)
    assert sorted(np.concatenate(made.train).tolist()) == list(range(len(train)))
    assert sorted(np.concatenate(made.test).tolist()) == list(range(len(test)))
    assert made.sizes.min() >= minimum
    assert min(len(rows) for rows in made.test) >= 1
    assert np.isclose(made.gamma.sum(), 1)


@given(arrays(np.int64, st.tuples(st.integers(1, 8), st.integers(1, 5)), elements=st.integers(1, 300)))
def test_test_mixes_match_training_mixes_to_within_a_sample(counts: np.ndarray) -> None:
    available = counts.sum(axis=0) // 2 + len(counts)
    dealt = matching_counts(counts, available)
    assert (dealt.sum(axis=0) == available).all()
    exact = counts * available / counts.sum(axis=0)
    if (np.floor(exact).sum(axis=1) > 0).all():  # nobody had to be given a sample out of turn
        assert (np.abs(dealt - exact) < 1).all()
