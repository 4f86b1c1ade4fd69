"""One battery for every method: a newcomer gains these tests by being registered."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from leanfed.algorithms import ALGORITHMS
from leanfed.algorithms.base import Algorithm
from leanfed.algorithms.contract import ServerState, Training, Updates
from leanfed.algorithms.uploads import Upload
from leanfed.rounds.engine import RoundOutcome
from leanfed.rounds.loop import start
from leanfed.rounds.selection import Participation
from leanfed.rounds.world import World
from leanfed.simulation.reference import ReferenceEngine
from leanfed.tasks.partition import PartitionSettings
from leanfed.tasks.task import TaskSettings, build_task
from tests.methods import method_of

# Convolutions, a dense layer, and batch normalisation in both parts; the engines' batteries have the paper's model.
TASK = TaskSettings(model="tiny-norm", partition=PartitionSettings(kind="class", classes_per_client=2, clients=5))
EVERY = pytest.mark.parametrize("name", list(ALGORITHMS))
WorldOf = Callable[..., World]


@pytest.fixture(scope="module")
def world_of() -> WorldOf:
    """A world of five clients with two digits each."""
    task = build_task(TASK, seed=3)

    def make(algorithm: Algorithm, *, participation: dict[str, Any] | None = None, **training: Any) -> World:
        return World(task, algorithm, Training(**{"batch_size": 8, **training}), Participation(**(participation or {})))

    return make


def play(world: World, rounds: int = 2) -> tuple[list[RoundOutcome], dict[str, Tensor]]:
    """Outcomes of the rounds, and all clients' tensors at the end."""
    progress, engine = start(world), ReferenceEngine(world)
    server, outcomes = progress.server, []
    for number in range(rounds):
        outcomes.append(engine.run_round(server, progress.clients, world.plan(number)))
        server = outcomes[-1].server
    progress.clients.start_all(range(world.task.clients))
    return outcomes, progress.clients.snapshot(range(world.task.clients))


def answer(world: World, client: int = 1) -> tuple[Algorithm, ServerState, Updates]:
    """One client's answer in the first round."""
    algorithm = world.algorithm
    server, state = algorithm.start_server(world.task), algorithm.start_client(world.task, client)
    plan = world.plan(0)
    cohort = world.alone(state, client, 0, float(plan.k[client]), float(plan.r[client]))
    return algorithm, server, algorithm.client_update(server.shared, cohort, world.new_learner())


def algorithm_start(world: World) -> Tensor:
    """A client's private part before its first round."""
    return world.algorithm.start_client(world.task, 1).private


def upload_of(updates: Updates) -> Upload:
    (upload,) = updates.uploads
    return upload


def stepped(world: World, gamma: list[float], uploads: list[Upload], number: int = 0) -> Tensor:
    """The shared part after a round of these uploads."""
    server = world.algorithm.start_server(world.task)
    mean = world.aggregation.combine(len(server.shared), np.array(gamma), uploads)
    return world.algorithm.step(server, mean, world.training, number).shared


@EVERY
def test_the_same_seed_gives_the_same_bits(name: str, world_of: WorldOf) -> None:
    (first, clients), (again, clients_again) = (play(world_of(method_of(name))) for _ in range(2))
    assert torch.equal(first[-1].server.shared, again[-1].server.shared)
    assert clients.keys() == clients_again.keys()
    assert all(torch.equal(clients[key], clients_again[key]) for key in clients)


@EVERY
def test_training_begins_at_the_weights_the_method_says(name: str, world_of: WorldOf) -> None:
    world = world_of(method_of(name))
    algorithm, learner = world.algorithm, world.new_learner()
    server, state = start(world).server, start(world).clients[1]
    for number in range(2):  # twice, so that memories are in play
        first, second, third = (world.alone(state, 1, number, 0.5, 0.5) for _ in range(3))  # batches are read once
        weights = algorithm.trained_weights(server.shared, first, learner)
        batch = next(iter(second.batches))
        updates = algorithm.client_update(server.shared, third, learner)
        assert float(learner.loss_and_gradient(weights, batch)[0][0]) == pytest.approx(updates.loss[0])
        state = updates.state(0)


@EVERY
def test_inputs_are_left_untouched(name: str, world_of: WorldOf) -> None:
    world = world_of(method_of(name))
    algorithm = world.algorithm
    server, state = algorithm.start_server(world.task), algorithm.start_client(world.task, 0)
    before = copy.deepcopy((server, state))
    for number in range(2):  # twice, so that memories are in play
        cohort = world.alone(state, 0, number, 0.5, 0.5)
        updates = algorithm.client_update(server.shared, cohort, world.new_learner())
        assert torch.equal(server.shared, before[0].shared)
        assert torch.equal(state.private, before[1].private)
        assert all(torch.equal(state.memory[key], before[1].memory[key]) for key in before[1].memory)
        mean = world.aggregation.combine(len(server.shared), np.ones(1), list(updates.uploads))
        algorithm.step(server, mean, world.training, number)
        assert torch.equal(server.shared, before[0].shared)
        state = updates.state(0)
        before = copy.deepcopy((server, state))


