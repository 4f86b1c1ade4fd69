"""A cut that moves during a run: exact at the switch, the same after a stop, charged on both sides."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import leanfed
from leanfed.deployment.learning.config import read_settings
from leanfed.errors import SettingsError
from leanfed.results import RunFolder
from leanfed.rounds.broadcast import seen
from leanfed.rounds.evaluation import used_weights
from leanfed.rounds.loop import Progress, start
from leanfed.rounds.switch import switched
from leanfed.rounds.world import HANDED
from leanfed.runs.export import client_model
from leanfed.runs.prepare import build_world, prepare
from leanfed.runs.recost import recost
from leanfed.runs.settings import Settings
from leanfed.simulation.reference import ReferenceEngine
from tests.stops import check_resumed

CONV3, CONV2, CONV1 = 50_692, 2_572, 156  # values of LeNet-5 up to that layer
METHOD = {"name": "flpdsp", "k": 0.1, "r": 0.5, "sparsify": {"error_feedback": True}, "prune": {"score": "importance"}}


def settings_of(**values: Any) -> Settings:
    task = {"partition": {"kind": "class", "classes_per_client": 2, "clients": 6}, "split_schedule": [[2, "conv2"]]}
    return Settings.from_values(
        {
            "rounds": 5,
            "algorithm": METHOD,
            "training": {"batch_size": 8, "momentum": 0.5},
            "participation": {"fraction": 0.5},
            "evaluation": {"every": 1},
            **values,
            "task": {**task, **values.get("task", {})},
        }
    )


def models(world: Any, progress: Progress) -> list[torch.Tensor]:
    """Every client's whole model."""
    learner, server = world.new_learner(), seen(progress.server)
    return [
        used_weights(world, server, progress.clients[client], learner, client) for client in range(world.task.clients)
    ]


@pytest.mark.parametrize("radio", [{}, {"broadcast": "difference"}], ids=["dense", "difference"])
def test_at_the_switch_every_clients_model_stays_what_it_was(radio: dict[str, Any]) -> None:
    """Of those that took part, were tested, or never had a state; as clients have the base, sent or not."""
    world = build_world(settings_of(radio=radio))
    progress = start(world)
    engine = ReferenceEngine(world)
    for number in range(2):
        outcome = engine.run_round(progress.server, progress.clients, world.plan(number))
        progress = Progress(number + 1, outcome.server, progress.clients)
    took_part = set(progress.clients.started())
    assert 0 < len(took_part) < 6
    after = switched(progress, world, world.at(2))
    fresh = start(world).clients
    expected = models(world, Progress(2, progress.server, progress.clients))
    for was, now in zip(expected, models(world.at(2), after), strict=True):
        assert torch.equal(was, now)
    assert len(after.server.shared) == CONV2
    assert len(after.server.memory[HANDED]) == CONV3 - CONV2
    never = next(client for client in range(6) if client not in took_part)
    assert torch.equal(after.clients[never].private[CONV3 - CONV2 :], fresh[never].private)
    assert after.clients.changed >= took_part  # the next checkpoint writes them in their new layout


def test_memories_of_what_moves_begin_anew_and_the_others_stay() -> None:
    world = build_world(settings_of())
    progress = start(world)
    progress = Progress(
        1, ReferenceEngine(world).run_round(progress.server, progress.clients, world.plan(0)).server, progress.clients
    )
    client = world.plan(0).participants[0]
    was, now = progress.clients[client], switched(progress, world, world.at(2)).clients[client]
    assert torch.equal(now.memory["residual"], was.memory["residual"][:CONV2])
    for name in ("velocity", "head_gradient"):
        assert not now.memory[name][: CONV3 - CONV2].any()
        assert torch.equal(now.memory[name][CONV3 - CONV2 :], was.memory[name])
    memory = switched(progress, world, world.at(2)).server.memory
    assert torch.equal(memory["velocity"], progress.server.memory["velocity"][:CONV2])


@pytest.mark.parametrize("rounds", [1, 2, 3, 4], ids=lambda number: f"after {number} rounds")
def test_a_run_resumed_on_either_side_of_the_switch_is_the_unbroken_one(rounds: int, tmp_path: Path) -> None:
    """Two switches; with a planner that remembers who was absent, and differences sent down."""
    values = {
        "task": {"split_schedule": [[2, "conv2"], [4, "conv1"]]},
        "allocation": {"wait": "pace", "within_rounds": 2},
        "radio": {"broadcast": "difference"},
        "participation": {},
    }
    check_resumed(settings_of(**values), tmp_path, rounds)


