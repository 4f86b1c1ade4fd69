"""Pruning by units: found by tracing, masked and narrowed alike, on every engine, charged by what is left."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from leanfed.algorithms.base import ALGORITHMS
from leanfed.algorithms.contract import Cohort, Training
from leanfed.algorithms.learner import FlatLearner
from leanfed.errors import SettingsError
from leanfed.records import RoundPlan
from leanfed.rounds.client_store import ClientStore
from leanfed.rounds.costs import RadioSettings, computed_share
from leanfed.rounds.engine import Engine
from leanfed.rounds.exchange import train
from leanfed.rounds.selection import Participation
from leanfed.rounds.world import World, check_fit
from leanfed.runs.settings import Settings
from leanfed.simulation.batched.engine import BatchedEngine
from leanfed.simulation.reference import ReferenceEngine
from leanfed.simulation.streamed import StreamedEngine
from leanfed.tasks.batch import Batch
from leanfed.tasks.models import build_model
from leanfed.tasks.split import FlatModel, flatten, split_after
from leanfed.tasks.task import TaskSettings, build_task
from leanfed.tasks.units import Units, find_units, narrowed

ROOT = Path(__file__).resolve().parents[3]
TASK = build_task(
    TaskSettings.model_validate({"partition": {"kind": "class", "classes_per_client": 2, "clients": 5}}), seed=3
)
UNITS = {"name": "flpdsp", "k": 0.5, "r": 0.25, "prune": {"unit": "unit"}}
HEAD_WEIGHTS, BASE_WEIGHTS = 11_014, 50_692


def world_of(method: dict[str, Any] = UNITS, **training: Any) -> World:
    algorithm = ALGORITHMS["flpdsp"].model_validate(method)
    return World(TASK, algorithm, Training(batch_size=8, **training), Participation())


def units_of(name: str, cut: str) -> tuple[Units, Tensor]:
    model = build_model(name, 10, 0)
    split = split_after(model, cut)
    return find_units(model, split), flatten(model, split.shapes)


def every_other(units: Units) -> dict[str, Tensor]:
    return {layer.name: torch.arange(1, layer.units, 2) for layer in units.layers}


def test_the_units_of_a_head_are_its_rows_with_the_columns_that_read_them() -> None:
    units, _ = units_of("lenet5", "conv3")
    (layer,) = units.layers
    assert (layer.name, layer.units, layer.readers) == ("fc1", 84, ("fc2",))
    assert units.entries["fc1"].shape == (84, 120 + 1 + 10)
    assert len(units.entries["fc1"].unique()) == HEAD_WEIGHTS - 10  # all but the last bias, each in one unit
    assert int(units.mask({"fc1": torch.tensor([2, 3])}).sum()) == 2 * 131 + 10
    assert units.counts(0.5) == {"fc1": 42}
    assert units.counts(0.0) == {"fc1": 1}


def test_channels_inside_a_block_can_go_and_those_that_are_added_cannot() -> None:
    units, _ = units_of("resnet18", "stage4.0")
    (layer,) = units.layers
    assert (layer.name, layer.norms, layer.readers) == ("stage4.1.conv1", ("stage4.1.norm1",), ("stage4.1.conv2",))
    units, _ = units_of("lenet5", "conv1")
    assert [(layer.name, layer.readers) for layer in units.layers] == [
        ("conv2", ("conv3",)),
        ("conv3", ("fc1",)),
        ("fc1", ("fc2",)),
    ]


@pytest.mark.parametrize(
    ("name", "cut", "shape"), [("lenet5", "conv1", (1, 32, 32)), ("resnet18", "stage3.1", (3, 8, 8))]
)
def test_a_narrow_model_computes_what_the_masked_one_does(name: str, cut: str, shape: tuple[int, ...]) -> None:
    units, weights = units_of(name, cut)
    split, kept = units.split, every_other(units)
    mask, base = units.mask(kept), split.shared_size
    inputs, labels = torch.randn(4, *shape, generator=torch.Generator().manual_seed(1)), torch.arange(4)
    small = FlatModel(narrowed(units, units.model, kept), split_after(narrowed(units, units.model, kept), cut))
    whole = FlatModel(build_model(name, 10, 0), split)
    loss, gradient = whole.step((weights[:base], weights[base:] * mask), inputs, labels)
    other, slope = small.step(small.initial, inputs, labels)
    assert small.split.private_size == int(mask.sum()) < 0.6 * split.private_size
    assert abs(float(loss - other)) < 1e-6
    left = torch.cat([gradient[:base], gradient[base:][mask > 0]])
    assert (left - slope).norm() < 1e-5 * slope.norm()
    assert not gradient[base:][mask == 0].any()  # a unit that is out gets no gradient
    assert torch.allclose(
        whole.logits((weights[:base], weights[base:] * mask), inputs), small.logits(small.initial, inputs), atol=1e-5
    )


@pytest.mark.parametrize("memory", ["discard", "keep"])
def test_a_client_that_trains_narrow_ends_where_a_masked_one_does(memory: str) -> None:
    """The same steps, further ones of the head included; the narrower module is really used."""
    world = world_of({**UNITS, "head_steps": 3, "prune": {"unit": "unit", "head_memory": memory}}, local_steps=2)
    client = world.new_clients()[1]
    ends = []
    for narrow in (True, False):
        learner = world.new_learner()
        if not narrow:
            learner.model.random = True  # such models stay whole
        updates = train(
            world.algorithm, world.algorithm.start_server(TASK), world.alone(client, 1, 0, 0.5, 0.25), learner
        )
        assert bool(learner.narrow) == narrow
        ends.append(updates)
    assert list(ends[0].private[0].shape) == [HEAD_WEIGHTS]
    assert torch.allclose(ends[0].private, ends[1].private, atol=1e-6)
    uploads = [next(iter(end.uploads)).dense() for end in ends]
    assert torch.allclose(*uploads, atol=1e-5)
    moved = ends[0].private[0] != (client.private if memory == "keep" else 0)
    assert 0 < int(moved.sum()) <= 21 * 131 + 10


def test_running_statistics_of_narrow_blocks_come_back() -> None:
    """A client of ResNet-18 on small pictures, narrow and masked: weights, upload and statistics are the same."""
    units, weights = units_of("resnet18", "stage4.0")
    base, ends = units.split.shared_size, []
    drawn = torch.Generator().manual_seed(2)
    batch = Batch(torch.randn(1, 4, 3, 8, 8, generator=drawn), torch.arange(4).unsqueeze(0))
    for random in (False, True):  # models with random draws stay whole
        learner = FlatLearner(FlatModel(build_model("resnet18", 10, 0), units.split))
        learner.model.random = random
        one = np.ones(1)
        private = weights[base:].unsqueeze(0)
        cohort = Cohort((0,), 0, 1, Training(), one, one / 2, private, {}, [batch], 1, units=units)
        updates = ALGORITHMS["flpdsp"].model_validate(UNITS).client_update(weights[:base], cohort, learner)
        ends.append((updates, dict(learner.model.model.named_buffers())))
    (narrow, buffers), (masked, theirs) = ends
    gone = torch.ones(512, dtype=torch.bool)
    gone[units.nonzero(narrow.private[0])["stage4.1.conv1"]] = False
    assert int(gone.sum()) == 256
    assert not buffers["stage4.1.norm1.running_mean"][gone].any()
    for name, values in buffers.items():
        own = ~gone if name.startswith("stage4.1.norm1.running") else ...  # those of units that are out: unused
        assert torch.allclose(values[own].float(), theirs[name][own].float(), atol=1e-5, rtol=1e-4), name
        assert not name.endswith("running_var") or (values[own] != 1).all()
    assert (narrow.private - masked.private).norm() < 1e-4 * narrow.private.norm()


def played(world: World, engine: Engine, rounds: int = 2) -> tuple[Tensor, ClientStore]:
    server, clients = world.algorithm.start_server(world.task), world.new_clients()
    for number in range(rounds):
        server = engine.run_round(server, clients, world.plan(number)).server
    return server.shared, clients


@pytest.mark.parametrize("score", ["magnitude", "importance", "random"])
def test_engines_agree(score: str) -> None:
    world = world_of({**UNITS, "prune": {"unit": "unit", "score": score}})
    reference, clients = played(world, ReferenceEngine(world))
    streamed, others = played(world, StreamedEngine(world, threads=2))
    assert reference.equal(streamed)
    batched, third = played(world, BatchedEngine(world, threads=2))
    assert torch.allclose(batched, reference, atol=1e-5)
    for client in range(4):
        assert clients[client].private.equal(others[client].private)
        assert torch.allclose(third[client].private, clients[client].private, atol=1e-5)
        assert world.units is not None
        assert len(world.units.nonzero(clients[client].private)["fc1"]) == 21


def test_a_whole_head_is_the_run_that_prunes_nothing() -> None:
    ends = []
    for unit in ("unit", "weight"):
        world = world_of({**UNITS, "r": 1.0, "prune": {"unit": unit}})
        ends.append(played(world, ReferenceEngine(world)))
    assert ends[0][0].equal(ends[1][0])
    assert ends[0][1][2].private.equal(ends[1][1][2].private)


def test_operations_are_charged_as_they_are_left() -> None:
    world = world_of()
    fc1, fc2 = 120 * 84, 84 * 10
    total = 6 * 28 * 28 * 25 + 16 * 100 * 150 + 120 * 400 + fc1 + fc2
    shares = computed_share(world, RadioSettings(computation="operations"), np.array([1.0, 0.5, 0.25]))
    expected = [1 - (fc1 + fc2) * (1 - r) / total for r in (1, 0.5, 0.25)]
    assert shares == pytest.approx(expected)
    weights = computed_share(world, RadioSettings(), np.array([0.5]))
    assert weights == pytest.approx([(BASE_WEIGHTS + HEAD_WEIGHTS / 2) / (BASE_WEIGHTS + HEAD_WEIGHTS)])
    steps = world_of({**UNITS, "head_steps": 5})
    more = computed_share(steps, RadioSettings(computation="operations"), np.array([0.5]))
    assert more == pytest.approx([expected[1] + 4 * (fc1 + fc2) / 2 / total])


class Branching(nn.Module):
    """A forward pass that looks at its input."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.second(self.first(x)) if x.sum() > 0 else self.first(x))


