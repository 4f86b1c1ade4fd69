"""Clients with narrower models: trained, averaged over those that have an entry, charged, tested and kept."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import leanfed
from leanfed.algorithms import ALGORITHMS
from leanfed.allocation.limits import plan_cost
from leanfed.deployment.learning.config import read_settings
from leanfed.errors import InputError, SettingsError
from leanfed.records import RoundPlan
from leanfed.results import RunFolder
from leanfed.rounds.costs import Accountant, planned_share, upload_bits
from leanfed.rounds.engine import RoundOutcome
from leanfed.rounds.evaluation import evaluate
from leanfed.rounds.exchange import train
from leanfed.rounds.nested import coverage, covered_mean
from leanfed.rounds.width import drawn_widths
from leanfed.rounds.world import World
from leanfed.runs.export import client_model
from leanfed.runs.prepare import build_world, prepare
from leanfed.runs.recost import recost
from leanfed.runs.settings import Settings
from leanfed.simulation.reference import ReferenceEngine
from leanfed.simulation.streamed import StreamedEngine
from leanfed.tasks.datasets import DATASETS, DatasetSpec, EmbeddedSource
from leanfed.tasks.models import MODELS, ModelSpec
from leanfed.tasks.resnet import ResNet18
from leanfed.wireless.payload import exact_bits
from tests.stops import check_resumed

FULL = (8, 8, 16, 16)
REFUSED = {"apfl", "fedala", "feddyn", "fedmask", "scaffold", "spafl"}


def blobs(split: str) -> tuple[np.ndarray, np.ndarray]:
    """Colour pictures whose shade tells the class, with noise."""
    rng = np.random.default_rng(1 if split == "train" else 2)
    labels = np.repeat(np.arange(4), 40 if split == "train" else 10)
    shades = np.array([[220, 40, 40], [40, 220, 40], [40, 40, 220], [200, 200, 40]])[labels]
    pictures = shades[:, :, None, None] + rng.integers(-35, 35, (len(labels), 3, 32, 32))
    return pictures.astype(np.uint8), labels


def narrow_tiny(classes: int, width: float) -> ResNet18:
    return ResNet18(classes, "large", tuple(int(width * channels) for channels in FULL))


@pytest.fixture(autouse=True)
def small_world() -> Iterator[None]:
    spec = {"mean": (0.5,) * 3, "deviation": (0.25,) * 3, "shape": (3, 32, 32), "rows": {"train": 160, "test": 40}}
    DATASETS.add("shades", DatasetSpec(EmbeddedSource("numpy", blobs), ("image",), 4, **spec))
    build = partial(ResNet18, stem="large", widths=FULL)
    MODELS.add("tiny-resnet", ModelSpec(build, (3, 32, 32), default_split="stage4.0", narrow=narrow_tiny))
    yield
    DATASETS.remove("shades")
    MODELS.remove("tiny-resnet")


def settings_of(name: str = "fedper", **values: Any) -> Settings:
    partition = {"kind": "iid", "clients": 4}
    return Settings.from_values(
        {
            "rounds": 3,
            "task": {"dataset": "shades", "model": "tiny-resnet", "partition": partition},
            "algorithm": {"name": name},
            "training": {"batch_size": 8, "learning_rate": 0.05},
            "evaluation": {"every": 1},
            "width": {"shares": [0.5, 1.0]},
            **values,
        }
    )


def world_of(*widths: float, **values: Any) -> World:
    return build_world(settings_of(**values, width={"shares": widths, "by": "client"}))


def test_every_entry_is_averaged_over_those_that_have_it() -> None:
    """Gammas 0.25, 0.5, 0.25 at widths 0.5, 1, 0.25 of nine entries, of which the narrow ones have four and one."""
    world = world_of(0.5, 1.0, 0.25, 1.0)
    nests = [world.nest(client) for client in (0, 1, 2)]
    assert nests[1] is None
    four, one = (replace(nest, shared=torch.tensor(own)) for nest, own in ((nests[0], [0, 1, 3, 4]), (nests[2], [0])))
    weights = coverage([four, None, one], np.array([0.25, 0.5, 0.25]), 9)
    assert weights.tolist() == [1.0, 0.75, 0.5, 0.75, 0.75, 0.5, 0.5, 0.5, 0.5]
    total = torch.full((9,), 1.5, dtype=torch.float64)
    assert covered_mean(total, weights).tolist() == [1.5, 2.0, 3.0, 2.0, 2.0, 3.0, 3.0, 3.0, 3.0]
    alone = coverage([four], np.array([0.25]), 9)
    assert covered_mean(alone, alone).tolist() == [1, 1, 0, 1, 1, 0, 0, 0, 0]  # what nobody has stays


def test_a_round_moves_the_base_by_the_mean_over_those_that_have_an_entry() -> None:
    """By hand from the clients' own gradients, Eq. (6) entry by entry."""
    world = world_of(0.5, 1.0, 0.25, 1.0)
    engine, clients, server = ReferenceEngine(world), world.new_clients(), world.algorithm.start_server(world.task)
    plan = world.plan(0)
    top, bottom = np.zeros(len(server.shared)), np.zeros(len(server.shared))
    for client in plan.participants:
        cohort = world.alone(clients[client], client, 0, 1.0, 1.0)
        (upload,) = train(world.algorithm, server, cohort, engine.learner).uploads
        places = np.arange(len(server.shared)) if upload.places is None else upload.places.numpy()
        top[places] += world.task.gamma[client] * upload.values.numpy()
        bottom[places] += world.task.gamma[client]
    after = engine.run_round(server, clients, plan).server.shared.numpy()
    np.testing.assert_allclose(after, server.shared.numpy() - 0.05 * top / bottom, rtol=0, atol=1e-6)  # float32


