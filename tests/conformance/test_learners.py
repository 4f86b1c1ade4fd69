"""Several clients at once are the same clients one by one: for every method, learner and setting, bit for bit."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from leanfed.algorithms import ALGORITHMS
from leanfed.algorithms.contract import Cohort, ServerState, Training, Updates
from leanfed.rounds.client_store import ClientStore
from leanfed.rounds.engine import Engine
from leanfed.rounds.exchange import train
from leanfed.rounds.selection import Participation
from leanfed.rounds.world import World
from leanfed.simulation.batched.engine import BatchedEngine
from leanfed.simulation.batched.stacked_engine import StackedEngine
from leanfed.tasks.batch import Batch
from leanfed.tasks.models import MODELS, ModelSpec
from leanfed.tasks.partition import PartitionSettings
from leanfed.tasks.task import Task, TaskSettings, build_task
from tests.methods import FEWEST
from tests.thinned import in_turn

CLIENTS = 5
METHODS: dict[str, dict[str, Any]] = {
    **{name: {"name": name, **FEWEST.get(name, {})} for name in ALGORITHMS},
    "flpdsp with all memories": {
        "name": "flpdsp",
        "k": [0.05, 0.1, 0.5, 0.9, 1.0],
        "r": [1.0, 0.5, 0.1, 0.9, 0.3],
        "head_steps": 3,
        "sparsify": {"error_feedback": True},
        "prune": {"score": "importance", "masked_gradient": True, "head_memory": "keep"},
    },
    "fedrep with head steps": {"name": "fedrep", "head_steps": 3, "k": 0.1, "sparsify": {"error_feedback": True}},
    "fedavg-s drawn": {"name": "fedavg-s", "sparsify": {"select": "random", "rescale": True}},
}
STEPS = {"one": {"batch_size": 4}, "three": {"batch_size": 4, "local_steps": 3, "momentum": 0.9, "weight_decay": 0.01}}


class Dropping(nn.Module):
    """Draws at random while it trains, and normalises, in both parts; it cannot be cut into stages."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.first, self.norm, self.drop = nn.Linear(1024, 6), nn.BatchNorm1d(6), nn.Dropout(0.5)
        self.middle, self.last = nn.Linear(6, 6), nn.Linear(6, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.drop(torch.relu(self.norm(self.first(images.flatten(1)))))
        return self.last(self.drop(torch.relu(self.middle(x))))


def dense(classes: int) -> nn.Module:
    """Layers that several clients can compute at once."""
    return nn.Sequential(nn.Flatten(), nn.Linear(1024, 6), nn.Tanh(), nn.LayerNorm(6), nn.Linear(6, classes))


@pytest.fixture(scope="module", autouse=True)
def own_models() -> Any:
    MODELS.add("dropping-norm", ModelSpec(Dropping, input_shape=(1, 32, 32), default_split="norm"))
    MODELS.add("stacked-dense", ModelSpec(dense, input_shape=(1, 32, 32), default_split="1"))
    yield
    MODELS.remove("dropping-norm")
    MODELS.remove("stacked-dense")


@cache
def task_of(model: str, statistics: str = "private") -> Task:
    partition = PartitionSettings(kind="class", classes_per_client=2, clients=CLIENTS)
    return build_task(TaskSettings(model=model, statistics=statistics, partition=partition), seed=3)


def world_of(task: Task, method: str, steps: str) -> World:
    values = METHODS[method]
    algorithm = ALGORITHMS[values["name"]].model_validate(values)
    return World(task, algorithm, Training(**STEPS[steps]), Participation())


def asked(world: World, states: ClientStore, number: int) -> list[Cohort]:
    """Every client's part of a round."""
    k, r = world.algorithm.rates(CLIENTS)
    return [world.alone(states[c], c, number, k[c], r[c]) for c in range(CLIENTS)]


def joined(cohorts: list[Cohort]) -> Cohort:
    """Cohorts of one as one cohort."""
    steps = zip(*(list(cohort.batches) for cohort in cohorts), strict=True)
    return replace(
        cohorts[0],
        clients=tuple(cohort.clients[0] for cohort in cohorts),
        k=np.concatenate([cohort.k for cohort in cohorts]),
        r=np.concatenate([cohort.r for cohort in cohorts]),
        private=torch.cat([cohort.private for cohort in cohorts]),
        memory={name: torch.cat([cohort.memory[name] for cohort in cohorts]) for name in cohorts[0].memory},
        batches=[Batch(torch.cat([b.inputs for b in step]), torch.cat([b.labels for b in step])) for step in steps],
    )


def assert_same(together: Updates, alone: list[Updates]) -> None:
    assert together.loss.tolist() == [float(updates.loss[0]) for updates in alone]
    assert together.samples.tolist() == [int(updates.samples[0]) for updates in alone]
    for row, (upload, single) in enumerate(zip(together.uploads, alone, strict=True)):
        (own,) = single.uploads
        assert torch.equal(upload.values, own.values)
        assert (upload.positions is None) == (own.positions is None)
        assert upload.positions is None or torch.equal(upload.positions, own.positions)
        state, kept = together.state(row), single.state(0)
        assert torch.equal(state.private, kept.private)
        assert state.memory.keys() == kept.memory.keys()
        assert all(torch.equal(state.memory[name], kept.memory[name]) for name in kept.memory)
    if together.statistics is not None:
        assert torch.equal(together.statistics, torch.cat([updates.statistics for updates in alone]))


@pytest.mark.parametrize(
    ("model", "statistics", "steps"),
    [
        ("lenet5", "private", "one"),
        ("tiny-norm", "shared", "one"),
        ("dropping-norm", "private", "three"),
        pytest.param("lenet5", "private", "three", marks=pytest.mark.slow),
        pytest.param("tiny-norm", "private", "one", marks=pytest.mark.slow),
        pytest.param("tiny-norm", "private", "three", marks=pytest.mark.slow),
        pytest.param("tiny-norm", "shared", "three", marks=pytest.mark.slow),
        pytest.param("dropping-norm", "private", "one", marks=pytest.mark.slow),
        pytest.param("dropping-norm", "shared", "one", marks=pytest.mark.slow),
        pytest.param("dropping-norm", "shared", "three", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("method", METHODS)
def test_five_at_once_are_five_alone(model: str, statistics: str, method: str, steps: str) -> None:
    world = world_of(task_of(model, statistics), method, steps)
    server, states = world.algorithm.start_server(world.task), world.new_clients()
    for number in range(2):  # twice, so that memories are in play
        alone = [train(world.algorithm, server, c, world.new_learner()) for c in asked(world, states, number)]
        together = train(world.algorithm, server, joined(asked(world, states, number)), world.new_learner())
        assert_same(together, alone)
        for client, updates in enumerate(alone):
            states[client] = updates.state(0)
        memory = {} if together.statistics is None else {"statistics": together.statistics.mean(0)}
        server = ServerState(server.shared, memory)


@pytest.mark.parametrize(("method", "steps"), in_turn(METHODS, STEPS))
def test_kernels_give_every_client_what_they_give_it_alone(method: str, steps: str) -> None:
    world = world_of(task_of("lenet5"), method, steps)
    assert_alike(BatchedEngine(world, threads=1))


@pytest.mark.parametrize("steps", [pytest.param("one", marks=pytest.mark.slow), "three"])
@pytest.mark.parametrize("method", METHODS)
def test_stacked_layers_give_every_client_what_they_give_it_alone(method: str, steps: str) -> None:
    world = world_of(task_of("stacked-dense"), method, steps)
    world = replace(world, training=world.training.model_copy(update={"batch_size": 16}))  # below it bits may differ
    engine = StackedEngine(world, threads=1)
    assert engine.any_company
    assert_alike(engine)


def assert_alike(engine: Engine) -> None:
    """A round of all clients at once, and rounds of one client each."""
    world = engine.world
    server, states = world.algorithm.start_server(world.task), [world.new_clients() for _ in range(2)]
    plan = world.plan(0)
    whole = engine.exchange(server, states[0], plan, single=True)
    for client in range(CLIENTS):
        one = replace(plan, participants=(client,), k=plan.k[[client]], r=plan.r[[client]])
        answers = engine.exchange(server, states[1], one, single=True)
        assert torch.equal(answers.uploads[0].values, whole.uploads[client].values)
        assert answers.loss[0] == whole.loss[client]
    left, right = (store.snapshot(range(CLIENTS)) for store in states)
    assert all(torch.equal(left[name], right[name]) for name in left)
