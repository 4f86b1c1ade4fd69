"""Every path of the engine gives the reference's round, from identical states, for every method and option."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from leanfed.algorithms import ALGORITHMS, Training
from leanfed.algorithms.local import DivergedError
from leanfed.records import RoundPlan
from leanfed.rounds.aggregation import divided
from leanfed.rounds.loop import start
from leanfed.rounds.selection import Participation
from leanfed.rounds.world import World
from leanfed.simulation.batched import engine as batched
from leanfed.simulation.batched.engine import BatchedEngine
from leanfed.simulation.choose import choose_engine
from leanfed.simulation.reference import ReferenceEngine
from leanfed.tasks.partition import PartitionSettings
from leanfed.tasks.task import TaskSettings, build_task
from tests.methods import method_of
from tests.thinned import in_turn

CLIENTS, CHUNK = 6, 4  # a full chunk and a short one
GRADIENT = 1e-5  # relative, in the norm: float32 sums in another order
PATHS = [pytest.param(True, id="kernels"), pytest.param(False, id="torch")]
ONE_STEP = {"batch_size": 8, "learning_rate_decay": 0.9}
STEPS = {"batch_size": 5, "local_steps": 2, "momentum": 0.9, "weight_decay": 1e-3}
METHODS = [
    {"name": "flpdsp", "k": 0.1, "r": 0.5},
    {"name": "fedper"},
    {"name": "lg-fedavg"},
    {"name": "fedavg"},
    {"name": "fedavg-s"},
    {"name": "fedavg-p"},
    {"name": "fedmask", "pruning_steps": 2},
    {"name": "local"},
    {"name": "head-only", "head_steps": 2},
    {"name": "fedrep", "head_steps": 2},
    {"name": "fedprox"},
    {"name": "scaffold"},
    {"name": "feddyn"},
    {"name": "ditto"},
    {"name": "apfl"},
    {"name": "pfedme", "inner_steps": 2},
    {"name": "per-fedavg", "form": "hessian-free", "delta": 0.1},
    {"name": "fedbabu", "tune_steps": 2},
    {"name": "fedala"},
    {"name": "spafl"},
    {"name": "fedper", "k": 0.1, "head_steps": 3, "sparsify": {"error_feedback": True}},
    {"name": "lg-fedavg", "k": 0.1, "sparsify": {"error_feedback": True}},
]
# Without kernels the methods' own code is the same: by default those whose rounds have another shape.
OTHER_SHAPES = ("flpdsp", "fedmask", "fedrep", "scaffold", "apfl", "per-fedavg")
EVERY_PATH = [
    pytest.param(
        method,
        path.values[0],
        id=f"{method['name']}-{path.id}",
        marks=() if path.values[0] or method["name"] in OTHER_SHAPES else pytest.mark.slow,
    )
    for method in METHODS
    for path in PATHS
]
# Company and threads are the chunks' own matter: by default the same shapes, with kernels and without.
EVERY_CHUNK = [
    pytest.param(*case.values, id=case.id, marks=() if case.values[0]["name"] in OTHER_SHAPES else pytest.mark.slow)
    for case in EVERY_PATH
]
SINGLE = [method for method in METHODS if method["name"] in ("flpdsp", "fedavg-p", "local", "scaffold", "fedala")]
OPTIONS = [
    {"prune": {"score": "importance", "head_memory": "keep"}},
    {"prune": {"score": "importance", "masked_gradient": True}, "r": 0.1},
    {"prune": {"score": "random", "masked_gradient": True, "head_memory": "keep"}},
    {"prune": {"score": "random-redrawn"}},
    {"sparsify": {"error_feedback": True}, "k": 0.01},
    {"sparsify": {"select": "random", "rescale": True}, "k": 0.2},
    {"sparsify": {"select": "random", "error_feedback": True}},
    {"sparsify": {"select": "common"}},
    {"sparsify": {"select": "common", "error_feedback": True}},
    {"k": tuple(np.linspace(0.05, 1, CLIENTS)), "r": tuple(np.linspace(1, 0.02, CLIENTS))},
    {"k": 1e-9, "r": 1e-9},
    {"head_steps": 4},
    {"head_steps": 3, "prune": {"score": "importance", "masked_gradient": True, "head_memory": "keep"}},
]


@pytest.fixture(autouse=True)
def one_torch_thread(monkeypatch):
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.setattr(batched, "CHUNK_CLIENTS", CHUNK)
    yield
    torch.set_num_threads(before)


def task_of(split=None, clients=CLIENTS):
    partition = PartitionSettings(kind="class", classes_per_client=2, clients=clients)
    return build_task(TaskSettings(partition=partition, split=split), seed=3)


@pytest.fixture(scope="module")
def task():
    return task_of()


def world_of(task, method, training=ONE_STEP, **participation):
    algorithm = ALGORITHMS[method["name"]](**method)
    return World(task, algorithm, Training(**training), Participation(**participation))


def state_of(clients):
    """`client.name` -> what the client holds."""
    snapshot = clients.snapshot(range(clients.clients))
    names = [name for name in snapshot if not name.endswith(".clients")]
    return {
        f"{client}.{name}": row
        for name in names
        for client, row in zip(snapshot[f"{name}.clients"].tolist(), snapshot[name], strict=True)
    }


def copy_of(world, clients):
    copy, everyone = world.new_clients(), range(clients.clients)
    copy.restore(clients.snapshot(everyone), everyone)
    copy.changed = set(clients.changed)
    return copy


def reference_mean(world, server, clients, plan):
    """The mean upload as the plain method makes it, leaving the clients alone."""
    learner, uploads = world.new_learner(), []
    for client, k, r in zip(plan.participants, plan.k, plan.r, strict=True):
        cohort = world.alone(clients[client], client, plan.round, k, r)
        uploads += world.algorithm.client_update(server.shared, cohort, learner).uploads
    return world.aggregation.combine(len(server.shared), world.task.gamma[list(plan.participants)], uploads)


def engine_mean(world, engine, server, clients, plan):
    """The mean upload as an engine sums it."""
    answers = engine.exchange(server, clients, plan, single=False)
    return divided(answers.total, answers.gamma)


def distance(ours, reference):
    """Relative, in the norm."""
    return float((ours - reference).norm() / reference.norm().clamp_min(1e-30))


def assert_same_upload(world, engine, server, clients, plan):
    expected = reference_mean(world, server, clients, plan)
    mean = engine_mean(world, engine, server, copy_of(world, clients), plan)
    assert torch.equal(mean != 0, expected != 0)  # the same entries were selected
    assert distance(mean, expected) <= GRADIENT


def assert_same_outcome(ours, expected):
    assert np.allclose(ours.loss, expected.loss, rtol=1e-5)
    assert np.array_equal(ours.entries, expected.entries)
    assert np.array_equal(ours.samples, expected.samples)
    assert distance(ours.server.shared, expected.server.shared) <= GRADIENT
    assert ours.server.memory.keys() == expected.server.memory.keys()
    for name, tensor in expected.server.memory.items():
        assert distance(ours.server.memory[name], tensor) <= GRADIENT


def assert_same_clients(ours, expected):
    assert ours.changed == expected.changed
    left, right = state_of(ours), state_of(expected)
    assert left.keys() == right.keys()
    for key, tensor in right.items():
        assert distance(left[key], tensor) <= GRADIENT, key


def assert_same_rounds(world, engine, rounds=2):
    """Every round is the reference's, but for units next to the kink of their ReLU.

    On which side of it such a unit lies is decided by rounding, and then the gradient differs by all that the unit
    adds: one test in twenty meets one, on every kind of processor another. With other samples it is
    gone, and a fault is not.
    """
    try:
        compare_rounds(world, engine, rounds)
    except AssertionError as first:
        others = [replace(world, task=replace(world.task, seed=seed)) for seed in (11, 12, 13)]
        if sum(agrees(other, engine.at(other), rounds) for other in others) < 2:
            raise first


def agrees(world, engine, rounds):
    try:
        compare_rounds(world, engine, rounds)
    except AssertionError:
        return False
    return True


def compare_rounds(world, engine, rounds):
    """Each round starts from the reference's own state, so that rounding differences do not add up over rounds."""
    reference = ReferenceEngine(world)
    server, clients = world.algorithm.start_server(world.task), world.new_clients()
    for number in range(rounds):
        plan = world.plan(number)
        assert_same_upload(world, engine, server, clients, plan)
        ours = copy_of(world, clients)
        outcome = engine.run_round(server, ours, plan)
        expected = reference.run_round(server, clients, plan)
        assert_same_outcome(outcome, expected)
        assert_same_clients(ours, clients)
        server = expected.server


