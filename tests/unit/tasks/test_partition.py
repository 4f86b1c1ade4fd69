"""Splits by hand, and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from leanfed.errors import DataError, SettingsError
from leanfed.streams import stream
from leanfed.tasks.partition import (
    Partition,
    PartitionSettings,
    draw_classes,
    hold_back,
    make_partition,
    matching_counts,
)
from leanfed.tasks.task import TaskSettings, build_task, draw_rows, epoch_rows

TRAIN = np.repeat(np.arange(10), 60)
TEST = np.repeat(np.arange(10), 10)


def split(seed: int = 0, **settings: object) -> tuple[list[list[int]], list[list[int]]]:
    """(clients, classes) counts of train and test."""
    made = make_partition(TRAIN, TEST, 10, PartitionSettings.model_validate(settings), seed)
    counts = [
        [np.bincount(labels[rows], minlength=10).tolist() for rows in part]
        for labels, part in ((TRAIN, made.train), (TEST, made.test))
    ]
    return counts[0], counts[1]


def test_class_m_gives_each_client_m_classes() -> None:
    train, _ = split(kind="class", classes_per_client=3, clients=20)
    assert all(np.count_nonzero(row) == 3 for row in train)


def test_a_class_is_dealt_evenly_to_its_owners() -> None:
    train = np.array(split(kind="class", classes_per_client=2, clients=20)[0])
    for label in range(10):
        held = train[:, label][train[:, label] > 0]
        assert held.max() - held.min() <= 1


def test_every_class_has_an_owner_even_when_nobody_drew_it() -> None:
    for seed in range(50):
        held = draw_classes(5, 2, 10, stream(seed, "x"))  # ten places for ten classes: none to spare
        assert held.any(axis=0).all()
        assert (held.sum(axis=1) == 2).all()


def test_a_smaller_alpha_is_less_alike() -> None:
    def spread(alpha: float) -> float:
        train = np.array(split(kind="dirichlet", alpha=alpha, clients=10)[0])
        return float((train / train.sum(axis=1, keepdims=True)).std(axis=0).mean())

    assert spread(0.1) > spread(1.0) > spread(100.0)


def shares_of_largest_class(capped: bool) -> float:
    """What naming every client's largest class would get right, over twenty draws of 100 clients."""
    labels, tests = np.repeat(np.arange(10), 600), np.repeat(np.arange(10), 60)
    settings = PartitionSettings(kind="dirichlet", alpha=0.1, clients=100, capped=capped, min_samples=1)
    draws = [make_partition(labels, tests, 10, settings, seed).train for seed in range(20)]
    return float(np.mean([sum(np.bincount(labels[rows]).max() for rows in draw) / len(labels) for draw in draws]))


def test_a_cap_on_sizes_makes_clients_less_alike_than_the_plain_draw() -> None:
    # The plain draw's largest class has 0.653 of the samples: 2,000 draws of ten Dirichlet(0.1) over 100 clients.
    assert shares_of_largest_class(capped=False) == pytest.approx(0.653, abs=0.02)
    assert shares_of_largest_class(capped=True) > 0.75


def test_a_capped_client_gets_nothing_once_it_has_the_average() -> None:
    train = np.array(split(kind="dirichlet", alpha=0.1, clients=10, min_samples=1)[0])
    before = np.cumsum(train, axis=1) - train  # what a client had when each class was dealt
    assert (train[before >= len(TRAIN) / 10] == 0).all()
    plain = np.array(split(kind="dirichlet", alpha=0.1, clients=10, min_samples=1, capped=False)[0])
    assert (plain[np.cumsum(plain, axis=1) - plain >= len(TRAIN) / 10] > 0).any()


def test_a_tiny_alpha_still_gives_everyone_the_minimum() -> None:
    train = np.array(split(kind="dirichlet", alpha=1e-3, clients=20, min_samples=25)[0])
    assert train.sum(axis=1).min() >= 25
    assert train.sum() == len(TRAIN)


def test_iid_gives_everyone_the_same_number() -> None:
    train = np.array(split(kind="iid", clients=7)[0])
    assert set(train.sum(axis=1).tolist()) <= {85, 86}


def test_test_counts_follow_the_training_counts() -> None:
    # 10 x 6:3 is 6.67 and 3.33, the larger remainder goes up; 5 x 1:9 is 0.5 and 4.5, of equals the first goes up.
    counts = matching_counts(np.array([[6, 0], [3, 1], [0, 9]]), np.array([10, 5]))
    assert counts.tolist() == [[7, 0], [3, 1], [0, 4]]


def test_a_client_whose_share_rounds_to_nothing_still_gets_a_test_sample() -> None:
    counts = matching_counts(np.array([[1000], [1]]), np.array([10]))
    assert counts.tolist() == [[9], [1]]


