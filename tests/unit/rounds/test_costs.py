"""What each method pays, by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from leanfed.algorithms import ALGORITHMS, Training
from leanfed.algorithms.flpdsp import Flpdsp
from leanfed.errors import DataError, SettingsError
from leanfed.records import Ints
from leanfed.rounds.costs import Accountant, RadioSettings, RoundBill, computed_share, planned_work
from leanfed.rounds.loop import start
from leanfed.rounds.selection import Participation
from leanfed.rounds.world import World
from leanfed.runs.settings import Settings
from leanfed.simulation.reference import ReferenceEngine
from leanfed.tasks.partition import PartitionSettings
from leanfed.tasks.task import TaskSettings, build_task
from leanfed.wireless import cost as wireless_cost
from leanfed.wireless.fleet import FleetSettings
from leanfed.wireless.payload import exact_bits, position_bits
from tests.methods import method_of

WorldOf = Callable[..., World]
D, D_BASE, D_HEAD = 61_706, 50_692, 11_014
CLASS_2 = PartitionSettings(kind="class", classes_per_client=2, clients=5)


def bill(world: World, number: int = 0, **radio: object) -> tuple[RoundBill, Ints]:
    progress = start(world)
    plan = world.plan(number)
    outcome = ReferenceEngine(world, "float32").run_round(progress.server, progress.clients, plan)
    return Accountant(RadioSettings.model_validate(radio), world).bill(plan, outcome), outcome.entries


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("fedavg", 32 * D),
        ("fedper", 32 * D_BASE),
        ("lg-fedavg", 32 * D_HEAD),
        ("fedmask", (2_400 + 48_000 + 10_080) / 2 + 840 + 230),
        ("fedavg-s", 32 * 3_085 + float(position_bits(D, 3_085))),
        ("fedavg-p", 32 * 30_853 + float(position_bits(D, 30_853))),
        ("flpdsp", 32 * 37_512 + float(position_bits(D_BASE, 37_512))),
    ],
)
def test_each_method_pays_for_what_it_sends(name: str, bits: float, world_of: WorldOf) -> None:
    cost = bill(world_of(method_of(name)))[0].cost
    assert cost.upload_bits == pytest.approx(bits)


@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("fedavg", 1.0),
        ("fedavg-p", 0.5),
        ("flpdsp", (D_BASE + 0.82 * D_HEAD) / D),
        ("fedmask", 1 - 0.5 * (2_400 + 48_000 + 10_080) / D),  # half of the rows of conv2, conv3 and fc1
    ],
)
def test_computation_follows_the_weights_and_the_samples(name: str, share: float, world_of: WorldOf) -> None:
    before = 2 * 32 if name == "fedmask" else 0  # whole steps on scores, before its rows are chosen
    cost = bill(world_of(method_of(name), local_steps=2), cycles_per_sample=1e6)[0].cost
    assert cost.flops == pytest.approx(2 * (64 * share + before) * 1e6)


def test_steps_before_round_0_are_charged_in_it_and_in_no_other(world_of: WorldOf) -> None:
    plain, prepared = (world_of(ALGORITHMS["fedmask"](pruning_steps=steps)) for steps in (0, 5))
    first, later = ([bill(world, number)[0].cost for world in (plain, prepared)] for number in (0, 1))
    share = computed_share(plain, RadioSettings(), np.array(0.5))  # of the rows; a round has one step
    assert (first[1].computation_s / first[0].computation_s - 1.0) * share == pytest.approx(5.0)
    assert (first[1].communication_s == first[0].communication_s).all()
    assert (later[1].latency_s == later[0].latency_s).all()


def test_the_share_that_flpdsp_reports_is_the_fraction_of_eq_12(world_of: WorldOf) -> None:
    r = np.linspace(0.0, 1.0, 7)
    shares = computed_share(world_of(Flpdsp()), RadioSettings(), r)
    assert shares.tolist() == wireless_cost.computed_share(D_BASE, D_HEAD, r).tolist()


def test_rows_are_charged_by_the_operations_of_their_layers(world_of: WorldOf) -> None:
    world, radio = world_of(ALGORITHMS["fedmask"]()), RadioSettings(computation="operations")
    of_rows = 100 * 2_400 + 48_000 + 10_080  # conv2 has 10 x 10 outputs a channel, conv3 one
    assert computed_share(world, radio, np.array([1.0, 0.5])) == pytest.approx([1.0, 1 - 0.5 * of_rows / OPERATIONS])


OPERATIONS, HEAD_OPERATIONS = 416_520, 120 * 84 + 84 * 10  # multiply-adds of LeNet-5 on one picture; 10,920 in its head


@pytest.mark.parametrize(
    ("computation", "base", "head"),
    [
        ("weights", D_BASE / D, D_HEAD / D),  # 50,692 and 11,014 of 61,706
        ("operations", 405_600 / OPERATIONS, HEAD_OPERATIONS / OPERATIONS),
    ],
)
def test_one_currency_rules_pruning_and_head_steps(
    computation: str, base: float, head: float, world_of: WorldOf
) -> None:
    assert (D_BASE, D_HEAD, HEAD_OPERATIONS) == (50_692, 11_014, 10_920)
    world = world_of(Flpdsp(r=0.5, head_steps=4))
    cost = bill(world, cycles_per_sample=1e6, computation=computation)[0].cost
    assert cost.flops == pytest.approx(2 * 32 * 1e6 * (base + 0.5 * head * (1 + 3)))
    # Nothing pruned, no further step: the whole model in either currency.
    radio = RadioSettings(computation=computation)
    assert computed_share(world_of(Flpdsp()), radio, np.ones(2)) == pytest.approx(1.0)
    # Eq. (12) by hand at r = 0, and a step of the head: 17.8 % by weights, 2.6 % by operations.
    assert computed_share(world_of(Flpdsp()), radio, np.zeros(1)) == pytest.approx(base)
    assert computed_share(world_of(Flpdsp(head_steps=2)), radio, np.ones(1)) == pytest.approx(1.0 + head)


@pytest.mark.parametrize("computation", ["weights", "operations"])
def test_a_whole_model_is_pruned_alike_in_either_currency(computation: str, world_of: WorldOf) -> None:
    radio = RadioSettings(computation=computation)
    assert computed_share(world_of(ALGORITHMS["fedavg-p"]()), radio, np.array([0.5])) == pytest.approx(0.5)
    assert computed_share(world_of(ALGORITHMS["fedavg"]()), radio, np.array([0.5])) == pytest.approx(1.0)


@pytest.mark.parametrize("computation", ["weights", "operations"])
def test_the_planner_expects_what_is_charged(computation: str, world_of: WorldOf) -> None:
    world, radio = world_of(Flpdsp(head_steps=20)), RadioSettings(computation=computation)
    cycles, head_work = planned_work(world, radio)
    for r in (0.0, 0.3, 1.0):
        planned = cycles * (D_BASE / D + r * head_work * D_HEAD / D)  # base_s and head_s of a Problem
        assert computed_share(world, radio, np.array([r])) == pytest.approx(planned)
    if computation == "weights":
        assert (cycles, head_work) == (1.0, 20.0)


@pytest.mark.parametrize("name", ["fedavg", "local"])
def test_a_model_of_one_part_is_planned_alike_in_either_currency(name: str, world_of: WorldOf) -> None:
    world = world_of(ALGORITHMS[name]())
    by_weights, by_operations = (planned_work(world, RadioSettings(computation=c)) for c in ("weights", "operations"))
    assert by_operations == by_weights == (1.0, 1.0)


def test_the_old_key_is_refused_by_the_name_of_the_new_one() -> None:
    with pytest.raises(SettingsError, match="computation = 'weights' or 'operations'"):
        Settings.from_values({"radio": {"head_step": "weights"}}, "here")
    whole = {name: value for name, value in RadioSettings().model_dump(mode="json").items() if name != "computation"}
    kept = Settings.from_values({"radio": {**whole, "head_step": "operations"}}, "a run folder of 0.1.0")
    assert kept.radio.computation == "weights"


def test_a_model_that_cannot_be_cut_pays_for_the_whole_way_again() -> None:
    task = build_task(TaskSettings(model="tiny-norm", partition=CLASS_2), seed=3)
    world = World(task, Flpdsp(r=1.0, head_steps=3), Training(), Participation())
    by_operations = RadioSettings(computation="operations")
    assert computed_share(world, by_operations, np.ones(2)) == pytest.approx(3.0)
    weights = world.split.private_size / world.split.size
    assert computed_share(world, by_operations, np.zeros(2)) == pytest.approx(1.0 - weights)  # parts are not known


def test_the_coded_bits_are_within_one_percent_of_the_exact_count(world_of: WorldOf) -> None:
    for name in ALGORITHMS:
        made = bill(world_of(method_of(name)))[0]
        room = 1.1 if name == "fedmask" else 1.01  # a frame of bits names its client's rows, which are not counted
        assert (made.coded_bits <= room * made.exact_bits + 8 * 64).all(), name


def test_the_papers_count_can_be_charged(world_of: WorldOf) -> None:
    made, entries = bill(world_of(Flpdsp(k=0.1)), payload="paper")
    k = entries[0] / D_BASE
    assert made.cost.upload_bits == pytest.approx(k * D_BASE * (np.log2(1 / k) + 33))
    assert made.exact_bits == pytest.approx(float(exact_bits(D_BASE, entries[0])))


def test_the_round_waits_for_the_slowest_participant(world_of: WorldOf) -> None:
    made = bill(world_of(Flpdsp()))[0]
    slowest = (made.cost.communication_s + made.cost.computation_s).max()
    assert made.round_row()["latency_s"] == pytest.approx(float(slowest))


def test_the_downlink_is_counted_always_and_timed_on_request(world_of: WorldOf) -> None:
    free, timed = (bill(world_of(Flpdsp()), downlink=kind)[0] for kind in ("neglected", "broadcast"))
    assert free.cost.download_bits == timed.cost.download_bits == 32 * D_BASE
    assert float(timed.cost.round_latency_s) > float(free.cost.round_latency_s)


def test_methods_meet_the_same_devices(world_of: WorldOf) -> None:
    states = [Accountant(RadioSettings(), world_of(method_of(name))).fleet.state(4) for name in ("fedper", "fedavg")]
    assert np.array_equal(states[0].gain, states[1].gain)


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_the_codec_changes_nothing_in_what_is_learned(name: str, world_of: WorldOf) -> None:
    world = world_of(method_of(name))
    ends = []
    for wire in (None, "float32"):
        progress, engine = start(world), ReferenceEngine(world, wire)
        server = engine.run_round(progress.server, progress.clients, world.plan(0)).server
        ends.append({"server": server.shared, **server.memory, **progress.clients.snapshot(range(5))})
    assert ends[0].keys() == ends[1].keys()
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


def test_devices_that_do_not_fit_the_clients_are_refused(world_of: WorldOf) -> None:
    settings = RadioSettings(fleet=FleetSettings(devices=7))
    with pytest.raises(SettingsError, match="devices = 7, but there are 5 clients"):
        Accountant(settings, world_of(Flpdsp()))


def test_a_fleet_file_with_too_few_devices_is_refused(world_of: WorldOf, tmp_path: Path) -> None:
    file = tmp_path / "fleet.csv"
    file.write_text("device,distance_m,power_dbm,cpu_ghz\n0,50,23,1.5\n1,80,23,2.0\n")
    with pytest.raises(DataError, match="2 devices"):
        Accountant(RadioSettings(fleet_file=str(file)), world_of(Flpdsp()))


def test_a_64_bit_wire_is_refused() -> None:
    with pytest.raises(ValidationError, match="set value_bits = 32 or 16"):
        RadioSettings(wire=True, value_bits=64)