def test_a_narrow_client_changes_its_own_part_of_everything_only() -> None:
    """The head, error feedback and running statistics; what it does not have stays bit for bit."""
    algorithm = {"name": "flpdsp", "k": 0.1, "r": 0.5, "sparsify": {"error_feedback": True}}
    world = build_world(settings_of(algorithm=algorithm, width={"shares": [0.5] * 4, "by": "client"}))
    learner, server = world.new_learner(), world.algorithm.start_server(world.task)
    before, nest = world.new_clients()[2], world.nest(2)
    assert nest is not None
    updates = train(world.algorithm, server, world.alone(before, 2, 0, 0.1, 0.5), learner)
    after = updates.state(0)
    for new, old, places in (
        (after.private, before.private, nest.private),
        (after.memory["residual"], torch.zeros(world.split.shared_size), nest.shared),
        (after.memory["statistics"], learner.model.statistics.initial, nest.statistics),
    ):
        outside = torch.ones(len(new), dtype=torch.bool)
        outside[places] = False
        assert torch.equal(new[outside], old[outside])
        assert not torch.equal(new[places], old[places])
    assert [len(upload.values) for upload in updates.uploads] == [int(0.1 * len(nest.shared))]
    small = learner.nested[0.5].model.model
    assert small.stage3[0].conv1.out_channels == 8  # it is really narrower


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_method_trains_narrow_clients_or_is_refused_in_words(name: str) -> None:
    if name in REFUSED:
        with pytest.raises(SettingsError, match=rf"\[width\] does not fit algorithm.name = '{name}'"):
            build_world(settings_of(name))
        return
    run = leanfed.run(settings_of(name, rounds=1))
    assert sorted(set(run.clients["width"])) == [0.5, 1.0]
    assert run.clients["loss"].is_finite().all()


@pytest.mark.parametrize("method", [{"name": "fedper"}, {"name": "flpdsp", "k": 0.2, "r": 0.5}, {"name": "ditto"}])
def test_all_at_width_one_is_no_width_bit_for_bit(method: dict[str, Any], tmp_path: Path) -> None:
    whole = leanfed.run(settings_of(algorithm=method, width={}), tmp_path / "a")
    ones = leanfed.run(settings_of(algorithm=method, width={"shares": [1.0]}), tmp_path / "b")
    assert whole.rounds.equals(ones.rounds)
    assert whole.clients.equals(ones.clients.drop("width"))
    assert (tmp_path / "a/weights.safetensors").read_bytes() == (tmp_path / "b/weights.safetensors").read_bytes()


