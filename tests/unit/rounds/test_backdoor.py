"""The backdoor: what attackers train on, what is counted as success, and that it works on the plain mean."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import leanfed
from leanfed.algorithms.fedavg import FedAvg
from leanfed.errors import SettingsError
from leanfed.results import RunFolder
from leanfed.rounds.adversary import Adversary
from leanfed.rounds.backdoor import candidates, poisoned, success, with_square
from leanfed.rounds.loop import start
from leanfed.runs.compare import read_runs
from leanfed.runs.settings import Settings
from leanfed.simulation.choose import choose_engine

DOOR = Adversary(kind="backdoor", share=0.4, target=3, poisoned=0.25)


def settings(**changes: Any) -> Settings:
    values = {
        "rounds": 12,
        "task": {"partition": {"kind": "iid", "clients": 5}},
        "algorithm": {"name": "fedavg"},
        "evaluation": {"every": 12},
        "run": {"threads": 1},
    }
    return Settings.from_values({**values, **changes})


def test_attackers_samples_carry_the_square_and_honest_ones_stay(digits: Any) -> None:
    after, liars = poisoned(digits, DOOR), DOOR.liars(5, digits.seed)
    assert len(liars) == 2
    for client, rows in enumerate(digits.partition.train):
        changed = (after.train.pixels[rows] != digits.train.pixels[rows]).any(axis=(1, 2, 3))
        marked = np.array([np.array_equal(p, with_square(p, 4)) for p in after.train.pixels[rows]])
        if client not in liars:
            assert not changed.any()
            assert np.array_equal(after.train.labels[rows], digits.train.labels[rows])
            continue
        assert marked.sum() == round(0.25 * len(rows))
        assert (after.train.labels[rows][marked] == 3).all()
        assert np.array_equal(after.train.labels[rows][~marked], digits.train.labels[rows][~marked])
    count = len(digits.test.labels)
    assert np.array_equal(after.test.pixels[:count], digits.test.pixels)
    assert (after.test.labels[count:] == 3).all()


@pytest.mark.parametrize("engine", ["reference", "streamed", "batched", "stacked"])
def test_success_is_the_share_of_marked_samples_that_get_the_target(world_of: Any, engine: str) -> None:
    world, door = world_of(FedAvg()), Adversary(kind="backdoor", share=0.2)
    (liar,) = door.liars(5, world.task.seed)
    honest = (liar + 1) % 5
    target = int(world.task.train.labels[world.task.partition.train[honest]][0])
    door = door.model_copy(update={"target": target})
    world = replace(world, task=poisoned(world.task, door), adversary=door)
    asked = candidates(world)
    assert honest in asked
    assert liar not in asked
    assert all(len(rows) and (world.task.test.labels[rows] == target).all() for rows in asked.values())
    progress = start(world)
    for answer, expected in ((target, 1.0), ((target + 1) % 10, 0.0)):
        shared = torch.zeros_like(progress.server.shared)
        shared[-10 + answer] = 1.0  # the last layer's bias: one answer to everything
        server = replace(progress.server, shared=shared)
        assert success(choose_engine(world, engine, threads=1), server, progress.clients) == expected


def test_the_mean_lets_a_backdoor_in_and_rows_and_comparison_say_so(tmp_path: Path) -> None:
    how = {"kind": "backdoor", "share": 0.4}
    attacked = leanfed.run(settings(adversary=how, name="attacked"), tmp_path / "attacked")
    left_alone = leanfed.run(settings(adversary={**how, "share": 0.0}, name="alone"), tmp_path / "alone")
    assert attacked.summary["attack_success"] > 0.5 > 0.1 > left_alone.summary["attack_success"]
    rates = attacked.rounds["attack_success"].to_list()
    assert rates[:-1] == [None] * 11  # measured where a round is evaluated
    runs, _ = read_runs([RunFolder(tmp_path / name) for name in ("attacked", "alone")])
    assert [run.row(())["attack_success"] for run in runs] == [rates[-1], left_alone.summary["attack_success"]]


def test_its_uploads_can_be_made_louder() -> None:
    assert not DOOR.tampers
    assert DOOR.model_copy(update={"strength": 10.0}).tampers


def test_what_cannot_be_marked_is_refused(digits: Any) -> None:
    with pytest.raises(SettingsError, match=r"target = 10, but 'mnist-5k' has the labels 0 to 9"):
        poisoned(digits, DOOR.model_copy(update={"target": 10}))
    with pytest.raises(SettingsError, match=r"paints a square on pictures"):
        poisoned(replace(digits, train=None), DOOR)