def name_of(value):
    return "-".join(f"{k}={v}" for k, v in value.items() if k != "name")[:60] or value["name"]


@pytest.mark.parametrize(("method", "compiled"), EVERY_PATH)
def test_a_round_is_the_reference_round(task, method, compiled):
    world = world_of(task, method, STEPS)
    assert_same_rounds(world, BatchedEngine(world, compiled=compiled, threads=2))


@pytest.mark.parametrize("method", SINGLE, ids=lambda m: m["name"])
def test_a_round_of_one_step_is_the_reference_round(task, method):
    """A single step's gradient is not copied, where it is not needed again."""
    world = world_of(task, method, ONE_STEP)
    assert_same_rounds(world, BatchedEngine(world, threads=2))


@pytest.mark.parametrize(("options", "path"), in_turn(map(name_of, OPTIONS), ("kernels", "torch")))
def test_every_option_gives_the_reference_round(task, options, path):
    options = next(each for each in OPTIONS if name_of(each) == options)
    training = {"batch_size": 4, "momentum": 0.5, "weight_decay": 1e-2}
    world = world_of(task, {"name": "flpdsp", "k": 0.1, "r": 0.5, **options}, training)
    assert_same_rounds(world, BatchedEngine(world, compiled=path == "kernels", threads=1))