def test_rounds_before_the_switch_are_those_without_one_and_costs_fall_with_it() -> None:
    method = {"name": "fedper"}
    plain = leanfed.run(settings_of(algorithm=method, task={"split_schedule": []}))
    moved = leanfed.run(settings_of(algorithm=method))
    assert moved.rounds[:2].equals(plain.rounds[:2])
    assert moved.clients["entries"].unique().sort().to_list() == [CONV2, CONV3]
    assert moved.clients.filter(moved.clients["round"] >= 2)["exact_bits"].to_list() == [32.0 * CONV2] * 9
    assert moved.rounds["loss"].is_finite().all()
    assert (moved.rounds["latency_s"][2:] < plain.rounds["latency_s"][2:]).all()


def test_after_the_switch_a_run_is_one_that_began_there_with_these_models() -> None:
    """The next round, step by step: the base moves by its own gradients, the layers that moved are each client's."""
    world = build_world(settings_of(algorithm={"name": "fedper"}, participation={}))
    later = world.at(2)
    after = switched(start(world), world, later)
    before = {client: after.clients[client].private.clone() for client in range(6)}
    outcome = ReferenceEngine(later).run_round(after.server, after.clients, later.plan(2))
    moved = [after.clients[client].private - before[client] for client in range(6)]
    assert all(change[: CONV3 - CONV2].any() for change in moved)
    assert not torch.equal(moved[0], moved[1])
    assert outcome.entries.tolist() == [CONV2] * 6


def test_a_run_in_memory_a_charge_anew_and_an_export_know_the_switch(tmp_path: Path) -> None:
    whole = leanfed.run(settings_of(), tmp_path / "run")
    assert leanfed.run(settings_of()).rounds.equals(whole.rounds)
    other = settings_of(radio={"fleet": {"bandwidth_hz": 2e7}})
    assert recost(tmp_path / "run", other, tmp_path / "again").clients.equals(leanfed.run(other).clients)
    world, model = client_model(RunFolder(tmp_path / "run"), 3)
    assert world.split.shared_size == CONV2
    assert model is not None
    notes = [event["text"] for event in RunFolder(tmp_path / "run").read_events() if event["event"] == "note"]
    assert "from round 2 on the base ends with 'conv2'." in notes


def test_a_planner_goes_on_where_the_one_before_stands() -> None:
    """Absences are counted over the switch."""
    values = {"allocation": {"rule": "joint", "form": "fast", "within_rounds": 3}, "algorithm": {"name": "flpdsp"}}
    experiment = prepare(settings_of(**values, participation={}))
    for number in range(2):
        experiment.planner_at(number).plan(number)
    first = experiment.planner.memory()
    assert first["next"] == 2
    later = experiment.planner_at(2)
    assert later is not experiment.planner
    assert later.memory() == first
    assert np.all(later.plan(2).plan.k * CONV2 >= 1)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"task": {"split_schedule": [[2, "fc1"]]}}, r"layers can only become private: 50692 values are shared before"),
        ({"task": {"split_schedule": [[2, "conv1"], [3, "conv2"]]}}, r"156 values are shared before and 2572"),
        ({"task": {"split_schedule": [[2, "conv9"]]}}, r"no layer 'conv9'"),
        ({"task": {"split_schedule": [[3, "conv2"], [2, "conv1"]]}}, r"has the rounds \[3, 2\]; give each once"),
        ({"task": {"split_schedule": [[0, "conv2"]]}}, r"greater than or equal to 1"),
        ({"task": {"statistics": "shared"}}, r"set task.statistics = 'private'"),
        ({"algorithm": {"name": "fedavg"}}, r"does not fit 'fedavg': its clients do not keep the head alone"),
        ({"algorithm": {"name": "fedbabu"}}, r"does not fit 'fedbabu'"),
        ({"algorithm": {"name": "fedmask"}}, r"does not fit 'fedmask'"),
        ({"algorithm": {"name": "ditto"}}, r"does not fit 'ditto'"),
    ],
)
def test_schedules_that_cannot_be_followed_are_refused(values: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        build_world(settings_of(**values))


def test_keep_rates_that_leave_nothing_after_a_switch_are_refused() -> None:
    with pytest.raises(SettingsError, match="algorithm.k = 0.0001 leaves none of the 2572 shared values"):
        prepare(settings_of(algorithm={"name": "flpdsp", "k": 1e-4}))


def test_a_fleet_keeps_its_cut() -> None:
    with pytest.raises(SettingsError, match=r"task.split_schedule is for simulations"):
        read_settings(json.dumps(settings_of().resolved()))
