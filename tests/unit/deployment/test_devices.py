"""Measured devices in the cost model's terms: the model then predicts what was measured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from leanfed.algorithms.flpdsp import Flpdsp
from leanfed.deployment.learning.device import EnergyMeter, battery, calibrate
from leanfed.deployment.learning.links import Measured, Passage
from leanfed.deployment.learning.messages import Device
from leanfed.deployment.learning.reported_fleet import DeviceReport, ReportedFleet
from leanfed.rounds.costs import RadioSettings, computed_share, of_participants
from leanfed.rounds.world import World
from leanfed.wireless.cost import computation_cycles, computation_energy, computation_latency
from leanfed.wireless.fleet_file import write_fleet
from leanfed.wireless.round_cost import Workload, round_cost

MEASURED = Device(flops_per_s=2e10, step_s=0.05, step_samples=32, step_r=0.8, step_j=0.6)


@pytest.fixture
def fleet(world_of: Callable[..., World]) -> ReportedFleet:
    world, radio = world_of(Flpdsp()), RadioSettings()
    return ReportedFleet(radio, world, radio.open_fleet(world.task.clients, seed=0))


@pytest.mark.parametrize("steps", [None, 8])
def test_the_model_predicts_the_time_and_the_joules_of_the_last_training(
    fleet: ReportedFleet, steps: int | None
) -> None:
    fleet.newest[2] = DeviceReport(MEASURED.model_copy(update={"step_head_steps": steps}))
    state = fleet.state(0)
    share = computed_share(fleet.world, fleet.radio, np.array([0.8]), head_steps=steps)
    cycles = computation_cycles(32, fleet.radio.cycles_per_sample, share)
    seconds = computation_latency(cycles, state.cpu_hz[2])
    assert seconds == pytest.approx(0.05)
    assert computation_energy(state.energy_coefficient[2], state.cpu_hz[2], seconds) == pytest.approx(0.6)


def test_before_any_training_the_calibration_counts_and_computing_is_not_charged(fleet: ReportedFleet) -> None:
    fleet.newest[1] = DeviceReport(Device(flops_per_s=2e10))
    state = fleet.state(0)
    assert state.cpu_hz[1] == 1e10  # two operations a cycle
    assert state.energy_coefficient[1] == 0.0


def measured(trainings: int = 1, **changes: float) -> Measured:
    """A device on 1 Mbit/s up and 4 Mbit/s down, half a second beside that; 2 ms a sample of the whole model."""
    known = Measured()
    for number in range(trainings):
        for down, up in ((0, 0), (200_000, 5_000), (200_000, 100_000), (0, 100_000)):
            seconds = 0.5 + 8 * down / 4e6 + 8 * up / 1e6
            known.note_passage(Passage(down, up, seconds, 0.2 + 8 * up / 1e6), number)
        known.note_work(ready_s=0.1, test_s=0.3)
        known.note_training(0.064, 32, 1.0, None)
    return known


def test_measured_devices_have_curves_of_their_own_and_share_no_band(fleet: ReportedFleet) -> None:
    fleet.newest[3] = DeviceReport(MEASURED, measured(trainings=8), base_bytes=200_000)
    curves = fleet.state(0).curves
    assert curves is not None
    assert curves.link_bit_per_s[3] == pytest.approx(1e6, rel=0.01)
    assert curves.fixed_s[3] == pytest.approx(0.5 + 0.4 + 0.1, rel=0.01)
    assert curves.sample_s[3] == pytest.approx(0.002)  # a whole head: r = 1
    assert curves.compute_w[3] == pytest.approx(0.6 / 0.05)
    fleet.newest[3] = DeviceReport(MEASURED, measured(trainings=8), base_bytes=200_000, tests=True)
    fleet.renew(0)
    tested = fleet.state(0).curves
    assert tested is not None and tested.fixed_s[3] - curves.fixed_s[3] == pytest.approx(0.3)


def test_what_pruning_saves_is_the_devices_own_seconds_of_training(fleet: ReportedFleet) -> None:
    """With equal sample counts in every round the seconds of training stay the computation's, not the link's."""
    fleet.newest[0] = DeviceReport(MEASURED, measured(trainings=3))
    work = Workload(
        upload_bits=np.array([8e5]),
        computed_share=computed_share(fleet.world, fleet.radio, np.array([0.5])),
        samples=np.array([32.0]),
        cycles_per_sample=fleet.radio.cycles_per_sample,
    )
    cost = round_cost(of_participants(fleet.state(0), (0,)), work, np.ones(1))
    split = fleet.world.split
    head = split.private_size / split.size
    assert cost.computation_s[0] == pytest.approx(0.064 * (1 - head / 2))
    assert cost.communication_s[0] == pytest.approx(0.6 + 0.8, rel=0.02)
    assert cost.energy_j[0] == pytest.approx(12.0 * cost.computation_s[0] + fleet.state(0).power_w[0] * 0.8, rel=0.02)


def test_a_round_keeps_its_state_until_it_is_renewed(fleet: ReportedFleet) -> None:
    before = fleet.state(0).cpu_hz.copy()
    fleet.newest[0] = DeviceReport(MEASURED)
    assert (fleet.state(0).cpu_hz == before).all()
    fleet.renew(0)
    assert fleet.state(0).cpu_hz[0] != before[0]


def test_a_radio_profile_per_device_still_counts(world_of: Callable[..., World], tmp_path: Path) -> None:
    world = world_of(Flpdsp())
    drawn = RadioSettings().open_fleet(world.task.clients, seed=5).state(0)
    write_fleet(tmp_path / "fleet.csv", [drawn])
    radio = RadioSettings(fleet_file=str(tmp_path / "fleet.csv"))
    fleet = ReportedFleet(radio, world, radio.open_fleet(world.task.clients, seed=0))
    fleet.newest[2] = DeviceReport(MEASURED.model_copy(update={"step_j": None}), measured())
    state = fleet.state(0)
    np.testing.assert_allclose(state.gain, drawn.gain)
    np.testing.assert_allclose(state.power_w, drawn.power_w)
    np.testing.assert_allclose(state.energy_coefficient, drawn.energy_coefficient)
    assert state.cpu_hz[2] != pytest.approx(drawn.cpu_hz[2])
    assert state.curves is None  # its devices share a band


def test_joules_come_from_the_packages_counters_and_survive_their_overflow(tmp_path: Path) -> None:
    for name, value in (("intel-rapl:0", 900_000), ("intel-rapl:1", 100), ("intel-rapl:0:0", 5)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "energy_uj").write_text(f"{value}\n")
        (folder / "max_energy_range_uj").write_text("1000000\n")
    meter = EnergyMeter.start(tmp_path)
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text("100000")  # went round
    (tmp_path / "intel-rapl:1" / "energy_uj").write_text("500100")
    (tmp_path / "intel-rapl:0:0" / "energy_uj").write_text("999999")  # a part of a package: counted in it already
    assert meter.joules() == pytest.approx(0.2 + 0.5)


def test_where_the_platform_does_not_tell_nothing_is_said(tmp_path: Path) -> None:
    assert EnergyMeter.start(tmp_path).joules() is None
    assert battery(tmp_path) is None
    (tmp_path / "BAT0").mkdir()
    (tmp_path / "BAT0" / "capacity").write_text("87\n")
    assert battery(tmp_path) == 0.87


def test_a_calibration_is_short_and_plausible() -> None:
    assert 1e7 < calibrate(0.01) < 1e14
