"""The streamed engine is the reference loop to the last bit, and running statistics stay where they belong."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from leanfed.algorithms import ALGORITHMS
from leanfed.algorithms.contract import ServerState, Training
from leanfed.errors import InputError
from leanfed.rounds.client_store import ClientStore
from leanfed.rounds.costs import Accountant, RadioSettings
from leanfed.rounds.engine import Engine, RoundOutcome
from leanfed.rounds.exchange import STATISTICS, train
from leanfed.rounds.selection import Participation
from leanfed.rounds.world import World
from leanfed.simulation import streamed
from leanfed.simulation.choose import choose_engine
from leanfed.simulation.reference import ReferenceEngine
from leanfed.simulation.streamed import StreamedEngine, saved_bytes, workers
from leanfed.tasks.batch import Batch
from leanfed.tasks.models import MODELS, ModelSpec
from leanfed.tasks.partition import PartitionSettings
from leanfed.tasks.split import flatten
from leanfed.tasks.task import Task, TaskSettings, build_task
from tests.methods import method_of
from tests.thinned import in_turn

CLASS_2 = PartitionSettings(kind="class", classes_per_client=2, clients=5)
EVERY = pytest.mark.parametrize("name", list(ALGORITHMS))
STATISTICS_OF = ("private", "shared")


def task_of(**settings: Any) -> Task:
    return build_task(TaskSettings(model="tiny-norm", partition=CLASS_2, **settings), seed=3)


def world_of(name: str = "fedper", task: Task | None = None, **training: Any) -> World:
    chosen = Training(**{"batch_size": 8, "local_steps": 2, **training})
    return World(task or task_of(), method_of(name), chosen, Participation(cohorts=((0, 1, 3), (1, 2, 4))))


def play(world: World, engine: Engine, rounds: int = 2) -> tuple[ServerState, ClientStore, list[RoundOutcome]]:
    server, clients, outcomes = world.algorithm.start_server(world.task), world.new_clients(), []
    for number in range(rounds):
        outcomes.append(engine.run_round(server, clients, world.plan(number)))
        server = outcomes[-1].server
    return server, clients, outcomes


def batches_of(world: World, client: int) -> Iterator[Batch]:
    """The client's batches of the first round."""
    training = world.training
    return world.task.batches(client, 0, training.batch_size, steps=training.local_steps, epochs=None)


def same(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[key], right[key]) for key in left)


@pytest.mark.parametrize(("name", "statistics"), in_turn(ALGORITHMS, STATISTICS_OF))
def test_a_streamed_run_is_the_reference_run_bit_for_bit(name: str, statistics: str) -> None:
    world = world_of(name, task_of(statistics=statistics), momentum=0.5)
    engines = (ReferenceEngine(world), StreamedEngine(world, threads=1), StreamedEngine(world, threads=2))
    (server, clients, outcomes), *others = (play(world, engine) for engine in engines)
    tested = engines[0].evaluate(server, clients)
    for engine, (theirs, other_clients, other_outcomes) in zip(engines[1:], others, strict=True):
        assert torch.equal(server.shared, theirs.shared)
        assert same(dict(server.memory), dict(theirs.memory))
        assert same(clients.snapshot(range(5)), other_clients.snapshot(range(5)))
        assert [o.loss.tolist() for o in outcomes] == [o.loss.tolist() for o in other_outcomes]
        found = engine.evaluate(theirs, other_clients)
        assert np.array_equal(tested.accuracy_per_client, found.accuracy_per_client)
        assert np.array_equal(tested.loss_per_client, found.loss_per_client)


