"""Differences on the way down: what clients have, what is sent later, on every engine, and what it is charged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from polars.testing import assert_frame_equal

import leanfed
from leanfed.algorithms.base import ALGORITHMS
from leanfed.algorithms.contract import ServerState, Training
from leanfed.errors import InputError, SettingsError
from leanfed.rounds.broadcast import VIEW, Differences, advanced, moved, seen
from leanfed.rounds.costs import Accountant, RadioSettings
from leanfed.rounds.engine import Engine, empty_outcome
from leanfed.rounds.selection import Participation
from leanfed.rounds.wire import from_frame, to_frame
from leanfed.rounds.world import World
from leanfed.runs.recost import recost
from leanfed.runs.settings import Settings
from leanfed.simulation.batched.engine import BatchedEngine
from leanfed.simulation.reference import ReferenceEngine
from leanfed.simulation.streamed import StreamedEngine
from leanfed.tasks.task import TaskSettings, build_task
from tests.stops import Stop, stop_after

TASK = build_task(
    TaskSettings.model_validate({"partition": {"kind": "class", "classes_per_client": 2, "clients": 5}}), seed=3
)
SPARSE = {"name": "flpdsp", "k": 0.05, "sparsify": {"error_feedback": True}}
SIZE = 50_692


def world_of(differences: Differences | None, method: dict[str, Any] = SPARSE) -> World:
    algorithm = ALGORITHMS[method["name"]].model_validate(method)
    return World(TASK, algorithm, Training(batch_size=8), Participation(), differences=differences)


def played(world: World, engine: Engine, rounds: int = 3) -> list[ServerState]:
    states, clients = [world.algorithm.start_server(world.task)], world.new_clients()
    for number in range(rounds):
        states.append(engine.run_round(states[-1], clients, world.plan(number)).server)
    return states


def settings_of(**radio: Any) -> Settings:
    return Settings.from_values(
        {
            "rounds": 4,
            "seed": 5,
            "task": {"partition": {"kind": "class", "classes_per_client": 2, "clients": 5}},
            "training": {"batch_size": 8},
            "algorithm": SPARSE,
            "radio": radio,
        }
    )


def test_the_largest_differences_are_sent_and_the_rest_comes_later() -> None:
    how, target = Differences(0.5, "float32"), torch.tensor([4.0, -1.0, 0.25, 2.0] * 50)
    state = ServerState(torch.zeros(200))
    state, first = advanced(how, state, ServerState(target), 0, 0)
    assert first is not None
    assert seen(state).shared.tolist() == [4.0, 0.0, 0.0, 2.0] * 50
    state, second = advanced(how, state, state, 0, 1)
    assert second is not None
    assert seen(state).shared.equal(target)
    assert state.shared.equal(target)  # the server's own part is not rounded


@pytest.mark.parametrize("values", ["log8", "log4", "sign", "bfloat16"])
def test_the_view_comes_to_a_base_that_stands_still(values: str) -> None:
    """Error feedback on the way down: what was not sent, or rounded away, is sent later."""
    how, rng = Differences(0.1, values), np.random.default_rng(4)
    target = ServerState(torch.from_numpy(rng.normal(size=1000).astype(np.float32)))
    state, far = ServerState(torch.zeros(1000)), float(target.shared.norm())
    for number in range(60):
        state, _ = advanced(how, state, ServerState(target.shared, state.memory), 1, number)
    assert float((target.shared - seen(state).shared).norm()) < 0.1 * far


def test_what_a_client_reads_from_the_frames_is_the_view_bit_for_bit() -> None:
    """Whoever missed rounds adds the frames that it missed in their order, and has what everybody has."""
    how = Differences(0.1, "log4")
    world = world_of(how)
    engine, state, clients = ReferenceEngine(world), world.algorithm.start_server(TASK), world.new_clients()
    follower = late = seen(state).shared
    frames = []
    for number in range(4):
        before = state
        state = engine.run_round(state, clients, world.plan(number)).server
        plain = ServerState(state.shared, {})
        _, difference = advanced(how, before, plain, TASK.seed, number)
        assert difference is not None
        frames.append(to_frame(difference, how.values))
        follower = moved(follower, from_frame(frames[-1], max_size=SIZE))
        assert follower.equal(seen(state).shared)
        assert abs(8 * len(frames[-1]) - how.bits(SIZE)) < 0.02 * how.bits(SIZE)
    for frame in frames:
        late = moved(late, from_frame(frame, max_size=SIZE))
    assert late.equal(follower)
    assert not late.equal(state.shared)


@pytest.mark.parametrize("method", [SPARSE, {"name": "fedmask"}, {"name": "scaffold"}])
def test_engines_agree(method: dict[str, Any]) -> None:
    world = world_of(Differences(0.1, "log8"), method)
    reference = played(world, ReferenceEngine(world))[-1]
    streamed = played(world, StreamedEngine(world, threads=2))[-1]
    assert reference.shared.equal(streamed.shared)
    assert reference.memory[VIEW].equal(streamed.memory[VIEW])
    assert not reference.memory[VIEW].equal(reference.shared)


def test_kernels_train_on_the_view() -> None:
    """A thousandth of the entries is sent: a client that trained on the server's own part would be seen."""
    ends = {}
    for k in (0.001, 1.0):
        world = world_of(Differences(k, "float32"), {"name": "fedavg"})
        for name, engine in (("reference", ReferenceEngine(world)), ("batched", BatchedEngine(world, threads=2))):
            ends[k, name] = played(world, engine)[-1].shared
    gap = (ends[0.001, "reference"] - ends[1.0, "reference"]).norm()
    assert (ends[0.001, "batched"] - ends[0.001, "reference"]).norm() < 0.01 * gap


