"""Measured devices in the cost model's terms: the model then predicts what was measured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from leanfed.algorithms.flpdsp import Flpdsp
from leanfed.deployment.learning.device import EnergyMeter, battery, calibrate
from leanfed.deployment.learning.messages import Device
from leanfed.deployment.learning.reported_fleet import DeviceReport, ReportedFleet
from leanfed.rounds.costs import RadioSettings, computed_share
from leanfed.rounds.world import World
from leanfed.wireless.cost import computation_cycles, computation_energy, computation_latency, uplink_rate
from leanfed.wireless.fleet_file import write_fleet

MEASURED = Device(flops_per_s=2e10, step_s=0.05, step_samples=32, step_r=0.8, step_j=0.6)


@pytest.fixture
def fleet(world_of: Callable[..., World]) -> ReportedFleet:
    world, radio = world_of(Flpdsp()), RadioSettings()
    return ReportedFleet(radio, world, radio.open_fleet(world.task.clients, seed=0))


def test_the_model_predicts_the_time_and_the_joules_of_the_last_training(fleet: ReportedFleet) -> None:
    fleet.newest[2] = DeviceReport(MEASURED)
    state = fleet.state(0)
    share = computed_share(fleet.world, fleet.radio, np.array([0.8]))
    cycles = computation_cycles(32, fleet.radio.cycles_per_sample, share)
    seconds = computation_latency(cycles, state.cpu_hz[2])
    assert seconds == pytest.approx(0.05)
    assert computation_energy(state.energy_coefficient[2], state.cpu_hz[2], seconds) == pytest.approx(0.6)


def test_before_any_training_the_calibration_counts_and_computing_is_not_charged(fleet: ReportedFleet) -> None:
    fleet.newest[1] = DeviceReport(Device(flops_per_s=2e10))
    state = fleet.state(0)
    assert state.cpu_hz[1] == 1e10  # two operations a cycle
    assert state.energy_coefficient[1] == 0.0


@pytest.mark.parametrize("bit_per_s", [1e3, 1e6, 5e7])
def test_the_channel_gives_the_measured_rate_on_the_share_it_was_measured_on(
    fleet: ReportedFleet, bit_per_s: float
) -> None:
    fleet.newest[3] = DeviceReport(MEASURED, upload_bit_per_s=bit_per_s, upload_share=0.25)
    state = fleet.state(0)
    rate = uplink_rate(
        0.25,
        bandwidth_hz=state.bandwidth_hz,
        gain=state.gain[3],
        power_w=state.power_w[3],
        noise_w_per_hz=state.noise_w_per_hz,
    )
    assert float(rate) == pytest.approx(bit_per_s, rel=1e-6)


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
    fleet.newest[2] = DeviceReport(MEASURED.model_copy(update={"step_j": None}), upload_bit_per_s=1e6)
    state = fleet.state(0)
    np.testing.assert_allclose(state.gain, drawn.gain)
    np.testing.assert_allclose(state.power_w, drawn.power_w)
    np.testing.assert_allclose(state.energy_coefficient, drawn.energy_coefficient)
    assert state.cpu_hz[2] != pytest.approx(drawn.cpu_hz[2])


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