def test_a_round_is_that_of_plain_models_trained_apart() -> None:
    """FedPer with torch alone: a model and an optimiser for each client, batch normalisation in its own hands."""
    world = world_of(learning_rate=0.05)
    server, clients, _ = play(world, StreamedEngine(world, threads=2), rounds=1)
    split, mean, total = world.split, torch.zeros(world.split.shared_size), 0.0
    for client in (0, 1, 3):
        model = world.task.new_model("base")
        parameters, start = dict(model.named_parameters()), 0
        for name, shape in split.private.items():
            head = world.task.initial_private(split, client)[start : start + shape.numel()]
            parameters[name].data.copy_(head.view(shape))
            start += shape.numel()
        optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
        for batch in batches_of(world, client):
            optimiser.zero_grad()
            functional.cross_entropy(model(batch.inputs), batch.labels).backward()
            optimiser.step()
        moved = (world.task.initial_shared(split) - flatten(model, split.shared)) / 0.05
        mean.add_(moved, alpha=float(world.task.gamma[client]))
        total += float(world.task.gamma[client])
        state = clients[client]
        assert torch.allclose(state.private, flatten(model, split.private), atol=1e-6)
        buffers = torch.cat([buffer.reshape(-1).float() for buffer in model.buffers()])
        assert torch.allclose(state.memory[STATISTICS], buffers, atol=1e-6)
    expected = world.task.initial_shared(split) - 0.05 * mean / total
    assert (server.shared - expected).norm() <= 1e-5 * expected.norm()


@EVERY
def test_statistics_do_not_leak_between_clients(name: str) -> None:
    """A client's statistics are the same whoever trains before it, and those who sit out keep theirs."""
    world = world_of(name)
    alone = replace(world, participation=Participation(cohorts=((3,),)))
    _, crowd, _ = play(world, StreamedEngine(world, threads=1), rounds=1)
    _, single, _ = play(alone, StreamedEngine(alone, threads=1), rounds=1)
    assert torch.equal(crowd[3].memory[STATISTICS], single[3].memory[STATISTICS])
    assert not torch.equal(crowd[3].memory[STATISTICS], crowd[1].memory[STATISTICS])
    assert STATISTICS not in crowd[2].memory


def test_a_clients_statistics_come_from_its_own_samples_only() -> None:
    """One step at momentum 0.1: 0.9 x initial + 0.1 x the batch's own mean, computed by hand for the first layer."""
    world = world_of(local_steps=1)
    engine = ReferenceEngine(world)
    _, clients, _ = play(world, engine, rounds=1)
    for client in (0, 1, 3):
        batch = next(batches_of(world, client))
        model = world.task.new_model("base")
        mean = model.conv1(batch.inputs).mean(dim=(0, 2, 3))
        assert torch.allclose(clients[client].memory[STATISTICS][:4], 0.1 * mean, atol=1e-6)


def test_private_statistics_stay_with_the_client_and_shared_ones_are_averaged() -> None:
    private, shared = (world_of(task=task_of(statistics=kind), local_steps=1) for kind in ("private", "shared"))
    server, clients, _ = play(private, ReferenceEngine(private), rounds=1)
    assert STATISTICS not in server.memory
    server, _, _ = play(shared, ReferenceEngine(shared), rounds=1)
    gamma = shared.task.gamma[[0, 1, 3]]
    expected = sum(g * clients[c].memory[STATISTICS][:9] for g, c in zip(gamma, (0, 1, 3), strict=True)) / gamma.sum()
    assert torch.allclose(server.memory[STATISTICS], expected, atol=1e-6)  # of the shared layer: 4 + 4 + 1 values


def test_shared_statistics_replace_a_clients_own_before_it_trains() -> None:
    world = world_of(task=task_of(statistics="shared"), local_steps=1)
    server, clients, _ = play(world, ReferenceEngine(world), rounds=1)
    marked = ServerState(server.shared, {STATISTICS: torch.full((9,), 100.0)})
    updates = train(world.algorithm, marked, world.alone(clients[1], 1, 1, 1.0, 1.0), world.new_learner())
    after = updates.state(0).memory[STATISTICS]
    assert (after[:8] > 85).all()  # 0.9 x 100 and a tenth of the batch's
    assert (after[9:25] < 50).all()  # the private layer goes on from its own
    assert torch.equal(updates.statistics[0], after[:9])


def test_shared_statistics_are_charged_for() -> None:
    bills = {}
    for kind in ("private", "shared"):
        world = world_of(task=task_of(statistics=kind), local_steps=1)
        _, _, outcomes = play(world, ReferenceEngine(world, wire="float32"), rounds=1)
        bills[kind] = Accountant(RadioSettings(), world).bill(world.plan(0), outcomes[0])
    more = bills["shared"].exact_bits - bills["private"].exact_bits
    assert more.tolist() == [32 * 9] * 3
    assert bills["shared"].cost.download_bits - bills["private"].cost.download_bits == 32 * 9
    coded = bills["shared"].coded_bits - bills["private"].coded_bits
    assert (coded >= 32 * 9).all()