def test_all_entries_in_32_bits_are_the_run_that_sends_the_base() -> None:
    """Such a difference is no shorter than the base, so the base is sent: no bit differs."""
    plain, whole = (world_of(how) for how in (None, Differences(1.0, "float32")))
    ends = [played(world, ReferenceEngine(world))[-1] for world in (plain, whole)]
    assert ends[0].shared.equal(ends[1].shared)
    assert seen(ends[1]).shared.equal(ends[1].shared)
    assert VIEW not in ends[0].memory


def test_a_round_without_participants_sends_nothing() -> None:
    world = world_of(Differences(0.1, "log8"))
    plan = world.plan(1)
    nobody = type(plan)(1, (), np.zeros(0), np.zeros(0))
    radio = RadioSettings(broadcast="difference")
    assert Accountant(radio, world).bill(nobody, empty_outcome(ServerState(torch.zeros(1)))).cost.download_bits == 0


def test_charges_follow_what_is_sent() -> None:
    rounds = leanfed.run(settings_of(broadcast="difference", downlink="broadcast", values="log8")).rounds
    dense = leanfed.run(settings_of(downlink="broadcast", values="log8")).rounds
    bits = rounds["download_bits"].to_list()
    assert bits[0] == dense["download_bits"][0] == 32 * SIZE
    expected = 8 * 5069 + 64 + 23_763  # values, their scale, log2 C(50692, 5069)
    assert bits[1:] == pytest.approx([expected] * 3, rel=1e-3)
    assert rounds["upload_bits"].to_list() == dense["upload_bits"].to_list()
    saved = dense["latency_s"] - rounds["latency_s"]
    assert saved[0] == 0
    assert (saved[1:] > 0).all()
    assert rounds["train_loss"].to_list()[0] == dense["train_loss"].to_list()[0]
    assert rounds["train_loss"].to_list()[1:] != dense["train_loss"].to_list()[1:]


def test_a_resumed_run_goes_on_from_its_view(tmp_path: Path) -> None:
    settings = settings_of(broadcast="difference", k_down=0.02, values_down="sign")
    unbroken = leanfed.run(settings, tmp_path / "unbroken")
    with pytest.raises(Stop):
        leanfed.run(settings, tmp_path / "broken", listen=stop_after(2))
    again = leanfed.resume(tmp_path / "broken")
    assert_frame_equal(again.rounds, unbroken.rounds)


def test_another_broadcast_is_another_run(tmp_path: Path) -> None:
    leanfed.run(settings_of(), tmp_path / "dense")
    with pytest.raises(InputError, match=r"trained with another radio\.broadcast"):
        recost(tmp_path / "dense", settings_of(broadcast="difference"), tmp_path / "other")


def test_rates_and_types_that_cannot_be_are_refused() -> None:
    for bad in ({"k_down": 0.0}, {"k_down": 1.5}, {"values_down": "log3"}, {"broadcast": "sparse"}):
        with pytest.raises(SettingsError, match=rf"radio\.{next(iter(bad))}"):
            settings_of(**bad)