@pytest.mark.parametrize("compiled", PATHS)
@pytest.mark.parametrize("k", [0.01, 0.1, 0.7])
def test_each_client_sends_the_entries_that_the_reference_sends(task, k, compiled):
    """Two entries may trade places only where their sizes differ by less than the rounding of a gradient."""
    world = world_of(task, {"name": "flpdsp", "k": k})
    engine, learner = BatchedEngine(world, compiled=compiled, threads=1), world.new_learner()
    server, clients = world.algorithm.start_server(task), world.new_clients()
    for client in range(CLIENTS):
        asked, whole = (world.alone(clients[client], client, 0, rate, 0.5) for rate in (k, 1.0))
        (sent,) = world.algorithm.client_update(server.shared, asked, learner).uploads
        gradient = next(iter(world.algorithm.client_update(server.shared, whole, learner).uploads)).values
        plan = RoundPlan(0, (client,), np.array([k]), np.array([0.5]))
        ours = engine_mean(world, engine, server, clients, plan)
        traded = (ours != 0).index_fill(0, sent.positions, False)
        assert torch.count_nonzero(ours) == torch.count_nonzero(sent.values)
        assert torch.all(gradient[traded].abs() >= (1 - GRADIENT) * sent.values.abs().min())


@pytest.mark.parametrize("split", ["conv1", "conv2", "conv3", "fc1"])
@pytest.mark.parametrize("name", ["flpdsp", "lg-fedavg"])
def test_any_cut_of_the_model_gives_the_reference_round(split, name):
    world = world_of(task_of(split, clients=5), {"name": name})
    assert_same_rounds(world, BatchedEngine(world, threads=1))


@pytest.mark.parametrize(("split", "path"), in_turn(("conv1", "conv3", "fc1"), ("kernels", "torch")))
def test_heads_that_take_further_steps_give_the_reference_round_at_any_cut(split, path):
    world = world_of(task_of(split, clients=5), {"name": "flpdsp", "k": 0.1, "r": 0.5, "head_steps": 3}, STEPS)
    assert_same_rounds(world, BatchedEngine(world, compiled=path == "kernels", threads=1))


@pytest.mark.parametrize("sparsify", [{"error_feedback": True}, {"select": "random"}], ids=name_of)
def test_fedavg_s_options_give_the_reference_round(task, sparsify):
    world = world_of(task, {"name": "fedavg-s", "sparsify": sparsify})
    assert_same_rounds(world, BatchedEngine(world, threads=1))


def test_a_part_of_the_clients_leaves_the_others_alone(task):
    world = world_of(task, {"name": "flpdsp", "sparsify": {"error_feedback": True}}, cohorts=((1, 3, 5), (0, 3, 4)))
    assert_same_rounds(world, BatchedEngine(world, threads=2))


