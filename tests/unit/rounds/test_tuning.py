"""Steps on a copy of a client's model before its test."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from leanfed.algorithms.base import ALGORITHMS
from leanfed.algorithms.contract import Training, Tuning
from leanfed.rounds.evaluation import EvaluationSettings, evaluate
from leanfed.rounds.selection import Participation
from leanfed.rounds.world import World
from leanfed.runs.prepare import build_world
from leanfed.runs.settings import Settings
from leanfed.simulation.batched.engine import BatchedEngine
from leanfed.simulation.reference import ReferenceEngine
from leanfed.simulation.streamed import StreamedEngine
from leanfed.tasks.task import TaskSettings, build_task

Build = type[StreamedEngine] | type[BatchedEngine]
PARTITION = {"kind": "class", "classes_per_client": 2, "clients": 5}
TASK = build_task(TaskSettings.model_validate({"partition": PARTITION}), seed=3)


def world_of(name: str, steps: int, rate: float = 0.2) -> World:
    training = Training(batch_size=8, learning_rate=0.1)
    return World(TASK, ALGORITHMS[name](), training, Participation(), tuning=Tuning(steps, rate))


@pytest.mark.parametrize("name", ["fedper", "fedbabu"])
def test_a_tested_model_is_the_clients_after_its_steps(name: str) -> None:
    world = world_of(name, steps=2)
    learner, clients, server = world.new_learner(), world.new_clients(), world.algorithm.start_server(TASK)
    tested = evaluate(world, server, clients, learner)
    for client in range(5):
        parts = world.algorithm.personal_weights(server, clients[client].private.unsqueeze(0), learner).row(0)
        weights = torch.cat(parts)
        for batch in world.own_batches("tuning", client, 2):
            weights = weights - 0.2 * learner.model.loss_and_gradient(weights, batch.inputs, batch.labels)[1]
        tests = TASK.test.batch(TASK.partition.test[client])
        right = learner.model.logits(weights, tests.inputs).argmax(1) == tests.labels
        assert tested.accuracy_per_client[client] == pytest.approx(right.float().mean().item())


@pytest.mark.parametrize("build", [StreamedEngine, BatchedEngine])
def test_every_engine_tunes_alike_and_leaves_the_clients_alone(build: Build) -> None:
    world = world_of("fedper", steps=3)
    clients, server = world.new_clients(), world.algorithm.start_server(TASK)
    engine = build(world, threads=2)
    plain = build(replace(world, tuning=Tuning()), threads=1)
    untuned = plain.evaluate(server, clients).loss_per_client
    tuned, again = (engine.evaluate(server, clients).loss_per_client for _ in range(2))
    reference = ReferenceEngine(world).evaluate(server, clients).loss_per_client
    assert np.array_equal(tuned, again)
    assert np.array_equal(tuned, reference)
    assert tuned.mean() < untuned.mean()
    assert np.array_equal(plain.evaluate(server, clients).loss_per_client, untuned)


@pytest.mark.parametrize(
    ("method", "evaluation", "expected"),
    [
        ("fedavg", {}, Tuning(0, 0.3)),
        ("fedbabu", {}, Tuning(5, 0.01)),
        ("per-fedavg", {}, Tuning(1, 0.01)),
        ("per-fedavg", {"tune_steps": 0}, Tuning(0, 0.01)),
        ("fedavg", {"tune_steps": 7, "tune_rate": 0.01}, Tuning(7, 0.01)),
    ],
)
def test_the_settings_go_before_the_method(method: str, evaluation: dict[str, float], expected: Tuning) -> None:
    training = Training(learning_rate=0.3)
    chosen = EvaluationSettings.model_validate(evaluation)
    assert chosen.tuning(ALGORITHMS[method](), training) == expected


def test_a_run_takes_its_tuning_from_the_settings() -> None:
    settings = Settings.from_values({"algorithm": {"name": "fedavg"}, "evaluation": {"tune_steps": 4}})
    assert build_world(settings).tuning == Tuning(4, settings.training.learning_rate)
