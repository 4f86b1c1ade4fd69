"""Clients that draw their own samples: any number, in the mix that was asked for, and the same at every asking."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from leanfed.errors import DataError, SettingsError
from leanfed.runs.settings import Settings
from leanfed.tasks.drawn import draw_partition
from leanfed.tasks.partition import Partition, PartitionSettings

TRAIN, TEST = np.repeat(np.arange(10), 60), np.repeat(np.arange(10), 10)


def drawn(seed: int = 0, **settings: Any) -> Partition:
    given = {"kind": "drawn", "clients": 1_000_000, "samples_per_client": 30, **settings}
    return draw_partition(TRAIN, TEST, 10, PartitionSettings.model_validate(given), seed)


def test_a_million_clients_are_an_index_that_holds_nothing() -> None:
    partition = drawn(classes_per_client=2)
    assert len(partition.train) == 1_000_000
    assert set(partition.sizes) == {30}
    assert set(partition.test_sizes) == {5}  # a sixth, as the data has it
    assert partition.gamma[7] == pytest.approx(1e-6)
    for client in (0, 999_999):
        rows = partition.train[client]
        assert len(np.unique(rows)) == 30
        assert len(set(TRAIN[rows])) == 2
        assert set(TEST[partition.test[client]]) <= set(TRAIN[rows])
    with pytest.raises(IndexError):
        partition.train[1_000_000]


def test_rows_do_not_depend_on_who_was_asked_before() -> None:
    first, second = drawn(alpha=0.5), drawn(alpha=0.5)
    backwards = [second.train[client] for client in (9, 4, 0)][::-1]
    assert all(np.array_equal(first.train[c], rows) for c, rows in zip((0, 4, 9), backwards, strict=True))
    assert not np.array_equal(first.train[0], first.train[1])
    assert not np.array_equal(first.train[0], drawn(seed=1, alpha=0.5).train[0])
    assert first.train.digest() == second.train.digest() != drawn(alpha=0.4).train.digest()  # type: ignore[attr-defined]


@given(
    client=st.integers(0, 999),
    samples=st.integers(2, 60),
    mix=st.one_of(
        st.just({}),
        st.builds(lambda m: {"classes_per_client": m}, st.integers(1, 10)),
        st.builds(lambda a: {"alpha": a}, st.floats(0.001, 100.0)),
    ),
)
def test_every_draw_has_its_size_and_no_row_twice(client: int, samples: int, mix: dict[str, Any]) -> None:
    partition = drawn(clients=1_000, samples_per_client=samples, **mix)
    rows = partition.train[client]
    assert len(rows) == samples == len(np.unique(rows))
    assert (np.diff(rows) > 0).all()
    held = len(set(TRAIN[rows]))
    assert held <= mix.get("classes_per_client", 10)
    assert len(partition.test[client]) == max(1, round(samples / 6))


def test_the_mix_follows_alpha() -> None:
    def largest_share(alpha: float) -> float:
        partition = drawn(alpha=alpha)
        return float(np.mean([np.bincount(TRAIN[partition.train[n]]).max() / 30 for n in range(200)]))

    assert largest_share(100.0) < 0.25 < 0.7 < largest_share(0.05)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"samples_per_client": 61, "classes_per_client": 1},
            "draws 61 train samples, but its classes may have only 60",
        ),
        ({"classes_per_client": 11}, "more than the 10 classes"),
    ],
)
def test_more_than_there_is_cannot_be_drawn(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match=words):
        drawn(**settings)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"kind": "drawn"}, "'drawn' partition needs 'samples_per_client'"),
        ({"kind": "iid", "samples_per_client": 5}, "'samples_per_client' belongs to a 'drawn' partition"),
        ({"kind": "drawn", "samples_per_client": 5, "alpha": 1.0, "classes_per_client": 2}, "leave out one"),
        ({"kind": "drawn", "samples_per_client": 5, "clients": 0}, "needs a number of clients"),
    ],
)
def test_settings_that_do_not_fit_are_refused(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        PartitionSettings.model_validate(values)


@pytest.mark.parametrize("kind", ["label-flip", "backdoor"])
def test_samples_of_several_clients_cannot_be_poisoned_by_one(kind: str) -> None:
    values = {
        "task": {"partition": {"kind": "drawn", "samples_per_client": 5}},
        "adversary": {"kind": kind, "share": 0.2},
    }
    with pytest.raises(SettingsError, match="they are others' too"):
        Settings.from_values(values)


def test_labels_that_are_no_classes_are_drawn_alike() -> None:
    settings = PartitionSettings(kind="drawn", clients=5, samples_per_client=30)
    held, tests = np.zeros(600, dtype=np.int64), np.zeros(100, dtype=np.int64)
    assert len(draw_partition(held, tests, 1, settings, 0).train[3]) == 30
    with pytest.raises(DataError, match="these labels are none"):
        draw_partition(held, tests, 1, settings.model_copy(update={"alpha": 0.1}), 0)