def test_renewing_statistics_before_a_test_leaves_the_clients_alone() -> None:
    world = replace(world_of(), renew_statistics=3)
    engine = StreamedEngine(world, threads=2)
    server, clients, _ = play(world, engine)
    before = clients.snapshot(range(5))
    renewed, again = engine.evaluate(server, clients), engine.evaluate(server, clients)
    assert np.array_equal(renewed.loss_per_client, again.loss_per_client)
    assert same(before, clients.snapshot(range(5)))
    kept = StreamedEngine(replace(world, renew_statistics=0), threads=1).evaluate(server, clients)
    assert not np.array_equal(renewed.loss_per_client, kept.loss_per_client)


def test_models_without_kernels_stream() -> None:
    engine = choose_engine(world_of(), threads=1)
    assert engine.name == "streamed"
    assert "its kernels know lenet5, not 'tiny-norm'" in engine.reason


def test_a_batch_of_one_sample_is_refused_with_a_way_out() -> None:
    task = build_task(TaskSettings(partition=CLASS_2), seed=3)
    MODELS.add("flat-norm", ModelSpec(FlatNorm, input_shape=(1, 32, 32), default_split="first"))
    try:
        world = world_of(task=replace(task, settings=TaskSettings(model="flat-norm", partition=CLASS_2)), batch_size=1)
        with pytest.raises(InputError, match=r"^Client 0 has a batch of a single sample in round 0"):
            play(world, ReferenceEngine(world))
    finally:
        MODELS.remove("flat-norm")


class FlatNorm(nn.Sequential):
    """Normalises single values, so that a batch of one has no variance."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.flat, self.first, self.norm = nn.Flatten(), nn.Linear(1024, 4), nn.BatchNorm1d(4)
        self.last = nn.Linear(4, classes)


class Dropping(nn.Module):
    """A model that draws at random while it trains."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.first, self.drop, self.last = nn.Linear(1024, 8), nn.Dropout(0.5), nn.Linear(8, classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.last(self.drop(self.first(images.flatten(1))))


def test_dropout_follows_from_the_seed_and_leaves_torchs_generator_alone() -> None:
    MODELS.add("dropping", ModelSpec(Dropping, input_shape=(1, 32, 32), default_split="first"))
    try:
        task = build_task(TaskSettings(model="dropping", partition=CLASS_2), seed=3)
        world = world_of(task=task)
        engine = StreamedEngine(world, threads=2)
        assert engine.threads == 1
        torch.manual_seed(1)
        state = torch.get_rng_state()
        first, _, _ = play(world, engine)
        assert torch.equal(torch.get_rng_state(), state)
        torch.manual_seed(2)
        second, _, _ = play(world, ReferenceEngine(world))
        assert torch.equal(first.shared, second.shared)
    finally:
        MODELS.remove("dropping")


def test_workers_are_as_many_as_memory_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    world, model = world_of(), world_of().new_learner().model
    assert workers(world, model, 3) == 3
    each = streamed.VECTORS * 4 * world.split.size + 8 * saved_bytes(model, torch.randn(1, 1, 32, 32))
    monkeypatch.setattr(streamed, "WORKING_BYTES", 2 * each + 1)
    assert workers(world, model, 3) == 2
    monkeypatch.setattr(streamed, "WORKING_BYTES", 1)
    assert workers(world, model, 3) == 1
    assert torch.equal(model.statistics.read(), model.statistics.initial)


def test_saved_bytes_grow_with_the_batch_and_leave_weights_out() -> None:
    model = world_of().new_learner().model
    two, four = (saved_bytes(model, torch.randn(count, 1, 32, 32)) for count in (2, 4))
    per_sample = (four - two) / 2
    assert two == pytest.approx(2 * per_sample, rel=0.1)  # the statistics of a batch are kept once
