"""A dry run tries a round that is short whatever the settings ask for, and charges the rest in proportion."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from leanfed.algorithms.fedmask import FedMask
from leanfed.algorithms.flpdsp import Flpdsp
from leanfed.records import RoundPlan
from leanfed.rounds.world import World
from leanfed.runs.estimate import _shortened, _test_work, _work

PLAN = RoundPlan(0, (0, 3), np.ones(2), np.ones(2))


def test_a_small_round_is_tried_as_it_is(world_of: Callable[..., World]) -> None:
    world = world_of(Flpdsp(head_steps=20), batch_size=32, local_steps=20)
    assert (_shortened(world).training, _shortened(world).algorithm) == (world.training, world.algorithm)


def test_more_steps_and_samples_count_in_proportion(world_of: Callable[..., World]) -> None:
    world = world_of(Flpdsp(), batch_size=2_048, local_steps=2_000)
    trial = _shortened(world)
    assert (trial.training.batch_size, trial.training.local_steps) == (512, 20)
    assert _work(world, PLAN) / _work(trial, PLAN) == pytest.approx(4 * 100)


def test_epochs_of_many_steps_are_tried_as_steps(world_of: Callable[..., World]) -> None:
    world = world_of(Flpdsp(), batch_size=50, local_epochs=10_000)
    trial = _shortened(world)
    assert (trial.training.local_epochs, trial.training.local_steps) == (None, 20)
    samples = world.task.partition.sizes[[0, 3]].sum()  # each 10,000 times; the trial takes 20 batches of 50 from both
    assert _work(world, PLAN) / _work(trial, PLAN) == pytest.approx(10_000 * samples / (2 * 20 * 50))


def test_head_steps_count_by_their_share_of_a_whole_step(world_of: Callable[..., World]) -> None:
    world = world_of(Flpdsp(head_steps=1_000))
    share = world.head_step_share
    expected = (1 + 999 * share) / (1 + 19 * share)
    assert _work(world, PLAN) / _work(_shortened(world), PLAN) == pytest.approx(expected)


def test_an_epoch_of_one_large_batch_is_cut_into_steps_that_are_counted(world_of: Callable[..., World]) -> None:
    world = world_of(Flpdsp(), batch_size=100_000, local_epochs=21)
    trial = _shortened(world)
    assert (trial.training.batch_size, trial.training.local_epochs, trial.training.local_steps) == (512, None, 20)


def test_batches_before_a_test_and_steps_before_the_first_round_are_cut(world_of: Callable[..., World]) -> None:
    world = replace(world_of(FedMask(pruning_steps=100_000), batch_size=32), renew_statistics=1_000)
    trial = _shortened(world)
    assert trial.renew_statistics == trial.algorithm.model_dump()["pruning_steps"] == 20
    tested, clients = sum(map(len, world.task.partition.test)), world.task.clients
    expected = (tested + clients * 1_000 * 32) / (tested + clients * 20 * 32)
    assert _test_work(world) / _test_work(trial) == pytest.approx(expected)