@pytest.mark.parametrize("schedule", [[], [[1, "stage3.1"], [2, "stage2.0"]]], ids=["one cut", "moving cut"])
def test_a_resumed_run_is_the_unbroken_one(schedule: list[Any], tmp_path: Path) -> None:
    task = {**settings_of().task.model_dump(), "split_schedule": schedule}
    method = {"name": "flpdsp", "k": 0.2, "r": 0.5}
    values: dict[str, Any] = {"algorithm": method, "width": {"shares": [0.25, 0.5, 1.0]}, "task": task}
    check_resumed(settings_of(**values), tmp_path, rounds=2)


def test_engines_agree_and_the_codec_counts_what_is_charged() -> None:
    world = world_of(0.5, 1.0, 0.25, 1.0, algorithm={"name": "flpdsp", "k": 0.1, "r": 0.5})
    ends = []
    for engine in (ReferenceEngine(world), StreamedEngine(world, threads=2), ReferenceEngine(world, "float32")):
        clients, server = world.new_clients(), world.algorithm.start_server(world.task)
        outcome = engine.run_round(server, clients, world.plan(0))
        tested = engine.evaluate(outcome.server, clients).loss_per_client
        assert np.array_equal(tested, evaluate(world, outcome.server, clients, world.new_learner()).loss_per_client)
        ends.append(outcome)
    assert all(torch.equal(ends[0].server.shared, end.server.shared) for end in ends)
    charged, _ = upload_bits(world, settings_of().radio, ends[0].entries, (0, 1, 2, 3))
    assert ends[2].coded_bits is not None
    assert (ends[2].coded_bits <= 1.01 * charged + 8 * 64).all()  # 64 bytes of a frame beside its values
    assert (ends[2].coded_bits >= charged).all()


def test_costs_know_the_smaller_model() -> None:
    world = world_of(0.5, 1.0, 0.25, 1.0)
    plan, settings = world.plan(0), settings_of()
    sizes = [world.inner(w)[0].split.shared_size for w in (0.5, 0.25)]
    entries = world.entries(plan)
    assert entries.tolist() == [sizes[0], world.split.shared_size, sizes[1], world.split.shared_size]
    bits, paper = upload_bits(world, settings.radio, entries, plan.participants)
    assert bits.tolist() == [float(exact_bits(size, size)) for size in entries.tolist()] == (32.0 * entries).tolist()
    assert (bits == paper).all()
    by_weights = planned_share(world, settings.radio, plan)
    assert by_weights[0] == pytest.approx(world.inner(0.5)[0].split.size / world.split.size)
    counted = settings.radio.model_copy(update={"computation": "operations"})
    by_operations = planned_share(world, counted, plan)
    small = world.inner(0.5)[0]
    assert small.step_time is not None and world.step_time is not None
    assert by_operations.tolist() == [small.step_time / world.step_time, 1.0, by_operations[2], 1.0]
    assert by_operations[2] < by_operations[0] < 0.5
    bill = Accountant(counted, world).bill(
        plan, ReferenceEngine(world).run_round(world.algorithm.start_server(world.task), world.new_clients(), plan)
    )
    assert bill.cost.upload_bits.tolist() == bits.tolist()


def test_pruned_and_sparse_rates_are_of_the_narrow_model() -> None:
    world = world_of(0.5, 1.0, 0.25, 1.0, algorithm={"name": "flpdsp", "k": 0.1, "r": 0.5})
    small = world.inner(0.5)[0].split
    plan = RoundPlan(0, (0,), np.array([0.1]), np.array([0.5]))
    assert world.entries(plan).tolist() == [int(0.1 * small.shared_size)]
    share = planned_share(world, settings_of().radio, plan)
    assert share[0] == pytest.approx((small.shared_size + 0.5 * small.private_size) / world.split.size)  # Eq. (12)