@EVERY
def test_a_client_keeps_what_the_method_says_it_holds(name: str, world_of: WorldOf) -> None:
    for momentum in (0.0, 0.9):
        world = world_of(method_of(name), momentum=momentum)
        _, _, updates = answer(world)
        assert {key: rows.shape for key, rows in updates.memory.items()} == {k: (1, s) for k, s in world.holds.items()}
        assert updates.private.shape == (1, world.private_size)
        assert algorithm_start(world).shape == (world.private_size,)


@EVERY
def test_an_upload_fits_the_shared_part(name: str, world_of: WorldOf) -> None:
    world = world_of(method_of(name))
    _, server, updates = answer(world)
    upload = upload_of(updates)
    assert upload.size == len(server.shared) == world.vector_size
    assert (
        upload.entries == world.algorithm.entries(world.split, *(rates[1:2] for rates in world.algorithm.rates(5)))[0]
    )
    assert upload.entries == len(upload.values) <= upload.size
    if upload.positions is not None:
        assert len(upload.positions) == upload.entries
        assert (torch.diff(upload.positions) > 0).all()
        assert ((upload.positions >= 0) & (upload.positions < upload.size)).all()


@EVERY
def test_personal_weights_make_a_whole_model(name: str, world_of: WorldOf) -> None:
    world = world_of(method_of(name))
    algorithm, server, updates = answer(world)
    weights = torch.cat(algorithm.personal_weights(server, updates.private, world.new_learner()).row(0))
    assert weights.shape == (world.task.split.size,)
    assert torch.isfinite(weights).all()


@EVERY
def test_the_order_of_uploads_does_not_matter(name: str, world_of: WorldOf) -> None:
    world = world_of(method_of(name))
    gamma, uploads = world.task.gamma[:3].tolist(), [upload_of(answer(world, c)[2]) for c in range(3)]
    forth, back = stepped(world, gamma, uploads), stepped(world, gamma[::-1], uploads[::-1])
    assert torch.allclose(forth, back, rtol=0, atol=1e-7)  # only the rounding of the sum may differ


@EVERY
def test_weights_of_the_uploads_are_renormalised(name: str, world_of: WorldOf) -> None:
    world = world_of(method_of(name))
    gamma, uploads = world.task.gamma[:2], [upload_of(answer(world, c)[2]) for c in range(2)]
    small, large = (stepped(world, (scale * gamma).tolist(), uploads) for scale in (1, 8))
    assert torch.allclose(small, large, rtol=0, atol=1.2e-7)  # the last digit of a weight of one


@EVERY
def test_those_who_sit_out_keep_their_state(name: str, world_of: WorldOf) -> None:
    world = world_of(method_of(name), participation={"cohorts": [[0, 3]]})
    outcomes, clients = play(world)
    assert all(len(outcome.loss) == 2 for outcome in outcomes)
    for client in (1, 2, 4):
        state = world.algorithm.start_client(world.task, client)
        assert torch.equal(clients["private"][client], state.private)


@EVERY
def test_several_local_steps_use_that_many_batches(name: str, world_of: WorldOf) -> None:
    outcomes, _ = play(world_of(method_of(name), local_steps=3), rounds=1)
    assert outcomes[0].samples.tolist() == [24] * 5


@EVERY
def test_an_epoch_sees_every_sample_of_every_client(name: str, world_of: WorldOf) -> None:
    world = world_of(method_of(name), local_epochs=1, batch_size=400)
    outcomes, _ = play(world, rounds=1)
    assert outcomes[0].samples.tolist() == world.task.partition.sizes.tolist()


@EVERY
def test_training_lowers_the_loss(name: str, world_of: WorldOf) -> None:
    rounds = 10 if name == "scaffold" else 5  # its first rounds are spent on what corrects the later ones
    outcomes, _ = play(world_of(method_of(name), local_steps=3, batch_size=16), rounds)
    most = 0.97 if name == "fedbabu" else 0.9  # its 108 shared weights learn under a random head
    assert np.mean(outcomes[-1].loss) < most * np.mean(outcomes[0].loss)


@EVERY
def test_training_settings_change_the_result(name: str, world_of: WorldOf) -> None:
    settings: list[dict[str, float]] = [{"learning_rate_decay": 0.5}]
    if name != "fedmask":  # masks have no momentum and no decay
        settings += [{"momentum": 0.9}, {"weight_decay": 0.01}]
    plain = end_of(world_of(method_of(name)))
    for training in settings:
        assert not torch.equal(plain, end_of(world_of(method_of(name), **training))), training


def end_of(world: World) -> Tensor:
    """All weights after two rounds, the server's and the clients'."""
    outcomes, kept = play(world)
    return torch.cat([outcomes[-1].server.shared, kept["private"].flatten()])