class Squashed(nn.Module):
    """A sigmoid, which makes a half of zero."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.sigmoid(self.second(functional.relu(self.first(x)))))


def test_models_whose_units_cannot_be_found_are_refused_in_words() -> None:
    with pytest.raises(SettingsError, match=r"Branching cannot \(.*Set algorithm\.prune\.unit = 'weight'"):
        find_units(Branching(), split_after(Branching(), "first"))
    with pytest.raises(SettingsError, match=r"no layer in the head of Squashed whose units can be taken out"):
        find_units(Squashed(), split_after(Squashed(), "first"))
    with pytest.raises(SettingsError, match=r"no layer in the head of SmallResNet"):
        units_of("resnet8", "stage2.0")  # group normalisation mixes units
    values = {"task": {"split": "fc1"}, "algorithm": UNITS}
    settings = Settings.from_values(values)
    task = build_task(settings.task, 0)
    with pytest.raises(SettingsError, match=r"Choose an earlier task\.split"):
        check_fit(World(task, settings.algorithm, settings.training, settings.participation))


def test_plans_by_units_keep_whole_units() -> None:
    world = world_of()
    plan = RoundPlan(0, (0, 2), np.array([0.5, 0.5]), np.array([0.1, 0.9]))
    clients = world.new_clients()
    StreamedEngine(world, threads=1).run_round(world.algorithm.start_server(TASK), clients, plan)
    assert world.units is not None
    assert [len(world.units.nonzero(clients[client].private)["fc1"]) for client in (0, 2)] == [8, 75]


def test_the_time_that_the_documents_tell_was_measured_and_follows_operations() -> None:
    """Within 15 %, for a step and for a client's round; not a step of LeNet-5's head alone, as the page says."""
    rows = json.loads((ROOT / "results/narrow/steps.json").read_text())
    assert {(row["model"], row["r"]) for row in rows} >= {
        (m, r) for m in ("lenet5", "resnet18") for r in (1, 0.5, 0.25)
    }
    assert all(abs(row[kind] / row["operations"] - 1) < 0.15 for row in rows for kind in ("step", "client"))
    page = (ROOT / "docs/measurements.md").read_text()
    for row in (row for row in rows if row["r"] < 1):
        told = [f"{row[kind]:.2f}" for kind in ("step", "client", "head")]
        charged = f"{row['operations']:.2f}, {row['head_operations']:.2f} | {row['weights']:.2f}"
        line = f"| {row['model']}, {row['batch_size']} | {row['r']} | {' | '.join(told)} | {charged} |"
        assert line in page


def test_the_sizes_of_exports_that_the_documents_tell_were_measured() -> None:
    page = (ROOT / "docs/measurements.md").read_text()
    rows = json.loads((ROOT / "results/narrow/exports.json").read_text())
    rates = (1, 0.5, 0.25)
    wanted = {("lenet5", 1, r) for r in rates} | {("resnet18", w, r) for w in (1, 0.5) for r in rates}
    assert {(row["model"], row["width"], row["r"]) for row in rows} == wanted
    for row in rows:
        told = " | ".join(f"{row[f'{kind}_kb']:,.0f} kB, {row[f'{kind}_ms']:.2f} ms" for kind in ("pytorch", "onnx"))
        assert f"| {row['model']} | {row['width']} | {row['r']} | {told} | " in page