@pytest.mark.parametrize("wait", [{"wait": "pace", "within_rounds": 1}, {"bandwidth": "min-max"}])
def test_the_planner_gives_narrow_clients_less_band(wait: dict[str, Any]) -> None:
    fleet = {"hold": ["place", "cpu", "power"], "cpu_hz": [1e9, 1e9], "power_dbm": [23, 23], "nearest_m": 199.9}
    values = {"allocation": wait, "radio": {"fleet": fleet}, "width": {"shares": [0.5, 1.0, 0.5, 1.0], "by": "client"}}
    plan = prepare(settings_of(**values)).planner.plan(0).plan
    assert plan.participants == (0, 1, 2, 3)
    assert plan.share is not None
    assert plan.share[0] < 0.5 * plan.share[1]


JOINT = {
    "fast": {"rule": "joint", "form": "fast", "within_rounds": 1},
    "tuned": {"rule": "joint", "form": "tuned", "within_rounds": 1, "head_steps_max": 2},
    "safe": {"rule": "joint", "form": "safe", "theta1": 0.5, "theta2": 1.0},
    "plain": {"rule": "joint", "form": "plain", "theta1": 0.5, "theta2": 1.0},
}


@pytest.mark.parametrize("form", sorted(JOINT))
@pytest.mark.parametrize("computation", ["weights", "operations"])
def test_joint_plans_know_the_size_of_every_client(form: str, computation: str) -> None:
    """What is planned is what is charged, and all whole is the plan without widths, bit for bit."""
    limits = {"deadline_s": 30.0, "energy_budget_j": 30.0}
    radio = {"computation": computation, "fleet": {"bandwidth_hz": 2e5}}
    values = {"algorithm": {"name": "flpdsp"}, "allocation": {**JOINT[form], **limits}, "radio": radio}
    mixed = prepare(settings_of(**values, width={"shares": [0.5, 1.0, 0.25, 1.0], "by": "client"}))
    planner, world = mixed.planner, mixed.planner.world
    plan, problem = planner.plan(0).plan, planner._problem(0, (0, 1, 2, 3))
    sizes = [world.inner(w)[0].split.shared_size for w in (0.5, 0.25)]
    assert problem.base_size.tolist() == [sizes[0], world.split.shared_size, sizes[1], world.split.shared_size]
    assert plan.participants == (0, 1, 2, 3) and plan.share is not None
    entries = world.entries(plan)
    outcome = RoundOutcome(None, np.zeros(4), world.samples(plan.participants).astype(np.int64), entries)  # type: ignore[arg-type]
    charged = planner.accountant.bill(plan, outcome).cost.latency_s
    steps = plan.head_steps
    planned = plan_cost(planner._problem(0, (0, 1, 2, 3), head_steps=steps), plan.k, plan.r, plan.share)[0]
    assert (charged <= planned * (1 + 1e-9)).all()  # k is rounded down to whole entries
    assert charged == pytest.approx(planned, rel=1e-2)
    whole = prepare(settings_of(**values, width={"shares": [1.0] * 4, "by": "client"})).planner.plan(0).plan
    plain = prepare(settings_of(**values, width={})).planner.plan(0).plan
    assert (whole.participants, whole.k.tolist(), whole.r.tolist()) == (
        plain.participants,
        plain.k.tolist(),
        plain.r.tolist(),
    )
    assert whole.share is not None and plain.share is not None
    assert whole.share.tolist() == plain.share.tolist()


@pytest.mark.slow
def test_a_joint_run_of_mixed_widths_trains_and_resumes(tmp_path: Path) -> None:
    values = {"algorithm": {"name": "flpdsp"}, "allocation": JOINT["tuned"], "width": {"shares": [0.5, 1.0]}}
    check_resumed(settings_of(**values), tmp_path, rounds=2)


def test_a_quarter_of_the_clients_each() -> None:
    widths = drawn_widths((0.25, 0.5, 0.75, 1.0), 20, seed=4)
    assert {share: int((widths == share).sum()) for share in (0.25, 0.5, 0.75, 1.0)} == dict.fromkeys(
        (0.25, 0.5, 0.75, 1.0), 5
    )
    assert widths.tolist() == drawn_widths((0.25, 0.5, 0.75, 1.0), 20, seed=4).tolist()