def test_the_same_seed_gives_the_same_split_and_another_seed_another() -> None:
    settings = PartitionSettings(kind="dirichlet", alpha=0.5, clients=10)
    first, again, other = (make_partition(TRAIN, TEST, 10, settings, seed) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(first.train + first.test, again.train + again.test, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first.train, other.train, strict=True))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"kind": "class", "classes_per_client": 11, "clients": 10},
            "classes_per_client = 11 is more than the 10 classes",
        ),
        ({"kind": "class", "classes_per_client": 1, "clients": 5}, "cannot own all 10 classes"),
        ({"kind": "iid", "clients": 61}, "61 clients with at least 10 samples each need 610 training samples"),
        ({"kind": "class", "classes_per_client": 1, "clients": 50, "min_samples": 12}, "fewer than min_samples = 12"),
    ],
)
def test_what_the_data_cannot_give_is_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises((DataError, SettingsError), match=message):
        split(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "class"}, "needs 'classes_per_client'"),
        ({"kind": "dirichlet"}, "needs 'alpha'"),
        ({"kind": "iid", "alpha": 0.1}, "belongs to a 'dirichlet' partition"),
        ({"kind": "dirichlet", "alpha": 0}, "greater than 0"),
        ({"kind": "iid", "capped": False}, "'capped' belongs to a 'dirichlet' partition"),
    ],
)
def test_a_kind_needs_its_own_key_and_no_other(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        PartitionSettings.model_validate(settings)


def test_a_batch_repeats_a_sample_only_where_there_are_too_few() -> None:
    rows = np.arange(40)
    assert len(set(draw_rows(rows, 32, stream(0, "a")).tolist())) == 32
    small = draw_rows(rows[:5], 32, stream(0, "a"))
    assert len(small) == 32
    assert set(small.tolist()) <= set(range(5))


def test_an_epoch_sees_every_sample_once() -> None:
    batches = list(epoch_rows(np.arange(70), 32, stream(0, "a")))
    assert [len(batch) for batch in batches] == [32, 32, 6]
    assert sorted(np.concatenate(batches).tolist()) == list(range(70))


def test_a_client_whose_largest_class_is_used_up_gets_a_test_sample_of_its_next() -> None:
    train = np.array([[9, 0], [0, 9], [3, 2]])
    assert matching_counts(train, np.array([1, 2])).tolist() == [[1, 0], [0, 1], [0, 1]]
    assert matching_counts(np.array([[9, 0], [0, 9], [3, 0]]), np.array([1, 2])).tolist() == [[1, 0], [0, 2], [0, 0]]


@pytest.mark.parametrize("kind", [{"kind": "class", "classes_per_client": 2}, {"kind": "iid"}], ids=["class", "iid"])
def test_ten_thousand_clients_share_ten_thousand_test_samples(kind: dict[str, object]) -> None:
    train, test = np.repeat(np.arange(10), 6_000), np.repeat(np.arange(10), 1_000)  # as many as MNIST has
    settings = PartitionSettings.model_validate({**kind, "clients": 10_000, "min_samples": 1})
    made = make_partition(train, test, 10, settings, 0)
    assert all(len(rows) for rows in made.test)
    assert all(set(test[rows]) <= set(train[own]) for own, rows in zip(made.train, made.test, strict=True))


def test_clients_that_outnumber_the_test_samples_share_them_by_class() -> None:
    train, test = split(kind="iid", clients=150, min_samples=1)
    assert [sum(counts) for counts in test] == [1] * 150
    assert all(own[tested.index(1)] for own, tested in zip(train, test, strict=True))
    assert (train, test) == split(kind="iid", clients=150, min_samples=1)


def test_a_client_none_of_whose_classes_is_in_the_test_set_is_refused() -> None:
    settings = PartitionSettings(kind="class", classes_per_client=1, clients=10)
    with pytest.raises(DataError, match=r"training samples of class 9, of which there is no test sample"):
        make_partition(TRAIN, TEST[TEST < 9], 10, settings, 0)


def test_held_back_samples_are_the_clients_own_and_are_not_trained_on() -> None:
    whole = make_partition(TRAIN, TEST, 10, PartitionSettings(kind="class", classes_per_client=2, clients=5), 0)
    held = hold_back(whole, 3)
    for before, train, test in zip(whole.train, held.train, held.test, strict=True):
        assert sorted([*train, *test]) == before.tolist()
        assert len(test) == len(before) // 5
    assert all(np.array_equal(a, b) for a, b in zip(held.test, hold_back(whole, 3).test, strict=True))
    assert not np.array_equal(held.test[0], hold_back(whole, 4).test[0])


def test_a_single_sample_cannot_be_held_back() -> None:
    with pytest.raises(DataError, match=r"Client 1 has a single training sample"):
        hold_back(Partition((np.arange(5), np.array([7])), (np.arange(2), np.arange(2))), 0)


def test_a_task_can_be_tested_on_held_back_samples() -> None:
    settings = {"test_on": "held-back", "partition": {"kind": "class", "classes_per_client": 2, "clients": 5}}
    task = build_task(TaskSettings.model_validate(settings), seed=0)
    assert task.test is task.train
    assert not set(task.partition.train[0]) & set(task.partition.test[0])
