"""Coded values in rounds: what is sent and remembered, on every engine and through the wire."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from leanfed.algorithms.base import ALGORITHMS
from leanfed.algorithms.contract import Cohort, ServerState, Training, Updates
from leanfed.algorithms.uploads import Listed, Upload
from leanfed.errors import SettingsError
from leanfed.rounds.client_store import ClientStore
from leanfed.rounds.coding import with_coded_values
from leanfed.rounds.costs import Accountant, RadioSettings
from leanfed.rounds.engine import Engine
from leanfed.rounds.selection import Participation
from leanfed.rounds.wire import through_wire
from leanfed.rounds.world import World
from leanfed.runs.prepare import build_world
from leanfed.runs.settings import Settings
from leanfed.simulation.batched.engine import BatchedEngine
from leanfed.simulation.reference import ReferenceEngine
from leanfed.simulation.streamed import StreamedEngine
from leanfed.tasks.task import TaskSettings, build_task

TASK = build_task(
    TaskSettings.model_validate({"partition": {"kind": "class", "classes_per_client": 2, "clients": 5}}), seed=3
)
SPARSE = {"name": "flpdsp", "k": 0.05, "sparsify": {"error_feedback": True}}
KINDS = pytest.mark.parametrize("values", ["float16", "bfloat16", "log8", "log4", "sign"])


def world_of(values: str, method: dict[str, Any]) -> World:
    algorithm = ALGORITHMS[method["name"]].model_validate(method)
    return World(TASK, algorithm, Training(batch_size=8), Participation(), values=values)


def played(world: World, engine: Engine, rounds: int = 2) -> tuple[ServerState, ClientStore]:
    server, clients = world.algorithm.start_server(world.task), world.new_clients()
    for number in range(rounds):
        server = engine.run_round(server, clients, world.plan(number)).server
    return server, clients


def updates_of(values: torch.Tensor, positions: torch.Tensor | None, unsent: torch.Tensor) -> Updates:
    upload = Upload(unsent.shape[1], values, positions)
    return Updates(Listed([upload]), torch.empty(1, 0), {"residual": unsent}, np.zeros(1), np.ones(1, dtype=np.int64))


def cohort_of(values: str) -> Cohort:
    one = np.ones(1)
    return Cohort((4,), 2, 7, Training(), one, one, torch.empty(1, 0), {}, [], 1, values)


@KINDS
def test_sent_and_remembered_make_what_was_meant(values: str) -> None:
    meant, places = torch.tensor([0.31, -2.0, 0.07]), torch.tensor([1, 4, 5])
    before = torch.tensor([[0.5, 0.0, -0.25, 1.0, 0.0, 0.0]])
    updates = updates_of(meant, places, before)
    after = with_coded_values(updates, cohort_of(values))
    (upload,) = after.uploads
    whole = Upload(6, meant, places).dense() + before[0]
    assert torch.allclose(upload.dense() + after.memory["residual"][0], whole, atol=1e-7)
    assert not torch.equal(upload.values, meant)
    assert torch.equal(updates.memory["residual"], before)
    read, _ = through_wire(upload, values)
    assert torch.equal(read.values, upload.values)


def test_masks_have_no_values() -> None:
    bits = torch.tensor([True, False, True])
    updates = Updates(Listed([Upload(3, bits)]), torch.empty(1, 0), {}, np.zeros(1), np.ones(1, dtype=np.int64))
    (upload,) = with_coded_values(updates, cohort_of("log8")).uploads
    assert torch.equal(upload.values, bits)


@pytest.mark.parametrize("method", [SPARSE, {"name": "fedavg"}, {"name": "fedavg-p"}, {"name": "fedmask"}])
def test_engines_agree_and_the_wire_changes_nothing(method: dict[str, Any]) -> None:
    world = world_of("log8", method)
    reference, clients = played(world, ReferenceEngine(world))
    through, _ = played(world, ReferenceEngine(world, wire="log8"))
    streamed, others = played(world, StreamedEngine(world, threads=2))
    assert torch.equal(reference.shared, through.shared)
    assert torch.equal(reference.shared, streamed.shared)
    for client in range(5):
        for name, rows in clients[client].memory.items():
            assert torch.equal(rows, others[client].memory[name])


@pytest.mark.parametrize("compiled", [True, False])
def test_kernels_round_as_the_reference_does(compiled: bool) -> None:
    """In four bits, whose rounding changes a step visibly: uploads that were not rounded would be seen."""
    moved = {}
    for values in ("log4", "float32"):
        world = world_of(values, {"name": "fedavg"})
        before = world.algorithm.start_server(TASK).shared
        for name, engine in (
            ("reference", ReferenceEngine(world)),
            ("batched", BatchedEngine(world, compiled=compiled, threads=2)),
        ):
            moved[values, name] = played(world, engine, rounds=1)[0].shared - before
    ours, theirs = moved["log4", "batched"], moved["log4", "reference"]
    rounding = (moved["float32", "batched"] - ours).norm()
    assert rounding > 0.03 * ours.norm()
    assert (ours - theirs).norm() < 0.1 * rounding  # gradients differ in their last bits, and so do a few levels


def test_single_uploads_make_the_same_sum() -> None:
    world = world_of("log4", SPARSE)
    engine = BatchedEngine(world, threads=1)
    server, clients = world.algorithm.start_server(TASK), world.new_clients()
    answers = engine.exchange(server, clients, world.plan(0), single=True)
    fresh = world.new_clients()
    total = engine.exchange(server, fresh, world.plan(0), single=False).total
    again = torch.zeros_like(total) if total is not None else torch.empty(0)
    Listed(answers.uploads).add_to(again, answers.gamma)
    assert total is not None
    assert torch.equal(again, total)


def test_float32_is_the_run_that_says_nothing_of_values() -> None:
    said, silent = (Settings.from_values({"rounds": 1, "radio": radio}) for radio in ({"values": "float32"}, {}))
    worlds = [build_world(settings) for settings in (said, silent)]
    ends = [played(world, BatchedEngine(world, threads=1), rounds=1)[0].shared for world in worlds]
    assert torch.equal(*ends)
    assert said.radio.bits == silent.radio.bits == 32


def test_bits_are_charged_by_the_values_that_travel() -> None:
    world = world_of("log8", SPARSE)
    engine = ReferenceEngine(world, wire="log8")
    outcome = engine.run_round(world.algorithm.start_server(TASK), world.new_clients(), world.plan(0))
    charged = {}
    for kind in ("log8", None):
        bill = Accountant(RadioSettings.model_validate({"values": kind}), world).bill(world.plan(0), outcome)
        charged[kind] = bill.exact_bits
        assert bill.cost.download_bits == 32 * 50_692
    entries = outcome.entries
    assert np.allclose(charged[None] - charged["log8"], 24 * entries - 64)
    assert outcome.coded_bits is not None
    assert (np.abs(outcome.coded_bits - charged["log8"]) < 0.01 * charged["log8"] + 512).all()


def test_settings_reach_the_run_and_contradictions_are_refused() -> None:
    settings = Settings.from_values({"radio": {"values": "log4"}})
    assert build_world(settings).values == settings.radio.wire_type == "log4"
    assert settings.radio.bits == 4
    with pytest.raises(SettingsError, match=r"value_bits = 16, but values = 'log8' have 8; leave value_bits out"):
        Settings.from_values({"radio": {"values": "log8", "value_bits": 16}})
    with pytest.raises(SettingsError, match=r"radio\.values"):
        Settings.from_values({"radio": {"values": "log3"}})