def test_slow_devices_get_narrow_models() -> None:
    radio = {"fleet": {"slow_share": 0.25, "slow_factor": 10.0, "cpu_hz": [1e9, 1e9]}}
    world = build_world(settings_of(radio=radio, width={"shares": [0.25, 0.5, 1.0], "by": "speed"}))
    assert world.widths is not None
    slow = Accountant(settings_of(radio=radio).radio, world).fleet.state(0).cpu_hz < 5e8
    assert np.array(world.widths)[~slow].tolist() == [1.0] * 3
    assert np.array(world.widths)[slow].tolist() == [0.25]


def test_a_run_whose_widths_follow_the_devices_is_not_charged_anew(tmp_path: Path) -> None:
    values = {"radio": {"fleet": {"hold": ["cpu"]}}, "width": {"shares": [0.5, 1.0], "by": "speed"}}
    leanfed.run(settings_of(**values), tmp_path / "run")
    other = {**values, "radio": {"fleet": {"hold": ["cpu"], "bandwidth_hz": 2e7}}}
    with pytest.raises(InputError, match="another radio"):
        recost(tmp_path / "run", settings_of(**other), tmp_path / "again")


def test_a_run_is_charged_anew_for_narrow_models(tmp_path: Path) -> None:
    leanfed.run(settings_of(), tmp_path / "run")
    other = settings_of(radio={"computation": "operations", "fleet": {"bandwidth_hz": 2e7}})
    trained = leanfed.run(other)
    charged = recost(tmp_path / "run", other, tmp_path / "again")
    assert charged.clients.equals(trained.clients)
    assert charged.rounds.equals(trained.rounds)


def test_a_client_exports_its_own_width(tmp_path: Path) -> None:
    leanfed.run(settings_of(width={"shares": [0.5, 1.0, 0.25, 1.0], "by": "client"}), tmp_path / "run")
    world, model = client_model(RunFolder(tmp_path / "run"), 0)
    assert model.fc.in_features == 8
    assert world.split.size == sum(value.numel() for value in model.parameters())
    assert json.loads((tmp_path / "run/world.json").read_text())["widths"] == [0.5, 1.0, 0.25, 1.0]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"width": {"by": "speed"}}, r"by = 'speed' needs shares"),
        ({"width": {"shares": [0.0]}}, r"greater than 0"),
        ({"width": {"shares": [1.5]}}, r"less than or equal to 1"),
        ({"width": {"shares": [0.5], "by": "speed"}}, r"needs clocks that stay: set radio.fleet.hold = \['cpu'\]"),
        (
            {"algorithm": {"name": "flpdsp"}, "allocation": {"rule": "joint", "form": "safe"}},
            r"estimated on whole models; state allocation.theta1",
        ),
        ({"aggregation": {"name": "median"}}, r"set aggregation.name = 'mean'"),
        ({"privacy": {"unit": "client", "clip": 1.0, "noise_multiplier": 1.0}}, r"leave \[privacy\] out"),
        ({"adversary": {"kind": "sign-flip", "share": 0.2}}, r"choose adversary.kind = 'label-flip'"),
        ({"radio": {"masked_sum": True}}, r"set radio.masked_sum = false"),
        ({"theory": {"every": 1}}, r"set theory.every = 0"),
    ],
)
def test_settings_that_widths_do_not_go_with_are_refused(values: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        settings_of(**values)


def test_models_methods_and_places_without_widths_are_refused() -> None:
    task = {"dataset": "mnist-5k", "model": "lenet5", "partition": {"kind": "iid", "clients": 4}}
    for shares in ([0.5], [1.0]):
        with pytest.raises(SettingsError, match="'lenet5' comes in one width only"):
            build_world(settings_of(task=task, width={"shares": shares}))
    with pytest.raises(SettingsError, match=r"lists 2 shares with width.by = 'client', but there are 4 clients"):
        build_world(settings_of(width={"shares": [0.5, 1.0], "by": "client"}))
    pruned = {"name": "flpdsp", "prune": {"unit": "unit"}}
    with pytest.raises(SettingsError, match="it prunes units of the head"):
        build_world(settings_of(algorithm=pruned))
    with pytest.raises(SettingsError, match=r"\[width\] is for simulations"):
        read_settings(json.dumps(settings_of().resolved()))