def test_keep_rates_of_a_plan_may_differ_for_a_global_mask(task):
    world = world_of(task, {"name": "fedavg-p"})
    server, clients = world.algorithm.start_server(task), world.new_clients()
    plan = RoundPlan(0, (0, 3, 5), np.ones(3), np.array([0.2, 0.5, 1.0]))
    assert_same_upload(world, BatchedEngine(world, threads=1), server, clients, plan)


@pytest.mark.parametrize(("method", "compiled"), EVERY_CHUNK)
def test_chunks_and_threads_do_not_change_a_bit(task, method, compiled, monkeypatch):
    ends = []
    for size, threads in ((5, 2), (1, 2), (4, 1)):
        monkeypatch.setattr(batched, "CHUNK_CLIENTS", size)
        world = world_of(task, method, STEPS)
        engine = BatchedEngine(world, compiled=compiled, threads=threads)
        server, clients = world.algorithm.start_server(task), world.new_clients()
        for number in range(2):
            server = engine.run_round(server, clients, world.plan(number)).server
        ends.append({"server": server.shared, **state_of(clients)})
    for other in ends[1:]:
        assert all(torch.equal(tensor, other[key]) for key, tensor in ends[0].items())


@pytest.mark.parametrize("name", ["reference", "streamed", "batched", "batched-torch"])
@pytest.mark.parametrize("training", [ONE_STEP, STEPS], ids=["one-step", "two-steps"])
def test_divergence_names_the_first_client_and_the_round(task, name, training):
    world = world_of(task, {"name": "fedper"}, training)
    server, clients = world.algorithm.start_server(task), world.new_clients()
    for client in (4, 5):
        state = clients[client]
        state.private[5] = float("nan")
        clients[client] = state
    with pytest.raises(DivergedError, match=r"^Client 4 diverged in round 4 while training: its loss is nan"):
        choose_engine(world, name, threads=2).run_round(server, clients, world.plan(4))


@pytest.mark.parametrize("name", ["reference", "streamed", "batched", "batched-torch"])
def test_a_broken_first_layer_is_divergence(task, name):
    world = world_of(task, {"name": "fedper"})
    server = world.algorithm.start_server(task)
    server.shared[3] = float("inf")
    with pytest.raises(DivergedError, match="Client 0 diverged in round 0"):
        choose_engine(world, name).run_round(server, world.new_clients(), world.plan(0))


def test_a_round_leaves_torch_threads_alone(task):
    torch.set_num_threads(2)
    world = world_of(task, {"name": "fedper"})
    BatchedEngine(world, threads=2).run_round(world.algorithm.start_server(task), world.new_clients(), world.plan(0))
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize("compiled", PATHS)
def test_a_round_leaves_the_server_state_alone(task, compiled):
    world = world_of(task, {"name": "flpdsp", "sparsify": {"error_feedback": True}}, STEPS)
    server, clients = world.algorithm.start_server(task), world.new_clients()
    engine, before = BatchedEngine(world, compiled=compiled), server.shared.clone()
    first = engine.run_round(server, copy_of(world, clients), world.plan(0))
    again = engine.run_round(server, copy_of(world, clients), world.plan(0))
    assert torch.equal(server.shared, before)
    assert torch.equal(first.server.shared, again.server.shared)


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_evaluation_equals_the_references(name, world_of):
    world = world_of(method_of(name))
    reference = ReferenceEngine(world)
    progress = start(world)
    server = reference.run_round(progress.server, progress.clients, world.plan(0)).server
    expected = reference.evaluate(server, progress.clients)
    for compiled in (True, False):
        found = BatchedEngine(world, compiled=compiled, threads=2).evaluate(server, progress.clients)
        assert found.accuracy_per_client == pytest.approx(expected.accuracy_per_client)
        assert found.loss_per_client == pytest.approx(expected.loss_per_client, rel=1e-5)


def test_batched_flpdsp_without_compression_is_batched_fedper_bit_for_bit(world_of):
    ends = []
    for method in (ALGORITHMS["flpdsp"](k=1, r=1), ALGORITHMS["fedper"]()):
        world = world_of(method)
        progress, engine = start(world), BatchedEngine(world, threads=2)
        server = progress.server
        for number in range(3):
            server = engine.run_round(server, progress.clients, world.plan(number)).server
        ends.append((server.shared, progress.clients.snapshot(range(5))))
    assert torch.equal(ends[0][0], ends[1][0])
    assert all(torch.equal(ends[0][1][key], ends[1][1][key]) for key in ends[1][1])
